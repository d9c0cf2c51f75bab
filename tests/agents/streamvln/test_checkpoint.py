from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agents.common.checkpoints.files import GenerationSettings, generation_settings
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES
from agents.streamvln import network as checkpoint
from tests.agents.recorded import recorded
from tests.agents.streamvln.recordings import RUNS
from tests.agents.streamvln.tiny import END, tiny_images, write_tiny
from vlnbench.errors import UsageError

SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


@pytest.fixture
def copied(goldens: Path, tmp_path: Path) -> Path:
    """A writable copy of the recorded checkpoint."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(goldens / "checkpoint", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(call: Callable[[], object]) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(UsageError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    return message


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def test_loading_is_complete_and_changes_nothing(tmp_path: Path) -> None:
    written = write_tiny(tmp_path / "tiny")
    loaded = checkpoint.load(tmp_path / "tiny")
    assert not loaded.training
    for (name, one), other in zip(written.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, other), name
    images = [tiny_images(1)]
    torch.testing.assert_close(loaded([[1, -200, 2]], images).logits, written([[1, -200, 2]], images).logits)


def test_wanted_precision(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny")
    model = checkpoint.load(tmp_path / "tiny", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype is torch.float32
    logits = model([[1, -200, 2]], [tiny_images(1)]).logits
    assert logits.dtype is torch.bfloat16
    assert checkpoint.load(tmp_path / "tiny").dtype is torch.float32


@pytest.mark.parametrize("shard_size", ["5GB", 400_000])
def test_saved_checkpoint_has_the_same_tensors(goldens: Path, tmp_path: Path, shard_size: str | int) -> None:
    source = goldens / "checkpoint"
    model = checkpoint.load(source, vision_tower=goldens / "vision_tower")
    saved = tmp_path / "runs" / "saved"
    checkpoint.save(model, saved, source=source, shard_size=shard_size)
    before, after = all_tensors(source), all_tensors(saved)
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert (saved / "model.safetensors.index.json").is_file() == (shard_size != "5GB")
    assert not list(saved.parent.glob(".*"))
    for name in ("generation_config.json", *TOKENIZER_FILES):
        assert (saved / name).exists() == (source / name).exists()
        assert not (saved / name).exists() or (saved / name).read_bytes() == (source / name).read_bytes()
    again = checkpoint.load(saved)  # needs no folder with the tower's sizes any more
    assert again.config.vision == model.config.vision
    raw, was = json.loads((saved / "config.json").read_text()), json.loads((source / "config.json").read_text())
    changed = {"vision_config", "unfreeze_mm_vision_tower", "num_frames"}
    assert {key: value for key, value in raw.items() if key not in changed} == {
        key: value for key, value in was.items() if key not in changed
    }
    assert raw["num_frames"] == model.config.num_frames
    assert raw["unfreeze_mm_vision_tower"] is True  # or the original code would drop the tower's weights


def test_saving_over_something_is_refused(goldens: Path, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny")
    message = refusal(lambda: checkpoint.save(model, tmp_path / "tiny", source=goldens / "checkpoint"))
    assert "exists already" in message
    message = refusal(lambda: checkpoint.save(model, tmp_path / "new", source=tmp_path / "tiny"))
    assert "no tokenizer files" in message
    assert not (tmp_path / "new").exists()


def test_failed_saving_leaves_nothing(goldens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny(tmp_path / "tiny")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint.weights, "write", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(model, tmp_path / "new", source=goldens / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_wrong_keys_and_shapes_in_one_line(tmp_path: Path) -> None:
    model = write_tiny(tmp_path)
    tensors = model.state_dict()
    for name in [name for name in tensors if "vision_tower" in name]:
        del tensors[name]
    tensors["model.image_oldline"] = torch.zeros(32)
    tensors["model.norm.weight"] = torch.zeros(31)
    tensors["lm_head.weight"] = torch.zeros(50, 32, dtype=torch.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    message = refusal(lambda: checkpoint.load(tmp_path))
    assert "37 missing: model.vision_tower" in message
    assert "and 34 more" in message
    assert "1 unexpected: model.image_oldline" in message
    assert "1 misshapen: model.norm.weight [31] for [32]" in message
    assert "1 not floating-point: lm_head.weight" in message


def test_the_tensor_that_only_llava_video_uses_is_left_out(tmp_path: Path) -> None:
    model = write_tiny(tmp_path, mm_patch_merge_type="spatial_unpad")
    save_file({**model.state_dict(), "model.image_newline": torch.zeros(32)}, tmp_path / "model.safetensors")
    loaded = checkpoint.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    assert checkpoint.config_to_save(loaded)["mm_patch_merge_type"] == "flat"


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_shard_is_named(goldens: Path, copied: Path, keep: int) -> None:
    path = copied / SHARDS[1]
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:keep])
    message = refusal(lambda: checkpoint.load(copied, vision_tower=goldens / "vision_tower"))
    assert message.startswith(f"{path} is damaged")


def test_absent_shard_is_named(goldens: Path, copied: Path) -> None:
    (copied / SHARDS[2]).unlink()
    message = refusal(lambda: checkpoint.load(copied, vision_tower=goldens / "vision_tower"))
    assert message.startswith(f"{copied / SHARDS[2]} is missing")


def test_tensor_in_two_shards(goldens: Path, copied: Path) -> None:
    tensors = load_file(copied / SHARDS[2]) | {"model.norm.weight": torch.zeros(64)}
    save_file(tensors, copied / SHARDS[2])
    message = refusal(lambda: checkpoint.load(copied, vision_tower=goldens / "vision_tower"))
    assert f"model.norm.weight is in {SHARDS[0]} as well" in message


@pytest.mark.parametrize(
    "content", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {}}', "?"]
)
def test_broken_index(tmp_path: Path, content: str) -> None:
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in refusal(lambda: checkpoint.load(tmp_path))


def test_no_weights(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert "has no weights: expected model.safetensors" in refusal(lambda: checkpoint.load(tmp_path))
    assert "is not a checkpoint" in refusal(lambda: checkpoint.load(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "weights.pth"])
def test_pickles_only_where_trusted(tmp_path: Path, name: str) -> None:
    model = write_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / name)
    message = refusal(lambda: checkpoint.load(tmp_path))
    assert f"{tmp_path / name} is a pickle, which can run code" in message
    loaded = checkpoint.load(tmp_path, trust_pickle=True)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harm-was-done"),))


@pytest.mark.parametrize("content", [pickle.dumps(Harmful()), b"", b"\x80\x02N.", pickle.dumps({"a": 1})])
def test_trusted_pickle_still_holds_tensors_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    write_tiny(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    assert str(tmp_path / "pytorch_model.bin") in refusal(lambda: checkpoint.load(tmp_path, trust_pickle=True))
    assert not Path("harm-was-done").exists()


def test_generation_settings(goldens: Path, tmp_path: Path) -> None:
    known = generation_settings(goldens / "checkpoint")
    assert known == GenerationSettings(frozenset({902, 900}), 1.05, top_p=0.8)
    write_tiny(tmp_path)
    assert generation_settings(tmp_path) == GenerationSettings(frozenset({END}), 1.0)
    for wrong in ({}, {"eos_token_id": []}, {"eos_token_id": "a"}, {"eos_token_id": [True]}):
        (tmp_path / "generation_config.json").write_text(json.dumps(wrong))
        assert "eos_token_id: expected a token id" in refusal(lambda: generation_settings(tmp_path))
    for penalty in (0, -1, "a"):
        (tmp_path / "generation_config.json").write_text(
            json.dumps({"eos_token_id": 1, "repetition_penalty": penalty})
        )
        assert "repetition_penalty: expected a number" in refusal(lambda: generation_settings(tmp_path))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "top_p": 1.5}))
    assert "top_p: expected a share" in refusal(lambda: generation_settings(tmp_path))


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("no_repeat_ngram_size", 3, 0),
        ("num_beams", 4, 1),
        ("suppress_tokens", [5], []),
        ("begin_suppress_tokens", [5], None),
        ("min_new_tokens", 3, None),
        ("bad_words_ids", [[7]], None),
        ("forced_bos_token_id", 0, None),
        ("forced_eos_token_id", 1, None),
        ("encoder_repetition_penalty", 1.2, 1.0),
    ],
)
def test_what_would_change_greedy_answers_is_refused(
    tmp_path: Path, name: str, value: object, neutral: object
) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": 1, name: neutral}))
    assert generation_settings(tmp_path) == GenerationSettings(frozenset({1}))
    path.write_text(json.dumps({"eos_token_id": 1, name: value}))
    assert f"{path}: {name}: expected " in refusal(lambda: generation_settings(tmp_path))


@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.json and merges.txt"])
@pytest.mark.parametrize("run", RUNS)
def test_tokenizer_gives_the_recorded_ids(goldens: Path, copied: Path, files: str, run: str) -> None:
    for name in ("vocab.json", "merges.txt") if files == "tokenizer.json" else ("tokenizer.json",):
        (copied / name).unlink()
    tokenizer = checkpoint.load_tokenizer(copied)
    for episode in recorded(goldens, run):
        for turn in episode.steps:
            ids: list[int] = turn["input_ids"]
            user = turn["user_text"].replace("<memory>", "<image>").split("<image>")
            for text in user:
                part = tokenizer.encode(text, add_special_tokens=False)
                assert any(ids[at : at + len(part)] == part for at in range(len(ids)))


def test_tokenizer_of_another_folder(goldens: Path, copied: Path, tmp_path: Path) -> None:
    for name in TOKENIZER_FILES:
        (copied / name).unlink(missing_ok=True)
    message = refusal(lambda: checkpoint.load_tokenizer(copied))
    assert f"{copied} has no tokenizer files: give --tokenizer" in message
    assert "--tokenizer" in refusal(lambda: checkpoint.load_tokenizer(copied, tmp_path))
    loaded = checkpoint.load_tokenizer(copied, goldens / "checkpoint")
    assert loaded.encode("\n", add_special_tokens=False) == [checkpoint.NEWLINE]


def test_tokenizer_that_does_not_suit(copied: Path) -> None:
    edit(copied / "config.json", vocab_size=902)
    assert "the tokenizer has 903 entries, the model 902" in refusal(lambda: checkpoint.load_tokenizer(copied))
    edit(copied / "config.json", vocab_size=960)
    parsed = json.loads((copied / "tokenizer.json").read_text())
    vocabulary = parsed["model"]["vocab"]
    other = next(word for word, index in vocabulary.items() if index == 199)
    vocabulary["Ċ"], vocabulary[other] = 199, 198
    (copied / "tokenizer.json").write_text(json.dumps(parsed))
    assert "the newline must be token 198, as in Qwen2, not [199]" in refusal(
        lambda: checkpoint.load_tokenizer(copied)
    )


def test_hash_is_of_all_that_is_read(goldens: Path, copied: Path) -> None:
    source, tower = goldens / "checkpoint", goldens / "vision_tower"
    known = content_hash(checkpoint.read_files(source))
    assert content_hash(checkpoint.read_files(copied)) == known
    (copied / "README.md").write_text("not read")
    assert content_hash(checkpoint.read_files(copied)) == known
    hashes = {known, content_hash(checkpoint.read_files(source, vision_tower=tower))}
    for name in ("config.json", "generation_config.json", "tokenizer.json", SHARDS[0]):
        path = copied / name
        content = bytearray(path.read_bytes())
        content[-2] ^= 1
        path.unlink()
        path.write_bytes(content)
        hashes.add(content_hash(checkpoint.read_files(copied)))
    assert len(hashes) == 6


def test_hash_with_a_tokenizer_from_elsewhere(goldens: Path, copied: Path) -> None:
    for name in TOKENIZER_FILES:
        (copied / name).unlink(missing_ok=True)
    source = goldens / "checkpoint"
    files = checkpoint.read_files(copied, tokenizer=source)
    assert content_hash(files) == content_hash(checkpoint.read_files(source))
