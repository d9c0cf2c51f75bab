"""The same weights as others save them give the same logits, whatever the family."""

from __future__ import annotations

import json
import shutil
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agents.common.checkpoints.weights import INDEX, SINGLE
from agents.janusvln import network as janusvln
from agents.navila import network as navila
from agents.qwen_vl import network as qwen_vl
from agents.streamvln import network as streamvln
from agents.table import FAMILIES as LISTED
from agents.uninavid import network as uninavid
from agents.vlnce import checkpoint as vlnce
from vlnbench.errors import UsageError
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.find import get_family
from vlnbench.training.family.sources import find_checkpoint

State = dict[str, Tensor]
LANGUAGE: Mapping[str, Any] = {
    "streamvln": streamvln,
    "qwen_vl": qwen_vl,
    "janusvln": janusvln,
    "navila": navila,
    "uninavid": uninavid,
}
PARTS = {"navila": "llm"}
"""The folder of language models that lie in one of their own."""
WHOLE = [name for name in LANGUAGE if name not in PARTS]
TIED = [name for name in LANGUAGE if name != "uninavid"]
FAMILIES = (*LANGUAGE, "vlnce")
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Made:
    """A small checkpoint of a family, its numbers, and what a model of it answers."""

    def __init__(self, family: str, folder: Path) -> None:
        self.family, self.folder = family, folder
        spec, source = get_family(family), Source("checkpoint", str(folder), folder)
        checkpoints, plans = spec.load_checkpoints(), spec.load_plans()
        assert plans is not None
        checkpoints.create(spec.presets[0], folder, ["Go to the red chair."], 0)
        options = checkpoints.settled(source, spec.check_plannable()(model=str(folder), batch=1))
        self._batch = plans.probe(checkpoints.config(source, options), options, "cpu").batch
        self.state = load_file(self.part(folder) / SINGLE)
        self.logits = self.read(folder)

    def part(self, folder: Path) -> Path:
        """Where the weights are that are saved otherwise."""
        return folder / PARTS.get(self.family, ".")

    def read(self, folder: Path, trust_pickle: bool = False) -> Tensor:
        """What a model of the folder answers to the family's probe; of CMA all its numbers, in order."""
        folder = folder.parent if folder.name == PARTS.get(self.family) else folder
        if self.family not in LANGUAGE:
            state = vlnce.load(folder)[0].state_dict()
            return torch.cat([state[name].flatten().float() for name in sorted(state)])
        model = LANGUAGE[self.family].load(folder, trust_pickle=trust_pickle)
        with torch.no_grad():
            found: Tensor = model(**self._batch, at_labels=True).logits
        return found.float()


def test_every_family_is_tried() -> None:
    assert set(FAMILIES) == set(LISTED)


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp(request.param) / "base")


