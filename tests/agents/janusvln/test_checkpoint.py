"""Checkpoint folders: what is read from one, what is refused in a line, and writing one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agents.common.checkpoints.files import GenerationSettings
from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.tokenizer import TOKENIZER_FILES
from agents.common.checkpoints.versions import check_transformers
from agents.common.qwen2_5_vl import checkpoint
from agents.common.qwen2_5_vl.tokens import generation_settings
from agents.common.towers.geometry_sizes import GeometrySizes
from agents.common.towers.vggt_sizes import geometry_sizes
from agents.janusvln.network import JanusVLN, load, parse_config, read_config
from tests.agents.janusvln.tiny import END, SIZES, tiny_model, tiny_raw, write_tiny, write_tokenizer
from vlnbench.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_checkpoint_is_read_as_written(folder: Path) -> None:
    known = dict(tiny_model().named_parameters())
    model = load(folder)
    assert model.vggt.aggregator.sizes == SIZES
    assert not model.training
    found = dict(model.named_parameters())
    assert list(found) == list(known)
    assert all(torch.equal(found[name], known[name]) for name in known)
    assert all(found[name].requires_grad != name.startswith("vggt.") for name in found)
    assert load(folder, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_the_recorded_checkpoint_has_exactly_our_names(goldens: Path, recorded_model: JanusVLN) -> None:
    traced = json.loads((goldens / "traces.json").read_text())
    known = dict(zip(traced["training"]["parameter_names"], traced["training"]["parameter_numel"], strict=True))
    assert {name: parameter.numel() for name, parameter in recorded_model.named_parameters()} == known
    geometry, sizes = traced["meta"]["vggt_geometry"], recorded_model.vggt.aggregator.sizes
    assert (sizes.width, sizes.depth, sizes.heads) == tuple(
        geometry[name] for name in ("embed_dim", "depth", "num_heads")
    )
    assert (sizes.dino_depth, sizes.head_width) == (geometry["dino_depth"], geometry["dpt_features"])


def test_the_published_model_has_2068_tensors_and_its_parts_their_sizes() -> None:
    """Sizes of Qwen2.5-VL-7B and VGGT-1B; the counts are those of the released checkpoint."""
    raw = tiny_raw(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        vggt_merger_hidden_dim=4096,
        vision_config={"hidden_size": 1280, "out_hidden_size": 3584},
    )
    sizes = GeometrySizes(1024, 4096, 24, 16, 4, 4096, 24, 4, 37, 256, (256, 512, 1024, 1024))
    with torch.device("meta"):
        model = JanusVLN(parse_config(raw, "config.json"), sizes)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert len(shapes) == 2068
    counts = {
        "visual.merger.": 44_574_464,
        "vggt.aggregator.": 909_112_320,
        "merger.": 48_244_224,
        "lm_head.": 544_997_376,
        "model.": 7_070_619_136,
        "": 9_314_832_390,
    }
    for prefix, count in counts.items():
        found = sum(p.numel() for name, p in model.named_parameters() if name.startswith(prefix))
        assert found == count, prefix
    assert geometry_sizes(shapes, "") == sizes


BROKEN: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (
        lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"),
        "1 missing: model.layers.1.mlp.up_proj.weight",
    ),
    "extra": (
        lambda tensors: tensors.update({"visual.blocks.7.norm1.weight": torch.ones(16)}),
        "1 unexpected: visual.blocks.7.norm1.weight",
    ),
    "misshapen": (
        lambda tensors: tensors.update({"merger.mlp.2.bias": torch.ones(17)}),
        "1 misshapen: merger.mlp.2.bias [17] for [16]",
    ),
    "integers": (
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(16, dtype=torch.int32)}),
        "1 not floating-point: model.norm.weight",
    ),
    "no geometry": (
        lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("vggt.")],
        "the weights are not those of JanusVLN: 1 missing: vggt.aggregator.camera_token",
    ),
    "a block less": (
        lambda tensors: [tensors.pop(name) for name in list(tensors) if ".global_blocks.2." in name],
        "18 missing: vggt.aggregator.global_blocks.2",
    ),
    "one block": (
        lambda tensors: [
            tensors.pop(name) for name in list(tensors) if "blocks.1." in name or "blocks.2." in name
        ],
        "vggt.aggregator has 1 frame blocks: expected 2 or more (the last is not used)",
    ),
    "no head": (
        lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("vggt.point_head.")],
        "62 missing: vggt.point_head.norm.weight",
    ),
    "flat geometry": (
        lambda tensors: tensors.update({"vggt.aggregator.camera_token": torch.ones(16)}),
        "vggt.aggregator.camera_token has shape [16]: expected 4 sizes above 0",
    ),
    "no square": (
        lambda tensors: tensors.update({"vggt.aggregator.patch_embed.pos_embed": torch.ones(1, 12, 16)}),
        "pos_embed: expected 1 + a square of entries",
    ),
    "odd heads": (
        lambda tensors: tensors.update({"vggt.aggregator.frame_blocks.0.attn.q_norm.weight": torch.ones(6)}),
        "heads of 6 do not fit a width of 16",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_weights_that_do_not_fit_are_named(folder: Path, name: str) -> None:
    change, expected = BROKEN[name]
    rewrite(folder, change)
    message = refusal(lambda: load(folder))
    assert expected in message
    assert str(folder) in message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "qwen2_vl"}, 'model_type: expected "qwen2_5_vl" (a JanusVLN checkpoint)'),
        ({"architectures": ["Qwen2_5_VLForConditionalGeneration"]}, "architectures: expected"),
        ({"lam": None}, "lam: expected a number from 0 to 1e30, found null"),
        ({"hidden_size": 18}, "hidden_size: expected an even multiple of num_attention_heads (2)"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor"),
        ({"rope_scaling": None}, "rope_scaling: expected an object with mrope_section"),
        ({"rope_scaling": {"mrope_section": [1, 1, 1]}}, "mrope_section: expected three numbers with sum 4"),
        ({"rope_scaling": {"type": "yarn", "mrope_section": [1, 1, 2]}}, 'type: expected "default" or "mrope"'),
        ({"reference_frame": "last"}, 'reference_frame: expected "first", found "last"'),
        ({"add_ground_classifier": True}, "add_ground_classifier: expected false"),
        ({"vision_config": None}, "vision_config: expected an object"),
        (
            {"vision_config": {"hidden_size": 16, "patch_size": 16}},
            "vision_config: patch_size: expected 14, found 16",
        ),
        (
            {"vision_config": {"hidden_size": 16, "out_hidden_size": 16, "num_heads": 2, "window_size": 50}},
            "window_size: expected a multiple of 28 pixels",
        ),
        (
            {"vision_config": {"hidden_size": 16, "out_hidden_size": 16, "num_heads": 2, "depth": 2}},
            "fullatt_block_indexes: expected a list of numbers from 0 to 1",
        ),
        ({"torch_dtype": "int8"}, 'torch_dtype: expected "float32" or "bfloat16" or "float16"'),
    ],
)
def test_a_config_that_does_not_fit_is_named(folder: Path, changes: dict[str, Any], expected: str) -> None:
    (folder / "config.json").write_text(json.dumps(tiny_raw(**changes)))
    message = refusal(lambda: load(folder))
    assert expected in message
    assert "config.json" in message


def test_files_that_are_damaged_or_absent_are_named(folder: Path, tmp_path: Path) -> None:
    assert "is not a checkpoint" in refusal(lambda: load(tmp_path))
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[:1000], whole[:-8], b"", whole[:8] + b"}" * 100 + whole[108:]):
        weights.write_bytes(content)
        message = refusal(lambda: load(folder))
        assert f"{weights} is damaged" in message
    weights.rename(folder / "pytorch_model.bin")
    assert "is a pickle, which can run code" in refusal(lambda: load(folder))
    (folder / "config.json").write_text("{")
    assert "config.json cannot be read as JSON" in refusal(lambda: load(folder))


def test_tokenizers_that_do_not_fit_are_named(folder: Path, tmp_path: Path) -> None:
    config = read_config(folder)
    assert len(checkpoint.load_tokenizer(folder, config)) == 262
    settings = json.loads((folder / "tokenizer.json").read_text())
    (folder / "config.json").write_text(json.dumps(tiny_raw(image_token_id=260)))
    message = refusal(lambda: checkpoint.load_tokenizer(folder, read_config(folder)))
    assert "<|image_pad|> is token 261" in message
    (folder / "config.json").write_text(json.dumps(tiny_raw(vocab_size=261)))
    message = refusal(lambda: checkpoint.load_tokenizer(folder, read_config(folder)))
    assert "the tokenizer has 262 entries, the model 261" in message
    settings["added_tokens"] = [entry for entry in settings["added_tokens"] if "vision" not in entry["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    assert "has no token '<|vision_start|>'" in refusal(lambda: checkpoint.load_tokenizer(folder, config))
    for name in TOKENIZER_FILES:
        (folder / name).unlink(missing_ok=True)
    message = refusal(lambda: checkpoint.load_tokenizer(folder, config))
    assert f"{folder} has no tokenizer files: give --tokenizer" in message
    lender = tmp_path / "lender"
    lender.mkdir()
    assert "--tokenizer" in refusal(lambda: checkpoint.load_tokenizer(folder, config, lender))
    write_tokenizer(lender)
    assert len(checkpoint.load_tokenizer(folder, config, lender)) == 262


def test_answers_end_with_a_block_and_the_penalty_holds(folder: Path) -> None:
    """generation_config.json names a second end, which the published evaluation does not use."""
    tokenizer = checkpoint.load_tokenizer(folder, read_config(folder))
    assert generation_settings(folder, tokenizer) == GenerationSettings(frozenset({END}), 1.05)
    (folder / "generation_config.json").unlink()
    assert generation_settings(folder, tokenizer) == GenerationSettings(frozenset({END}), 1.0)


@pytest.mark.parametrize("version", ["5.1.0", "5.4.0", "5.5.0", "5.5.3", "5.5.2.dev0"])
def test_versions_with_wrong_positions_are_refused(version: str) -> None:
    message = refusal(lambda: check_transformers(version))
    assert f"transformers {version} gives the images of Qwen2.5-VL wrong positions" in message


@pytest.mark.parametrize(
    "version", ["4.51.0", "4.57.1", "5.0.0", "5.1.1", "5.2.0", "5.3.9", "5.5.4", "5.6.0", "5.23.0"]
)
def test_other_versions_are_not(version: str) -> None:
    check_transformers(version)


def test_saved_is_loaded_and_the_same(folder: Path, tmp_path: Path) -> None:
    model = load(folder)
    target = tmp_path / "saved"
    checkpoint.save(model, target, source=folder, shard_size="20KB")
    assert len(list(target.glob("*.safetensors"))) > 1
    again = dict(load(target).named_parameters())
    assert all(torch.equal(parameter, again[name]) for name, parameter in model.named_parameters())
    assert json.loads((target / "config.json").read_text()) == json.loads((folder / "config.json").read_text())
    assert (target / "generation_config.json").read_bytes() == (folder / "generation_config.json").read_bytes()
    assert "exists already" in refusal(lambda: checkpoint.save(model, target, source=folder))
    half = load(folder, dtype=torch.bfloat16)
    checkpoint.save(half, tmp_path / "half", source=folder)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_recorded_checkpoint_is_saved_under_its_names(
    goldens: Path, recorded_model: JanusVLN, tmp_path: Path
) -> None:
    source = goldens / "checkpoint"
    checkpoint.save(recorded_model, tmp_path / "saved", source=source)
    known: dict[str, Tensor] = {}
    for path in source.glob("*.safetensors"):
        known |= load_file(path)
    found = load_file(tmp_path / "saved" / "model.safetensors")
    assert found.keys() == known.keys()
    assert all(torch.equal(found[name], known[name]) for name in known)
    names = {path.name for path in source.iterdir() if path.suffix != ".safetensors"} - {
        "model.safetensors.index.json"
    }
    assert names <= {path.name for path in (tmp_path / "saved").iterdir()}
    assert json.loads((tmp_path / "saved" / "config.json").read_text()) == json.loads(
        (source / "config.json").read_text()
    )


def test_the_hash_changes_with_every_file_that_is_read(folder: Path, tmp_path: Path) -> None:
    hashes = {content_hash(checkpoint.read_files(folder))}
    for name in ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json"):
        with (folder / name).open("ab") as file:
            file.write(b" ")
        hashes.add(content_hash(checkpoint.read_files(folder)))
    assert len(hashes) == 5
    (folder / "README.md").write_text("unread")
    assert content_hash(checkpoint.read_files(folder)) in hashes
