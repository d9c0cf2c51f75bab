"""Which windows a training run sees, in which order: mixtures of sets, epochs, steps, batches.

What a set holds and how it makes windows is the family's business.
"""

from __future__ import annotations

import hashlib
import json
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from tabulate import tabulate
from torch.utils.data import DataLoader

from vlnbench.data.check import Item
from vlnbench.errors import UsageError
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.family.trains import LeavesOut, Samples, SetContent, Trains
from vlnbench.training.options import TrainOptions, parse_set
from vlnbench.util.durable.json_stream import sha256

Position = tuple[int, int]
"""(epoch, index of the window): what a sample's random draws depend on."""

STEPS_GROUPED = 64
"""Optimizer steps within which windows move, so that each shares a batch with others of like length."""


@dataclass(frozen=True)
class TrainingSet:
    """One set of a mixture: what it holds, and how often an epoch sees each of its windows.

    `sha256` is over the file that says what the set holds.
    """

    name: str
    content: SetContent
    weight: float
    sha256: str

    @property
    def windows(self) -> int:
        """Windows of the set."""
        return self.content.windows

    @property
    def per_epoch(self) -> int:
        """Windows of this set in one epoch of the mixture."""
        return max(1, round(self.windows * self.weight))


@dataclass(frozen=True)
class Schedule:
    """How many optimizer steps, and how many windows one of them takes over all GPUs."""

    steps: int
    windows_per_step: int
    windows_per_epoch: int

    @property
    def epochs(self) -> float:
        """Passes over the mixture."""
        return self.steps * self.windows_per_step / self.windows_per_epoch


def read_sets(options: TrainOptions, trains: Trains) -> list[TrainingSet]:
    """Read the sets of the mixture. Raises UsageError for those that are missing, empty or broken."""
    return [_read_set(options, trains, name, weight) for name, weight in options.mixture.items()]


def _read_set(options: TrainOptions, trains: Trains, name: str, weight: float) -> TrainingSet:
    content = trains.read_set(options.trajectories / name, options)
    return TrainingSet(name, content, weight, sha256(content.file))


def check_sets(family: FamilySpec, folders: Sequence[Path]) -> Iterator[Item]:
    """Read sets as a family's training would by default: what each holds, and what of it is not learned from."""
    trains, kind = family.load_trains(), family.check_training()
    for folder in folders:
        options = kind(checkpoint="", out=Path(), trajectories=folder.parent, sets=(folder.name,))
        try:
            content = trains.read_set(folder, options)
        except UsageError as error:
            yield Item(False, str(folder), "set", str(error))
            continue
        held = ", ".join(f"{count:,} {what}" for what, count in content.counts.items())
        yield Item(True, str(folder), "set", f"{held}; {content.windows:,} windows")
        for line in content.left_out if isinstance(content, LeavesOut) else ():
            yield Item(False, str(folder), "left out", line)


def make_schedule(options: TrainOptions, trains: Trains, sets: Sequence[TrainingSet], world_size: int) -> Schedule:
    """Steps of a run: `--steps`, or `--epochs` over the mixture or over the sets of `--steps-of`.

    As in the published training, an epoch's incomplete last step is left out.
    """
    per_step = options.batch * options.accumulation * world_size
    per_epoch = sum(each.per_epoch for each in sets)
    counted = per_epoch
    if options.steps_of:
        known = {each.name: each for each in sets}
        reference = (parse_set(text) for text in options.steps_of)
        alone = (
            replace(known[name], weight=weight) if name in known else _read_set(options, trains, name, weight)
            for name, weight in reference
        )
        counted = sum(each.per_epoch for each in alone)
    steps = options.steps or int(options.epochs * counted / per_step)
    if steps < 1:
        raise UsageError(
            f"{counted} windows and {per_step} per optimizer step: not one step; lower --batch or --accumulation"
        )
    return Schedule(steps, per_step, per_epoch)


def count(sets: Sequence[TrainingSet]) -> dict[str, dict[str, float]]:
    """How much each set holds."""
    return {each.name: {**each.content.counts, "windows": each.windows, "weight": each.weight} for each in sets}


def format_sets(sets: Sequence[TrainingSet], schedule: Schedule) -> str:
    """Table of the mixture and what the run takes of it."""
    total = schedule.windows_per_epoch
    counts = count(sets)
    named = list(dict.fromkeys(name for found in counts.values() for name in found))
    rows = [
        [
            each.name,
            *(f"{counts[each.name].get(name, 0):g}" for name in named),
            f"{100 * each.per_epoch / total:.1f}",
        ]
        for each in sets
    ]
    headers = ["set", *named, "share (%)"]
    told = [line for each in sets if isinstance(each.content, LeavesOut) for line in each.content.left_out]
    return "".join(f"note: {line}\n" for line in told) + (
        f"{tabulate(rows, headers=headers)}\n\n{schedule.steps} optimizer steps of {schedule.windows_per_step} "
        f"windows: {schedule.epochs:.2f} epochs of {total} windows"
    )


