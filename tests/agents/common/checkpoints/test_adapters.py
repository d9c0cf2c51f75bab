"""Adapters merge as PEFT merges them; what is not merged here is refused by its field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agents.common.checkpoints.hashes import content_hash
from agents.common.checkpoints.tied import EMBEDDINGS, HEAD, tied_name
from agents.common.checkpoints.weights import SINGLE, check_entries, fill, read_entries, weight_files
from vlnbench.errors import UsageError
from vlnbench.training.family.sources import joined

peft = pytest.importorskip("peft")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.second(self.first(self.words(ids))))
        return found


def write(folder: Path, **settings: Any) -> Tensor:
    """A base, adapters over it by PEFT, and what the two answer."""
    torch.manual_seed(0)
    base = Small()
    (folder / "base").mkdir()
    save_file(base.state_dict(), folder / "base" / SINGLE)
    chosen: dict[str, Any] = {"target_modules": ["first", "second"], "r": 2, "lora_alpha": 6, **settings}
    adapted = peft.get_peft_model(base, peft.LoraConfig(**chosen))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter)
    adapted.save_pretrained(folder / "lora")
    found: Tensor = adapted.eval()(torch.arange(7)).detach()
    return found


def read(folder: Path) -> nn.Module:
    whole = joined(folder / "base", folder / "lora")
    paths = weight_files(whole)
    with torch.device("meta"):
        model = Small()
    check_entries(read_entries(paths), model, whole)
    fill(model, paths, torch.float32, torch.device("cpu"))
    return model


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "rank-stabilized": {"use_rslora": True},
    "ranks of their own": {"rank_pattern": {"first": 3}, "alpha_pattern": {"second": 1}},
    "patterns": {"alpha_pattern": {".*second": 2, "^(first|second)": 1}},
    "embeddings": {"target_modules": ["words", "second"]},
    "a head trained whole": {"modules_to_save": ["head"]},
    "biases": {"bias": "all"},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_they_merge_as_in_peft(tmp_path: Path, name: str) -> None:
    expected = write(tmp_path, **SETTINGS[name])
    assert torch.allclose(read(tmp_path)(torch.arange(7)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"peft_type": "IA3"}, r'adapter_config.json: peft_type: expected "LORA", found "IA3"'),
        ({"use_dora": True}, "use_dora: expected false"),
        ({"alora_invocation_tokens": [1, 2]}, r"adapter_config.json: alora_invocation_tokens: expected nothing"),
        ({"layer_replication": [[0, 1], [0, 1]]}, r"layer_replication: expected nothing, for such adapters"),
        ({"use_qalora": True}, "use_qalora: expected nothing, .* found true"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: expected a start that leaves the base as it is"),
        ({"lora_alpha": None}, "lora_alpha: expected a number"),
        ({"alpha_pattern": ["first"]}, "alpha_pattern: expected an object"),
        ({"alpha_pattern": {"first(": 1}}, r"adapter_config.json: alpha_pattern: expected names or regular"),
    ],
)
def test_what_is_not_merged_is_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    write(tmp_path)
    path = tmp_path / "lora" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UsageError, match=expected):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base_model.model.first.lora_A.weight", r"adapts first\.weight \[6, 9\], the base has \[6, 4\]"),
        ("base_model.model.other.weight", r"adapts other\.weight \[2, 9\], the base has no such weight"),
        ("base_model.model.third.lora_A.weight", "third: expected lora_A and lora_B of one rank"),
        ("base_model.model.head.bias", r"adapts head\.bias \[2, 9\] with whole numbers, the base has \[3\]"),
    ],
)
def test_adapters_of_another_base_are_refused(tmp_path: Path, name: str, expected: str) -> None:
    write(tmp_path)
    path = tmp_path / "lora" / "adapter_model.safetensors"
    kind = torch.int32 if "bias" in name else torch.float32
    save_file(load_file(path) | {name: torch.ones(2, 9, dtype=kind)}, path)
    with pytest.raises(UsageError, match=expected):
        read(tmp_path)


A, B = torch.arange(8.0).view(2, 4), torch.arange(14.0).view(7, 2)
TOP = {"lm_head.lora_A.weight": A, "lm_head.lora_B.weight": B}
WORDS = {
    "model.embed_tokens.lora_embedding_A": B.T.contiguous(),
    "model.embed_tokens.lora_embedding_B": A.T.contiguous(),
}
WHOLE = {name: torch.ones(7, 4) for name in (HEAD, EMBEDDINGS)}
COPY = {EMBEDDINGS: torch.ones(7, 4)}


@pytest.mark.parametrize(
    ("tensors", "saved", "kept"),
    [
        (TOP, None, False),
        (TOP | WORDS, None, True),
        (TOP | WORDS | {"lm_head.lora_B.weight": B + 1}, None, False),
        (TOP | COPY, None, False),
        ({HEAD: torch.ones(7, 4)}, ["lm_head"], False),
        (WHOLE, ["embed_tokens", "lm_head"], True),
        (WHOLE | {HEAD: torch.zeros(7, 4)}, ["embed_tokens", "lm_head"], False),
        (WORDS, None, False),
        (WORDS | COPY, None, False),
        (COPY, ["embed_tokens"], False),
        (COPY, None, True),
    ],
)
def test_a_tied_head_is_adapted_as_its_embeddings_or_both_are_not(
    tmp_path: Path, tensors: dict[str, Tensor], saved: list[str] | None, kept: bool
) -> None:
    """PEFT adapts either alone, and parts the two; it saves embeddings whole, too, where rows were added."""
    write(tmp_path)
    save_file({EMBEDDINGS: torch.zeros(7, 4)}, tmp_path / "base" / SINGLE)
    named = {f"base_model.model.{name}": each for name, each in tensors.items()}
    save_file(named, tmp_path / "lora" / "adapter_model.safetensors")
    path = tmp_path / "lora" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"modules_to_save": saved}))
    paths = weight_files(joined(tmp_path / "base", tmp_path / "lora"))
    expected = r"adapts lm_head\.weight otherwise than model\.embed_tokens\.weight, .* untie and merge them with"
    with nullcontext() if kept else pytest.raises(UsageError, match=expected):
        read_entries(paths, named=tied_name(True))


@pytest.mark.parametrize(
    ("name", "merged"), [("vit.safetensors", False), ("optimizer.bin", True), ("model.safetensors", True)]
)
def test_weights_beside_them_that_are_not_merged_are_refused(tmp_path: Path, name: str, merged: bool) -> None:
    """Some trainers save there what trained whole; others what they go on with, or the merged model."""
    write(tmp_path)
    save_file({"second.weight": torch.ones(5, 6)}, tmp_path / "lora" / name)
    with nullcontext() if merged else pytest.raises(UsageError, match=rf"lora: {name} is not merged with"):
        read(tmp_path)


def test_numbers_that_are_not_finite_are_theirs(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "lora" / "adapter_model.safetensors"
    save_file({name: each * torch.nan for name, each in load_file(path).items()}, path)
    with pytest.raises(UsageError, match=r"adapter_model.safetensors: first.weight holds numbers that are not"):
        read(tmp_path)


def test_the_hash_is_of_their_settings_too(tmp_path: Path) -> None:
    write(tmp_path)
    whole = joined(tmp_path / "base", tmp_path / "lora")
    before = content_hash(weight_files(whole))
    path = tmp_path / "lora" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_alpha": 7}))
    assert content_hash(weight_files(whole)) != before


def test_a_tokenizer_is_never_of_two_halves(tmp_path: Path) -> None:
    write(tmp_path)
    for place, name in (("base", "vocab.json"), ("base", "merges.txt"), ("lora", "tokenizer.json")):
        (tmp_path / place / name).write_text("{}")
    names = {path.name for path in joined(tmp_path / "base", tmp_path / "lora").iterdir()}
    assert names == {SINGLE, "tokenizer.json", ".base", ".adapters"}
