"""What was done by chance as losses: forward passes over the windows of an update, each with its share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlnbench.training.family.policy import GivesLogProbabilities
from vlnbench.training.family.trains import Trains
from vlnbench.training.objectives.grpo.groups import Update
from vlnbench.training.objectives.grpo.loss import clipped_losses, k3, pass_weight, token_weight
from vlnbench.training.objectives.grpo.options import GRPOOptions
from vlnbench.training.objectives.grpo.reference import Reference
from vlnbench.training.objectives.grpo.tally import Tally
from vlnbench.training.setup import Process


@dataclass
class _Window:
    """A window with what its tokens count. old, reference: log-probabilities (tokens,), once they are known."""

    sample: Any
    tokens: int
    advantage: float
    weight: float
    drawn: Sequence[float]
    old: Tensor | None = None
    reference: Tensor | None = None


class Learner:
    """The losses of updates; the windows of a completion may be in several forward passes."""

    def __init__(
        self,
        options: GRPOOptions,
        trains: Trains,
        process: Process,
        tally: Tally,
        reference: Reference | None,
    ) -> None:
        assert isinstance(trains, GivesLogProbabilities)
        self._options, self._process, self._tally = options, process, tally
        self._collate, self._log_probabilities = trains.collate, trains.log_probabilities
        self._reference = reference
        self._windows: list[_Window] = []

    def take(self, update: Update, longest: int) -> None:
        """Learn from this from now on.

        Left out is what has no gradient: no advantage and no beta; but for bnpo, whose divisor are the tokens of a
        forward pass, these among them.
        """
        counts = bool(self._options.beta) or self._options.aggregation == "bnpo"
        self._windows, self._spare = [], update.spare
        for each in update.mine:
            recorded, drawn = each.recorded, list(each.recorded.log_probabilities)
            weight = token_weight(self._options.aggregation, sum(recorded.tokens), update.lengths, longest)
            for sample, tokens in zip(recorded.samples, recorded.tokens, strict=True):
                own, drawn = drawn[:tokens], drawn[tokens:]
                if each.advantage or counts:
                    self._windows.append(_Window(sample, tokens, each.advantage, weight, own))

    def losses(self, engine: Any) -> Iterator[Tensor]:
        """Of one optimizer step: as many on every process, the last of which the engine is told.

        The engine divides by the accumulation and takes the mean over processes; the update's loss is a sum.
        """
        size = self._options.batch
        batches = [self._windows[first : first + size] for first in range(0, len(self._windows), size)]
        passes = self._most(max(1, len(batches)))
        scale = self._options.accumulation * self._process.world_size
        for number in range(passes):
            engine.set_gradient_accumulation_boundary(number == passes - 1)
            if number < len(batches):
                yield scale * self._loss(engine, batches[number], passes)
            else:  # another process has more to do, or nobody has anything
                yield (
                    0.0
                    * self._log_probabilities(engine, self._collate([self._spare]), 1.0).log_probabilities.sum()
                )

    def _loss(self, engine: Any, windows: list[_Window], passes: int) -> Tensor:
        options = self._options
        batch = self._collate([each.sample for each in windows])
        scored = self._log_probabilities(engine, batch, options.temperature)
        sizes = [each.tokens for each in windows]
        device = scored.log_probabilities.device
        now = torch.split(scored.log_probabilities.detach(), sizes)
        for each, log_probabilities in zip(windows, now, strict=True):
            if each.old is None:  # nothing has been learned from it yet
                each.old = log_probabilities
        old = torch.cat([each.old for each in windows if each.old is not None])
        repeats = torch.tensor(sizes, device=device)
        advantage = torch.tensor([each.advantage for each in windows], device=device).repeat_interleave(repeats)
        found = clipped_losses(scored.log_probabilities, old, advantage, options.clip_low, options.clip_high)
        losses = found.losses
        if self._reference is not None:
            losses = losses + options.beta * self._divergence(windows, batch, scored.log_probabilities)
        if options.aggregation == "bnpo":
            weight = pass_weight(passes * self._process.world_size, sum(sizes))
            weights = torch.full_like(losses, weight)
        else:
            weights = torch.tensor([each.weight for each in windows], device=device).repeat_interleave(repeats)
        self._describe(windows, scored.entropies, found.ratios, found.clipped, torch.cat(now))
        return (losses * weights).sum()

    def _divergence(self, windows: list[_Window], batch: Any, log_probabilities: Tensor) -> Tensor:
        """Per token, from the network at the start, which is asked once about each window."""
        assert self._reference is not None
        if any(each.reference is None for each in windows):
            with torch.no_grad(), self._reference.used() as network:
                found = self._log_probabilities(network, batch, self._options.temperature).log_probabilities
            for each, own in zip(windows, torch.split(found, [each.tokens for each in windows]), strict=True):
                each.reference = own
        apart = k3(
            log_probabilities, torch.cat([each.reference for each in windows if each.reference is not None])
        )
        self._tally.add("kl", float(apart.detach().sum()), len(apart))
        return apart

    def _describe(
        self, windows: list[_Window], entropies: Tensor, ratios: Tensor, clipped: Tensor, now: Tensor
    ) -> None:
        tally, count = self._tally, len(ratios)
        drawn = torch.tensor([chance for each in windows for chance in each.drawn], device=now.device)
        first = bool((ratios == 1).all())
        tally.add("entropy", float(entropies.sum()), count)
        tally.add("ratio", float(ratios.sum()), count)
        tally.add("clipped", float(clipped.sum()), count)
        if first:  # later the network is another one than that which drew
            tally.add("drawn_apart", float((now - drawn).abs().sum()), count)

    def _most(self, count: int) -> int:
        """The largest of all processes' counts."""
        if self._process.world_size == 1:
            return count
        most = torch.tensor(count, device=self._process.device)
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
        return int(most)
