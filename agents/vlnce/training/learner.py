"""The network as a step of training calls it: a batch of walks in, the loss out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from agents.common.sight.semantics import AuxiliaryLoss
from agents.vlnce.config import Config
from agents.vlnce.encoders import Steps
from agents.vlnce.policy import Decisions, Losses, Policy, sequence_losses
from agents.vlnce.training.samples import unflat
from agents.vlnce.views import share_of


class Learner(Policy):
    """A `Policy` whose forward pass is over whole walks, with VLN-CE's loss; parameters have the same names.

    auxiliary: what learns to tell what frames show, if that is taught, and the weight of its loss.
    """

    auxiliary: AuxiliaryLoss | None

    def __init__(self, config: Config) -> None:
        super().__init__(config.network)
        self.whole = config
        self.auxiliary, self.auxiliary_weight = None, 0.0

    def forward(  # type: ignore[override]
        self,
        frames: tuple[Tensor, Tensor] | Sequence[Tensor],
        *,
        at_labels: bool = False,
        shown: Tensor | None = None,
        shown_of: Tensor | None = None,
        **batch: Any,
    ) -> Tensor:
        """The loss of a batch, a scalar, see `losses`; at_labels: the scores of what was drawn, see `scores`, with
        statistics of batch norm as they were when the network acted.

        frames: RGB and depth of all steps, walk after walk, as `Policy.see` takes them; or a list with the kept
        features of every walk. shown: (S, names, GRID, GRID), what the frames shown_of, (S,), show, where that is
        taught.
        """
        if at_labels:
            self.net.rgb_encoder.cnn.eval()
            return self.scores(self._look(frames), **batch)
        seen = self._look(frames)
        loss = self.losses(seen, **batch).total
        if self.auxiliary is None or shown is None or shown_of is None:
            return loss
        rgb, depth = (each[shown_of.to(self.device)] for each in seen)
        told: Tensor = self.auxiliary((rgb, depth), shown.to(self.device))
        return loss + self.auxiliary_weight * told

    def losses(
        self,
        seen: tuple[Tensor, Tensor],
        words: Tensor,
        walk_of: Tensor,
        previous: Tensor,
        labels: Tensor,
        weights: Tensor,
        progress: Tensor,
        rows: Tensor,
    ) -> Losses:
        """Losses of N instructions on W walks of at most T steps.

        seen: features of RGB and depth of all steps, walk after walk. words: (N, L). walk_of: (N,), which walk an
        instruction is about. previous, labels, weights, progress: (W, T), zeros behind a walk's end. rows: (W, T),
        which of the frames a step shows; behind a walk's end, how many there are.
        """
        decisions = self._decide(seen, words, walk_of, previous, rows)
        labels, weights, progress = (each.to(self.device)[walk_of].T for each in (labels, weights, progress))
        return sequence_losses(self.config, decisions, labels, weights, progress)

    def scores(
        self,
        seen: tuple[Tensor, Tensor],
        words: Tensor,
        walk_of: Tensor,
        previous: Tensor,
        weights: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """Logits (steps, actions) of the steps that have a weight, instruction after instruction; see `losses`."""
        decisions = self._decide(seen, words, walk_of, previous, rows)
        instructions, steps = (weights[walk_of] > 0).nonzero(as_tuple=True)
        return decisions.logits[(steps * len(walk_of) + instructions).to(self.device)]

    def _look(self, frames: tuple[Tensor, Tensor] | Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Features of all frames, RGB and depth."""
        if isinstance(frames, tuple):
            colors, depths = (each.to(self.device) for each in frames)
            return self.see(colors, share_of(depths))
        return split_features(torch.cat(list(frames)).to(self.device), self.feature_shapes())

    def _decide(
        self,
        seen: tuple[Tensor, Tensor],
        words: Tensor,
        walk_of: Tensor,
        previous: Tensor,
        rows: Tensor,
    ) -> Decisions:
        """What the network decides at every step, (T * N,) rows, step after step."""
        device = self.device
        words, walk_of, rows = words.to(device), walk_of.to(device), rows.to(device)
        previous = previous.to(device)[walk_of].T
        longest, slots = previous.shape
        rgb, depth = seen
        begins = torch.ones(longest, slots, dtype=torch.bool)
        begins[0] = False
        together = math.gcd(*torch.unique_consecutive(walk_of, return_counts=True)[1].tolist())
        steps = Steps(
            self.read(words),
            _with_blank(rgb),
            _with_blank(depth),
            previous.flatten(),
            begins.flatten().to(device),
            rows[walk_of[::together]].T.flatten(),
            together,
        )
        return self.decide(steps, self.new_states(slots))

    @property
    def device(self) -> torch.device:
        return self.action_distribution.linear.weight.device

    def feature_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of what the two encoders make of a frame; found by showing them one on the meta device."""
        return feature_shapes(self.whole)


class Eyes(nn.Module):
    """The two encoders of images as one part, which the feature cache keeps in memory."""

    def __init__(self, policy: Policy, config: Config) -> None:
        super().__init__()
        self.rgb, self.depth = policy.net.rgb_encoder, policy.net.depth_encoder
        self.config = config

    def forward(self, pixels: Tensor) -> Tensor:
        """Features (N, numbers) of frames as `samples.flat` writes them, (N, numbers)."""
        return self._seen(*unflat(pixels, self.config.views))

    @torch.no_grad()
    def features(self, rgb: Tensor, depth: Tensor) -> Tensor:
        """The same of RGB and depth as `Learner.forward` takes them, on the CPU."""
        device = next(self.parameters()).device
        return self._seen(rgb.to(device), share_of(depth.to(device))).cpu()

    def _seen(self, rgb: Tensor, depth: Tensor) -> Tensor:
        return torch.cat([self.rgb.features(rgb).flatten(1), self.depth.features(depth).flatten(1)], dim=1)


def feature_shapes(config: Config) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the features of one frame, RGB and depth."""
    frame, depth_frame = config.views.inputs
    with torch.device("meta"), torch.no_grad():
        rgb, depth = (
            Policy(config.network)
            .eval()
            .see(torch.empty(1, *frame, 3, dtype=torch.uint8), torch.empty(1, *depth_frame))
        )
    return tuple(rgb.shape[1:]), tuple(depth.shape[1:])


def split_features(features: Tensor, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """What `Eyes` joined, (N, numbers), as features of RGB and depth."""
    first = prod(shapes[0])
    rgb, depth = features[:, :first], features[:, first:]
    return rgb.reshape(-1, *shapes[0]), depth.reshape(-1, *shapes[1])


def _with_blank(features: Tensor) -> Tensor:
    """Features of frames (F, ...) and one of zeros, for steps behind a walk's end."""
    return torch.cat([features, features.new_zeros(1, *features.shape[1:])])
