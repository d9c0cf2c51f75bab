from __future__ import annotations

import importlib.util
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.objectives.grpo import goldens
from vlnbench.training.family.policy import scored
from vlnbench.training.objectives.grpo.loss import (
    advantages,
    clipped_losses,
    k3,
    pass_weight,
    token_weight,
    without_spread,
)
from vlnbench.training.objectives.grpo.options import Aggregation, Scaling

KEPT: dict[str, Any] = json.loads(goldens.FILE.read_text())


def our_loss(aggregation: Aggregation, beta: float, seed: int) -> tuple[float, Tensor]:
    """The loss of a case, its tokens laid end to end as the learner has them, and its gradient."""
    new, old, reference, mask, advantage = goldens.case(seed)
    new.requires_grad_(True)
    kept = mask.bool()
    lengths = goldens.LENGTHS
    repeats = torch.tensor(lengths)
    found = clipped_losses(new[kept], old[kept], advantage.repeat_interleave(repeats), *goldens.CLIPS)
    losses = found.losses + (beta * k3(new[kept], reference[kept]) if beta else 0.0)
    if aggregation == "bnpo":
        weights = torch.full_like(losses, pass_weight(1, sum(lengths)))
    else:
        each = [token_weight(aggregation, length, lengths, goldens.LONGEST) for length in lengths]
        weights = torch.tensor(each, dtype=torch.float64).repeat_interleave(repeats)
    loss = (losses * weights).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    return float(loss.detach()), new.grad


@pytest.mark.parametrize("kept", KEPT["losses"], ids=lambda kept: f"{kept['aggregation']}-{kept['beta']}")
def test_losses_and_gradients_are_those_of_trl(kept: dict[str, Any]) -> None:
    loss, gradient = our_loss(kept["aggregation"], kept["beta"], seed=1)
    assert loss == pytest.approx(kept["loss"], abs=1e-12)
    assert gradient.tolist() == [pytest.approx(row, abs=1e-11) for row in kept["gradient"]]


@pytest.mark.parametrize("scaling", goldens.SCALINGS)
def test_advantages_are_those_of_trl(scaling: Scaling) -> None:
    found = advantages(goldens.rewards(2), scaling)
    # TRL takes standard deviations in single precision
    assert found.tolist() == [pytest.approx(row, abs=1e-7) for row in KEPT["advantages"][scaling]]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
@pytest.mark.parametrize("aggregation", goldens.AGGREGATIONS)
@pytest.mark.parametrize("seed", [3, 4])
def test_losses_are_those_of_the_trl_that_is_installed(aggregation: Aggregation, seed: int) -> None:
    for beta in goldens.BETAS:
        wanted, slope = goldens.trl_loss(aggregation, beta, seed)
        loss, gradient = our_loss(aggregation, beta, seed)
        assert loss == pytest.approx(wanted, abs=1e-12)
        assert torch.allclose(gradient, slope, atol=1e-12)


def test_advantages_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 3.0, 3.0, 3.0]], dtype=torch.float64)
    assert advantages(rewards, "none").tolist() == [[0.5, -0.5, -0.5, 0.5], [0.0] * 4]
    deviation = math.sqrt(4 * 0.25 / 3)  # with n - 1
    assert advantages(rewards, "group")[0].tolist() == pytest.approx(
        [0.5 / (deviation + 1e-4), *([-0.5 / (deviation + 1e-4)] * 2), 0.5 / (deviation + 1e-4)]
    )
    assert advantages(rewards, "group")[1].tolist() == [0.0] * 4
    assert without_spread(rewards).tolist() == [False, True]


def test_clipping_by_hand() -> None:
    """A ratio of 1.5 with a gain is clipped at 1.28, with a loss it is not; 0.5 the other way round."""
    new = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])).requires_grad_(True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    found = clipped_losses(new, torch.zeros(5), advantage, 0.2, 0.28)
    assert found.losses.tolist() == pytest.approx([-1.28, 1.5, -0.5, 0.8, -2.2])
    assert found.clipped.tolist() == [True, False, False, True, False]
    found.losses.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0, -2.2])


def test_the_divergence_is_0_at_the_reference_and_never_below() -> None:
    new = torch.tensor([-1.0, -1.0, -1.0])
    assert k3(new, torch.tensor([-1.0, -2.0, 0.0])).tolist() == pytest.approx([0.0, math.exp(-1), math.e - 2])


def test_weights_by_hand() -> None:
    lengths = (2, 6)
    assert token_weight("grpo", 2, lengths, 10) == 1 / 4
    assert token_weight("dapo", 2, lengths, 10) == 1 / 8
    assert token_weight("dr_grpo", 2, lengths, 10) == 1 / 20
    assert pass_weight(2, 5) == 1 / 10


def test_chances_and_entropies_at_a_temperature() -> None:
    logits = torch.log(torch.tensor([[0.8, 0.2]]))
    found = scored(logits, torch.tensor([1]), 2.0)
    share = math.sqrt(0.2) / (math.sqrt(0.8) + math.sqrt(0.2))  # 1 / 3
    assert found.log_probabilities.item() == pytest.approx(math.log(share))
    assert found.entropies.item() == pytest.approx(-(share * math.log(share) + (1 - share) * math.log(1 - share)))
