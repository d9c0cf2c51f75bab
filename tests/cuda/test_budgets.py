"""What a turn asks of a GPU, in numbers: a regression shows as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agents.common.decoders.turns import Decoder
from tests.agents.streamvln.test_decode import SETTINGS, play
from tests.agents.streamvln.tiny import tiny_model
from tests.cuda.pretended import CUDA, Device, pretended


def test_mixed_devices_are_refused_as_on_a_gpu() -> None:
    with pretended(), pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.zeros(3, device="cuda") + torch.zeros(3)


class Counted(Decoder):
    passes = 0

    def _states(self, *passed: Any) -> Tensor:
        self.passes += 1
        return super()._states(*passed)


def counted(layers: int, device: Device) -> dict[str, float]:
    """Per pass of the language model, in turns that feed and generate."""
    model = tiny_model(num_hidden_layers=layers).to(CUDA)
    decoder = Counted(model, SETTINGS, max_new_tokens=8)
    device.reset()
    play(decoder, range(3))
    found = {"launches": device.launches, "down": device.down, "up": device.up, "waits": device.waits}
    return {name: counter.total() / decoder.passes for name, counter in found.items()}


def test_layers_add_kernels_and_nothing_to_wait_for() -> None:
    with pretended() as device:
        few, many = counted(2, device), counted(6, device)
    for kind in ("down", "up", "waits"):
        assert abs(many[kind] - few[kind]) < 1, kind
    assert (many["launches"] - few["launches"]) / 4 <= 55  # SDPA is taken apart here
    assert max(few["down"], few["waits"]) <= 1
    assert few["up"] <= 5