def order(sets: Sequence[TrainingSet], seed: int, epoch: int) -> list[int]:
    """Window indices of one epoch, shuffled: of every set what its weight says, each once before any twice."""
    rng = random.Random(f"{seed}/order/{epoch}")
    chosen: list[int] = []
    first = 0
    for each in sets:
        left = each.per_epoch
        while left > 0:
            indices = list(range(first, first + each.windows))
            chosen += indices if left >= each.windows else rng.sample(indices, left)
            left -= each.windows
        first += each.windows
    rng.shuffle(chosen)
    return chosen


def positions(sets: Sequence[TrainingSet], schedule: Schedule, seed: int) -> Iterator[Position]:
    """Every window of the run in order, for all GPUs together."""
    left = schedule.steps * schedule.windows_per_step
    epoch = 0
    while left > 0:
        for index in order(sets, seed, epoch)[:left]:
            yield epoch, index
        left -= schedule.windows_per_epoch
        epoch += 1


def group_by_length(
    run: Sequence[Position], lengths: Sequence[Any], per_step: int, batch: int, seed: int
) -> list[Position]:
    """The windows of a run in batches of like length, and the batches of every STEPS_GROUPED steps shuffled.

    `per_step` is a multiple of `batch`, and so is the number of windows.
    """
    rng = random.Random(f"{seed}/batches")
    grouped: list[Position] = []
    for first in range(0, len(run), STEPS_GROUPED * per_step):
        chunk = sorted(run[first : first + STEPS_GROUPED * per_step], key=lambda position: lengths[position[1]])
        batches = [chunk[i : i + batch] for i in range(0, len(chunk), batch)]
        rng.shuffle(batches)
        grouped += [position for each in batches for position in each]
    return grouped


class RankBatches:
    """Batches of positions for one rank: rank r of w takes the r-th of every w batches, from step `start` on."""

    def __init__(
        self, sets: Sequence[TrainingSet], schedule: Schedule, options: TrainOptions, rank: int, start: int
    ) -> None:
        per_step = schedule.windows_per_step
        run = list(positions(sets, schedule, options.seed))
        if options.group_by_length:
            lengths = [length for each in sets for length in each.content.lengths()]
            together = per_step // options.accumulation if options.group_ranks else options.batch
            run = group_by_length(run, lengths, per_step, together, options.seed)
        self._all = run[start * per_step :]
        self._batch = options.batch
        self._rank = rank
        self._stride = per_step // options.accumulation

    def __iter__(self) -> Iterator[list[Position]]:
        for first in range(self._rank * self._batch, len(self._all), self._stride):
            yield self._all[first : first + self._batch]

    def __len__(self) -> int:
        return len(self._all) // self._stride


def dealt(costs: Sequence[float], ranks: int) -> list[int]:
    """For each window of a forward pass of all ranks the rank that takes it, so that none waits long for another.

    The most expensive first, each to whom has the least to do. Every rank gets one where there are enough.
    """
    load = [0.0] * ranks
    takers = [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        rank = load.index(min(load))
        takers[place] = rank
        load[rank] += costs[place]
    return takers


class DealtBatches:
    """The windows of every forward pass of `RankBatches`, of all ranks together, dealt out anew by their costs.

    `owners`: for each batch of this rank, and each window in it, the rank in whose batch it was: its loss counts
    as it would have counted there.
    """

    def __init__(self, everyones: Sequence[RankBatches], costs: Sequence[float], rank: int) -> None:
        self._batches: list[list[Position]] = []
        self.owners: list[list[int]] = []
        for batches in zip(*everyones, strict=True):
            windows = [(position, owner) for owner, batch in enumerate(batches) for position in batch]
            takers = dealt([costs[position[1]] for position, _ in windows], len(everyones))
            mine = [window for window, taker in zip(windows, takers, strict=True) if taker == rank]
            self._batches.append([position for position, _ in mine])
            self.owners.append([owner for _, owner in mine])

    def __iter__(self) -> Iterator[list[Position]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


class Mixture:
    """Samples of several sets one after the other, as a dataset for torch that is addressed by `Position`s.

    What a sample draws depends on its position and on the seed alone: not on workers, order or batch size.
    """

    def __init__(self, parts: Sequence[Samples], seed: int = 0) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))
        self._seed = seed

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, position: Position) -> Any:
        epoch, index = position
        part = bisect_right(self._ends, index)
        first = self._ends[part] - len(self._parts[part])
        return self._parts[part].sample(index - first, random.Random(f"{self._seed}/{epoch}/{index}"))


def make_loader(
    parts: Sequence[Samples], trains: Trains, options: TrainOptions, batches: RankBatches | DealtBatches
) -> DataLoader[Any]:
    """Read and collate the batches of one rank in `--workers` processes."""
    return DataLoader(
        Mixture(parts, options.seed),  # type: ignore[arg-type]  # positions are pairs, not numbers
        batch_sampler=batches,
        num_workers=options.workers,
        collate_fn=trains.collate,
        persistent_workers=options.workers > 0,
        prefetch_factor=options.prefetch if options.workers else None,
        pin_memory=options.pin_memory,
    )


def digest(sets: Sequence[TrainingSet]) -> str:
    """Hash of what the mixture is made of."""
    text = json.dumps([[each.name, each.weight, each.sha256] for each in sets])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
