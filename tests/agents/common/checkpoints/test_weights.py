from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from agents.common.checkpoints.weights import check_entries, fill, read_entries
from vlnbench.errors import UsageError


def small() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1)))


STATE = {
    "0.weight": torch.ones(3, 2),
    "0.bias": torch.ones(3),
    "1.0.weight": torch.ones(1, 3),
    "1.0.bias": torch.ones(1),
}


def load(folder: Path, state: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> nn.Module:
    path = folder / "model.safetensors"
    save_file(state, path)
    model = small()
    check_entries(read_entries([path]), model, folder)
    fill(model, [path], dtype, torch.device("cpu"))
    return model


@pytest.mark.parametrize(
    ("prefix", "inside"),
    [
        ("", ""),
        ("module.", ""),
        ("base_model.model.", ""),
        ("_orig_mod.", ""),
        ("module._orig_mod.", ""),
        ("module.base_model.model.", ""),
        ("", "_orig_mod."),
        ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module."),
    ],
)
def test_what_wrappers_add_to_names_is_taken_away_with_a_line(
    tmp_path: Path, prefix: str, inside: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {prefix + name.replace("1.0.", f"1.{inside}0."): each for name, each in STATE.items()}
    model = load(tmp_path, state)
    assert all(bool((each == 1).all()) for each in model.parameters())
    said = capsys.readouterr().err
    assert ("names are read without what a wrapper added" in said) == bool(prefix or inside)
    assert said.count("\n") <= 1


def test_a_prefix_that_not_all_names_have_is_not_taken_away(tmp_path: Path) -> None:
    state = {("module." if name == "0.weight" else "") + name: each for name, each in STATE.items()}
    with pytest.raises(UsageError, match=r"1 missing: 0\.weight; 1 unexpected: module\.0\.weight"):
        load(tmp_path, state)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path, broken: float) -> None:
    weight = STATE["1.0.weight"].clone()
    weight[0, 1] = broken
    with pytest.raises(UsageError, match=r"model\.safetensors: 1\.0\.weight holds numbers that are not finite$"):
        load(tmp_path, STATE | {"1.0.weight": weight})


def test_weights_that_a_narrow_type_cannot_hold_are_refused(tmp_path: Path) -> None:
    state = STATE | {"0.bias": torch.full((3,), 1e6)}
    load(tmp_path, state, torch.bfloat16)
    with pytest.raises(UsageError, match=r"0\.bias holds .* not finite as torch\.float16; choose another"):
        load(tmp_path, state, torch.float16)
