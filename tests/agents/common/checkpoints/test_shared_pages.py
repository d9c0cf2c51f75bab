"""Weights in the checkpoint's own precision are pages of its files, which processes of a machine share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from agents.common.checkpoints.weights import fill

SIZE = 2**26
"""Bytes of the weights."""


def own_bytes() -> int:
    """Memory that is this process's alone."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


@pytest.mark.parametrize(("dtype", "own"), [(torch.bfloat16, False), (torch.float32, True)])
def test_processes_share_what_they_load(dtype: torch.dtype, own: bool, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(SIZE // 2 // 1024, 1024, dtype=torch.bfloat16)}, file)
    with torch.device("meta"):
        model = nn.Linear(1024, SIZE // 2 // 1024, bias=False)
    before = own_bytes()
    fill(model, [file], dtype, torch.device("cpu"))
    taken = own_bytes() - before
    assert float(model.weight.detach().sum()) == SIZE / 2
    assert taken > SIZE if own else taken < SIZE / 4
