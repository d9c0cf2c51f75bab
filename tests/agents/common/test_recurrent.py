"""The GRU that is written out does what torch's does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from agents.common.recurrent import Gru


@pytest.mark.parametrize(("steps", "slots"), [(1, 1), (1, 3), (7, 1), (20, 4)])
def test_outputs_and_gradients_are_those_of_torch(steps: int, slots: int) -> None:
    torch.manual_seed(steps)
    ours, theirs = Gru(5, 6).double(), nn.GRU(5, 6).double()
    theirs.load_state_dict(ours.state_dict())
    x, state = torch.randn(steps, slots, 5).double(), torch.randn(1, slots, 6).double()
    weights = torch.randn(steps, slots, 6).double()
    found = [_run(each, x.clone(), state.clone(), weights) for each in (ours, theirs)]
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-12, rtol=1e-12)


def _run(rnn: nn.GRU, x: Tensor, state: Tensor, weights: Tensor) -> list[Tensor]:
    x.requires_grad_()
    state.requires_grad_()
    outputs, last = rnn(x, state)
    ((outputs * weights).sum() + (last**3).sum()).backward()
    gradients = [each.grad for each in (x, state, *rnn.parameters())]
    assert all(each is not None for each in gradients)
    return [outputs.detach(), last.detach(), *(each for each in gradients if each is not None)]


def test_gradients_are_those_of_small_differences() -> None:
    torch.manual_seed(0)
    rnn = Gru(2, 3).double()
    x, state = torch.randn(4, 2, 2).double().requires_grad_(), torch.randn(1, 2, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda *given: rnn(*given), (x, state))
