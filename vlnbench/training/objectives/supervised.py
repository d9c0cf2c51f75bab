"""Imitation: the loss of collected windows under their labels."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlnbench.training import data
from vlnbench.training.family.trains import Samples, Trains, Weighting
from vlnbench.training.feature_cache import CachedTower, open_cache
from vlnbench.training.objectives.protocol import Begun
from vlnbench.training.options import TrainOptions
from vlnbench.training.run.log import Phases
from vlnbench.training.setup import Process


class Supervised:
    """An `Objective`. The family says what a window's loss is; labels may be weighted."""

    def __init__(self, options: TrainOptions, trains: Trains, process: Process) -> None:
        """Read the sets. Raises UsageError for those that are missing, empty or broken."""
        self._options, self._trains, self._process = options, trains, process
        self._sets = data.read_sets(options, trains)
        self.schedule = data.make_schedule(options, trains, self._sets, process.world_size)
        self._towers: list[CachedTower] = []
        self._samples: list[Samples] = []

    def manifest(self) -> Mapping[str, Any]:
        """The sets and how often they are seen."""
        return {
            "data": {each.name: {"windows": each.windows, "weight": each.weight} for each in self._sets},
            "data_sha256": data.digest(self._sets),
            "schedule": asdict(self.schedule),
        }

    def describe(self) -> str:
        """Table of the sets."""
        return data.format_sets(self._sets, self.schedule)

    def counts(self) -> Mapping[str, Any]:
        """How much each set holds."""
        return data.count(self._sets)

    def texts(self) -> Iterator[str]:
        """Instructions, questions and answers."""
        for each in self._sets:
            yield from each.content.texts()

    def rehearsal(self, model: nn.Module, base: Path) -> Mapping[str, Any]:
        """The first windows of the largest set; features are not taken from the cache."""
        largest = max((each.content for each in self._sets), key=lambda content: content.windows)
        (samples,) = self._trains.samples([largest], model, base, self._options, None)
        rng = random.Random(self._options.seed)
        windows = [samples.sample(i % len(samples), rng) for i in range(self._options.batch)]
        return self._trains.collate(windows)

    def prepare(self, model: nn.Module, base: Path, phases: Phases) -> None:
        """Open the feature cache, if there is to be one, and the datasets."""
        options, trains = self._options, self._trains
        if options.feature_cache is not None:
            made = trains.all_features(model, self._process.device)
            self._towers = [open_cache(options, each, self._process) for each in made]
        known = _Known(self._towers) if self._towers else None
        self._samples = trains.samples([each.content for each in self._sets], model, base, options, known)
        self._phases, self._stretches = phases, trains.stretches(model, bool(self._towers))
        phases.watch(model, self._stretches)

    def begin(self, begun: Begun) -> None:
        """Start reading this process's batches."""
        self._engine = begun.engine
        ranks = range(self._process.world_size)
        order = [data.RankBatches(self._sets, self.schedule, self._options, rank, begun.done) for rank in ranks]
        mine: data.RankBatches | data.DealtBatches = order[self._process.rank]
        self._owners: Iterator[list[int]] | None = None
        self._weighting = self._trains.weighting(begun.engine.module) if len(ranks) > 1 else None
        if self._weighting is not None:
            costs = [self._weighting.cost(length) for each in self._sets for length in each.content.lengths()]
            mine = data.DealtBatches(order, costs, self._process.rank)
            self._owners = iter(mine.owners)
        self._batches = iter(data.make_loader(self._samples, self._trains, self._options, mine))

    def losses(self, step: int) -> Iterator[Tensor]:
        """One batch after the other."""
        for _ in range(self._options.accumulation):
            with self._phases.timed("load"):
                batch: dict[str, Any] = next(self._batches)
            for tower in self._towers:
                with self._phases.timed(tower.phase or self._stretches.names[0]):
                    batch[tower.entry] = tower.features(batch[tower.entry])
            if self._weighting is not None and self._owners is not None:
                batch = self._as_owned(batch, next(self._owners), self._weighting)
            yield self._trains.loss(self._engine, batch)

    def _as_owned(self, batch: dict[str, Any], owners: list[int], weighting: Weighting) -> dict[str, Any]:
        """A batch of dealt windows, each of which counts as in the batch of its owner."""
        totals = torch.zeros(self._process.world_size, dtype=torch.float64)
        for owner, mass in zip(owners, weighting.masses(batch), strict=True):
            totals[owner] += mass
        totals = totals.to(self._process.device)
        torch.distributed.all_reduce(totals)
        return weighting.weighed(batch, [1 / total for total in totals[owners].tolist()])

    def notes(self) -> Mapping[str, Any]:
        """How often features were found."""
        counts = [tower.count() for tower in self._towers]
        if not counts:
            return {}
        return {"feature_cache": {name: sum(count[name] for count in counts) for name in counts[0]}}

    def summary(self) -> str:
        """How often features were found in all."""
        return "\n".join(tower.describe() for tower in self._towers)


class _Known:
    """What any of several towers keeps; a class, since it goes to the processes that read frames."""

    def __init__(self, towers: list[CachedTower]) -> None:
        self._towers = towers

    def __call__(self, key: str) -> Tensor | None:
        """Features by their key, None where no tower keeps them."""
        return next((found for tower in self._towers if (found := tower.known(key)) is not None), None)
