"""What CMA and Seq2Seq have in common: one interface over steps and sequences, the action layer, the losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.vlnce.cma import CMANet
from agents.vlnce.config import NetworkConfig
from agents.vlnce.encoders import Steps
from agents.vlnce.seq2seq import Seq2SeqNet


@dataclass(frozen=True, slots=True)
class Decisions:
    """Output for B rows: action `logits` (B, actions), `progress` (B,) in (-1, 1), and the `states` (N, layers, H)
    after the last step."""

    logits: Tensor
    progress: Tensor
    states: Tensor


class Policy(nn.Module):
    """CMA or Seq2Seq, with parameters named as in the released checkpoints."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.net: CMANet | Seq2SeqNet = CMANet(config) if config.kind == "cma" else Seq2SeqNet(config)
        self.action_distribution = ActionHead(config.state_size, config.num_actions)

    def read(self, words: Tensor) -> Tensor:
        """Encode instructions: (I, L) int64 tokens or (I, L, 768) features; zeros behind the words."""
        encoded: Tensor = self.net.instruction_encoder(words)
        return encoded

    def see(self, rgb: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """Features of frames (B, H, W, 3) uint8 and depth images (B, H, W) in [0, 1]: see `Steps`."""
        return self.net.rgb_encoder.features(rgb), self.net.depth_encoder.features(depth)

    def forward(self, steps: Steps, states: Tensor) -> Decisions:
        """See `decide`."""
        return self.decide(steps, states)

    def decide(self, steps: Steps, states: Tensor) -> Decisions:
        """One step or many; `states` (N, layers, H) are those before the first, zeros for new episodes."""
        hidden, states = self.net(steps, states)
        progress = torch.tanh(self.net.progress_monitor(hidden)).squeeze(1)
        return Decisions(self.action_distribution(hidden), progress, states)

    def new_states(self, slots: int) -> Tensor:
        """States of slots whose episodes begin: zeros, (slots, layers, H)."""
        weight = self.action_distribution.linear.weight
        return weight.new_zeros(slots, self.net.layers, self.config.state_size)


class ActionHead(nn.Module):
    """One logit per action."""

    def __init__(self, hidden: int, actions: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, actions)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.linear(hidden)
        return logits


@dataclass(frozen=True, slots=True)
class Losses:
    """The training loss and its two terms; `progress` is 0 without a progress monitor."""

    total: Tensor
    action: Tensor
    progress: Tensor


def sequence_losses(
    config: NetworkConfig, decisions: Decisions, labels: Tensor, weights: Tensor, progress: Tensor
) -> Losses:
    """VLN-CE's loss over whole episodes.

    labels, weights, progress: (T, N): the expert's actions, the weight of each step (0 behind the end of an
    episode, the inflection coefficient where the expert's action changes, else 1), and the part of the way that is
    done. Each slot's cross entropy is averaged by its weights, then over slots; the progress monitor adds
    `progress_weight` times its mean squared error over steps with a weight.
    """
    logits = decisions.logits.view(*labels.shape, -1)
    entropy = functional.cross_entropy(logits.permute(0, 2, 1), labels, reduction="none")
    action = ((weights * entropy).sum(0) / weights.sum(0)).mean()
    if not config.progress_monitor:
        return Losses(action, action, torch.zeros_like(action))
    error = functional.mse_loss(decisions.progress.view(labels.shape), progress, reduction="none")
    counted = (weights > 0).to(error.dtype)
    aside = config.progress_weight * (error * counted).sum() / counted.sum()
    return Losses(action + aside, action, aside)
