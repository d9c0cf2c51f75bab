"""Seconds by phase."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from vlnbench.training.family.trains import Stretches
from vlnbench.training.run.log import Phases


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python")  # of 3.13.0
def test_a_compiled_network_is_not_compiled_again_for_its_times() -> None:
    compiled = CompileCounter()
    size = 512  # small layers take less time than is reported
    model = nn.Sequential(nn.Linear(size, size), nn.Linear(size, size)).requires_grad_(False)
    phases = Phases(torch.device("cpu"))
    phases.watch(model, Stretches(("seeing", "deciding"), model[0], model[1]))
    fast = torch.compile(model, backend=compiled)
    for _ in range(3):
        fast(torch.zeros(size, size))
    known = compiled.frame_count
    for _ in range(4):
        fast(torch.zeros(size, size))
    assert compiled.frame_count == known > 0
    assert phases.take()["deciding"] > 0