def save(folder: Path, state: State) -> None:
    save_file({name: each.clone() for name, each in state.items()}, folder / SINGLE)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def shards(folder: Path, state: State) -> None:
    (folder / SINGLE).unlink()
    names = sorted(state)
    places = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: state[name] for name in names if places[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def single_and_index(folder: Path, state: State) -> None:
    (folder / INDEX).write_text(
        json.dumps({"weight_map": dict.fromkeys(state, "model-00001-of-00001.safetensors")})
    )
    save_file({name: each + 1 for name, each in state.items()}, folder / "model-00001-of-00001.safetensors")


def prefixed(prefix: str) -> Callable[[Path, State], None]:
    return lambda folder, state: save(folder, {prefix + name: each for name, each in state.items()})


def tables(folder: Path, state: State) -> None:
    older = ("model.layers.0.self_attn.rotary_emb.inv_freq", "model.vision_tower.embeddings.position_ids")
    save(folder, state | dict.fromkeys(older, torch.arange(4)) | {"net.bn.num_batches_tracked": torch.tensor(7)})


def of_trainers(folder: Path, state: State) -> None:
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin", "trainer_state.json"):
        (folder / name).write_bytes(b"no weights")


def of_macos(folder: Path, state: State) -> None:
    for path in list(folder.iterdir()):
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
    (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")


def second_set(name: str) -> Callable[[Path, State], None]:
    return lambda folder, state: torch.save({key: each + 1 for key, each in state.items()}, folder / name)


def marked(folder: Path, state: State) -> None:
    for path in folder.glob("*.json"):
        path.write_bytes(BOM_UTF8 + path.read_bytes())


VARIANTS: dict[str, Callable[[Path, State], None]] = {
    "shards": shards,
    "one file and an index of others": single_and_index,
    "module.": prefixed("module."),
    "_orig_mod.": prefixed("_orig_mod."),
    "base_model.model.": prefixed("base_model.model."),
    "tables of older versions": tables,
    "files of trainers": of_trainers,
    "files of macOS": of_macos,
    "a second set": second_set("pytorch_model.bin"),
    "a second set of another name": second_set("weights.pth"),
    "byte order marks": marked,
}


ONCE = {"_orig_mod.", "base_model.model.", "files of trainers", "files of macOS", "a second set of another name"}
"""Variants that no family reads in a way of its own."""


@pytest.mark.parametrize(
    ("made", "variant"),
    [
        pytest.param(family, variant, marks=[pytest.mark.slow] * (variant in ONCE and family != FAMILIES[0]))
        for family in FAMILIES
        for variant in VARIANTS
    ],
    indirect=["made"],
)
def test_logits_are_the_same(made: Made, variant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "saved"
    shutil.copytree(made.folder, folder)
    VARIANTS[variant](made.part(folder), made.state)
    assert torch.equal(made.read(folder), made.logits)
    said = capsys.readouterr().err
    assert ("weights are read from model.safetensors, as transformers does, not from" in said) == (
        "second" in variant or "index" in variant
    )


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Path:
    shutil.copytree(made.folder, tmp_path / "saved")
    return made.part(tmp_path / "saved")


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_narrow_numbers_are_read(made: Made, copied: Path, dtype: torch.dtype) -> None:
    narrow = {name: each.to(dtype) if each.is_floating_point() else each for name, each in made.state.items()}
    save(copied, narrow)
    found = made.read(copied)
    save(copied, {name: each.to(made.state[name].dtype) for name, each in narrow.items()})
    assert torch.equal(made.read(copied), found)


def test_a_file_that_git_has_not_fetched_is_named(made: Made, copied: Path) -> None:
    for name in (SINGLE, "config.json"):
        (copied / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        with pytest.raises(UsageError, match=rf"{name} is a pointer of Git LFS, .* git lfs pull"):
            made.read(copied)


def nested(raw: dict[str, Any], own: tuple[str, ...]) -> dict[str, Any]:
    """config.json's language model in a place of its own, as transformers 4.52 and later have it."""
    outer = {name: raw[name] for name in (*own, "vision_config", "image_token_id", "lam") if name in raw}
    inner = {name: value for name, value in raw.items() if name not in outer}
    return outer | {"text_config": inner | {"model_type": "qwen2_5_vl_text", "dtype": "bfloat16"}}


def since_5(raw: dict[str, Any]) -> None:
    """As transformers 5.24 writes it."""
    raw["dtype"] = raw.pop("torch_dtype")
    scaling = raw.pop("rope_scaling", None) or {}
    raw["rope_parameters"] = {**scaling, "rope_type": "default", "rope_theta": raw.pop("rope_theta", 1e4)}
    if "vision_config" in raw and "text_config" not in raw and raw["model_type"] == "qwen2_5_vl":
        whole = nested(raw, ("model_type", "architectures", "tie_word_embeddings", "dtype"))
        raw.clear()
        raw.update(whole)


def since_4_52(raw: dict[str, Any]) -> None:
    """As transformers 4.57 writes it: twice, of which the type inside is the base's, and what is tied inside."""
    raw["dtype"] = raw.pop("torch_dtype")
    if raw["model_type"] == "qwen2_5_vl":
        inner = nested(raw, ("model_type", "architectures"))["text_config"]
        tied = {} if raw.pop("tie_word_embeddings") else {"tie_word_embeddings": False}
        raw.update(tied | {"text_config": inner})


@pytest.mark.parametrize("change", [since_5, since_4_52])
@pytest.mark.parametrize("made", LANGUAGE, indirect=True)
def test_configurations_of_newer_transformers_are_read(
    made: Made, copied: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    edit(copied / "config.json", change)
    assert torch.equal(made.read(copied), made.logits)


@pytest.mark.parametrize("made", LANGUAGE, indirect=True)
def test_pickles_are_read_where_they_are_trusted(made: Made, copied: Path) -> None:
    (copied / SINGLE).unlink()
    for count, name in enumerate(("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")):
        torch.save({key: made.state[key] for key in sorted(made.state)[count::2]}, copied / name)
    of_trainers(copied, made.state)
    with pytest.raises(UsageError, match="is a pickle, which can run code"):
        made.read(copied)
    assert torch.equal(made.read(copied, trust_pickle=True), made.logits)
    torch.save(made.state, copied / "pytorch_model.bin")
    assert torch.equal(made.read(copied, trust_pickle=True), made.logits)


@pytest.mark.parametrize("made", ["qwen_vl", "janusvln"], indirect=True)
def test_nested_names_are_read(made: Made, copied: Path) -> None:
    def renamed(name: str) -> str:
        if name.startswith("model."):
            return f"model.language_{name}"
        return f"model.{name}" if name.startswith("visual.") else name

    save(copied, {renamed(name): each for name, each in made.state.items()})
    assert torch.equal(made.read(copied), made.logits)


@pytest.mark.parametrize("made", TIED, indirect=True)
def test_heads_that_are_tied_to_embeddings(made: Made, copied: Path) -> None:
    """Whether the file holds both, only one, or both with unlike numbers."""
    edit(copied / "config.json", lambda raw: raw.update(tie_word_embeddings=True))
    embeddings = made.state[EMBEDDINGS]
    rest = {name: each for name, each in made.state.items() if name not in (EMBEDDINGS, HEAD)}
    save(copied, rest | {EMBEDDINGS: embeddings, HEAD: embeddings})
    expected = made.read(copied)
    save(copied, rest | {EMBEDDINGS: embeddings})
    assert torch.equal(made.read(copied), expected)
    save(copied, rest | {HEAD: embeddings})
    assert torch.equal(made.read(copied), expected)
    save(copied, rest | {EMBEDDINGS: embeddings, HEAD: embeddings + 1})
    with pytest.raises(UsageError, match=r"with other numbers, as .*; tie_word_embeddings is true"):
        made.read(copied)


def adapters(folder: Path, state: State, base: Path, part: str = "") -> None:
    """Adapters in a folder, in PEFT's layout, that make of a base or a part of it what `state` is."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    found, changed = {}, dict(state)
    for name in [name for name in state if name.endswith(("self_attn.q_proj.weight", "mlp.up_proj.weight"))]:
        rows, columns = state[name].shape
        first, second = (torch.randn(*size, generator=generator) for size in ((2, columns), (rows, 2)))
        module = f"base_model.model.{part}{name.removesuffix('.weight')}"
        found |= {f"{module}.lora_A.weight": first, f"{module}.lora_B.weight": second}
        changed[name] = state[name] - 4 / 2 * second @ first
    save_file(found, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    save(base, changed)


@pytest.mark.parametrize("made", FAMILIES, indirect=True)
def test_folders_with_a_configuration_and_no_weights(
    made: Made, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "adapter_config.json").write_text("{}")
    assert torch.equal(made.read(copied), made.logits)
    assert "adapters beside the weights are not merged" in capsys.readouterr().err
    (copied / SINGLE).unlink()
    for name, line in (("adapter_config.json", "holds adapters, not a"), ("zero_to_fp32.py", "DeepSpeed resumes")):
        (copied / "adapter_config.json").unlink(missing_ok=True)
        (copied / name).write_text("{}")
        with pytest.raises(UsageError, match=line):
            made.read(copied)


@pytest.mark.parametrize("made", PARTS, indirect=True)
def test_adapters_of_a_part_begin_with_its_name(made: Made, copied: Path, tmp_path: Path) -> None:
    for number, part in enumerate((f"{copied.name}.", "other.")):
        own = tmp_path / f"lora-{number}"
        adapters(own, made.state, copied, part)
        assert not torch.allclose(made.read(copied), made.logits, atol=1e-2)
        joined = find_checkpoint(f"{copied.parent}+{own}", get_family(made.family))
        if number:
            with pytest.raises(UsageError, match=r"other\..*: expected the name of a part before it"):
                made.read(joined)
        else:
            assert torch.allclose(made.read(joined), made.logits, atol=1e-3)


@pytest.mark.parametrize("made", WHOLE, indirect=True)
def test_adapters_are_merged_into_their_base(made: Made, copied: Path, tmp_path: Path) -> None:
    own = tmp_path / "lora"
    adapters(own, made.state, copied)
    assert not torch.allclose(made.read(copied), made.logits, atol=1e-2)
    with pytest.raises(UsageError, match=f"holds adapters, .* --checkpoint {copied}\\+{own}"):
        made.read(own)
    joined = find_checkpoint(f"{copied}+{own}", get_family(made.family))
    assert torch.allclose(made.read(joined), made.logits, atol=1e-3)


def test_weights_that_llava_trains_whole_take_the_place_of_the_base_s(tmp_path: Path) -> None:
    made = Made("streamvln", tmp_path / "made")
    base, own = tmp_path / "base", tmp_path / "lora"
    shutil.copytree(made.folder, base)
    projector = {name: each for name, each in made.state.items() if "mm_projector" in name}
    adapters(own, made.state | {name: each + 1 for name, each in projector.items()}, base)
    shutil.copy(made.folder / "config.json", own)
    torch.save(
        {f"base_model.model.{name}": each for name, each in projector.items()}, own / "non_lora_trainables.bin"
    )
    edit(base / "config.json", lambda raw: raw.update(hidden_act="gelu"))  # the adapters' own is read
    joined = find_checkpoint(f"{base}+{own}")
    with pytest.raises(UsageError, match=r"non_lora_trainables.bin is a pickle"):
        made.read(joined)
    assert torch.allclose(made.read(joined, trust_pickle=True), made.logits, atol=1e-3)
