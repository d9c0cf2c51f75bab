"""The mathematics of GRPO on log-probabilities and rewards, without any notion of networks or navigation.

Definitions follow arXiv 2402.03300 (GRPO), 2503.14476 (DAPO: two clips, tokens of all answers count alike) and
2503.20783 (Dr. GRPO: no division by lengths or by standard deviations); constants are those of TRL's trainer, with
which the tests compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vlnbench.training.objectives.grpo.options import Aggregation, Scaling

EPSILON = 1e-4
"""Added to standard deviations before they divide."""
NO_SPREAD = 1e-8
"""Rewards of a group whose standard deviation is no larger are the same reward."""


def advantages(rewards: Tensor, scaling: Scaling) -> Tensor:
    """How much better each reward is than the mean of its group; rewards and result: (groups, size).

    scaling: divided by the standard deviation (with n - 1) of the group, of all rewards, or not at all.
    """
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    if scaling == "none":
        return centered
    deviation = rewards.std(dim=1, keepdim=True) if scaling == "group" else rewards.std()
    return centered / (deviation + EPSILON)


def without_spread(rewards: Tensor) -> Tensor:
    """Which groups (groups,) of rewards (groups, size) teach nothing, for all of their rewards are the same."""
    return rewards.std(dim=1) <= NO_SPREAD


class Clipped(NamedTuple):
    """Of every token: its loss, its ratio of new to old probability, and whether clipping took the gradient."""

    losses: Tensor
    ratios: Tensor
    clipped: Tensor


def clipped_losses(new: Tensor, old: Tensor, advantage: Tensor, low: float, high: float) -> Clipped:
    """The clipped surrogate of tokens, all (tokens,): log-probabilities now and when they were drawn, advantages.

    The ratio of the probabilities is kept from 1 - low to 1 + high where it would go on to grow the gain.
    """
    ratios = torch.exp(new - old)
    gains = torch.min(ratios * advantage, ratios.clamp(1 - low, 1 + high) * advantage)
    clipped = ((ratios < 1 - low) & (advantage < 0)) | ((ratios > 1 + high) & (advantage > 0))
    return Clipped(-gains, ratios.detach(), clipped)


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """An estimate of the divergence from the reference, per token, never below 0 (Schulman's third)."""
    apart = reference - new
    return torch.exp(apart) - apart - 1


def token_weight(aggregation: Aggregation, length: int, lengths: Sequence[int], longest: int) -> float:
    """What each token of an answer of `length` tokens counts in an update whose answers have `lengths`.

    grpo: every answer counts alike. dapo: every token does. dr_grpo: every token does, against the `longest` that
    an answer may be. For bnpo, which divides by the tokens of each forward pass, see `pass_weight`.
    """
    if aggregation == "dapo":
        return 1 / max(1, sum(lengths))
    divisor = longest if aggregation == "dr_grpo" else length
    return 1 / (len(lengths) * max(1, divisor))


def pass_weight(passes: int, tokens: int) -> float:
    """The same for bnpo: in one of `passes` forward passes of all GPUs, which has so many `tokens`."""
    return 1 / (passes * max(1, tokens))
