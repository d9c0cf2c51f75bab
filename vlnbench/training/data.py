"""Which windows a training run sees, in which order: mixtures of trajectory sets, epochs, steps, batches."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate
from torch.utils.data import DataLoader

from vlnbench.errors import UsageError
from vlnbench.loading import import_string
from vlnbench.training.options import TrainOptions, parse_set

Position = tuple[int, int]
"""(epoch, index of the window): what a sample's random draws depend on."""


@dataclass(frozen=True)
class TrajectorySet:
    """One set of a mixture: trajectories, how many windows they make, and how often an epoch sees each of them.

    `sha256` is over the annotations, which say what was collected.
    """

    name: str
    trajectories: tuple[Any, ...]
    windows: int
    weight: float
    sha256: str

    @property
    def per_epoch(self) -> int:
        """Windows of this set in one epoch of the mixture."""
        return max(1, round(self.windows * self.weight))


@dataclass(frozen=True)
class Schedule:
    """How many optimiser steps, and how many windows one of them takes over all GPUs."""

    steps: int
    windows_per_step: int
    windows_per_epoch: int

    @property
    def epochs(self) -> float:
        """Passes over the mixture."""
        return self.steps * self.windows_per_step / self.windows_per_epoch


def read_sets(options: TrainOptions) -> list[TrajectorySet]:
    """Read the sets of the mixture. Raises UsageError for those that are missing, empty or broken."""
    return [_read_set(options, name, weight) for name, weight in options.mixture.items()]


def _read_set(options: TrainOptions, name: str, weight: float) -> TrajectorySet:
    folder = options.trajectories / name
    trajectories = import_string("agents.streamvln.trajectories:read_trajectories")(folder)
    windows = sum(
        len(trajectory.instructions) * math.ceil(len(trajectory.actions) / options.frames)
        for trajectory in trajectories
    )
    digest = hashlib.sha256((folder / "annotations.json").read_bytes()).hexdigest()
    return TrajectorySet(name, tuple(trajectories), windows, weight, digest)


def make_schedule(options: TrainOptions, sets: Sequence[TrajectorySet], world_size: int) -> Schedule:
    """Steps of a run: `--steps`, or `--epochs` over the mixture or over the sets of `--steps-of`.

    As in the published training, an epoch's incomplete last step is left out.
    """
    per_step = options.batch * options.accumulation * world_size
    per_epoch = sum(each.per_epoch for each in sets)
    counted = per_epoch
    if options.steps_of:
        known = {each.name: each for each in sets}
        reference = (parse_set(text) for text in options.steps_of)
        counted = sum(
            (known.get(name) or _read_set(options, name, weight)).per_epoch for name, weight in reference
        )
    steps = options.steps or int(options.epochs * counted / per_step)
    if steps < 1:
        raise UsageError(
            f"{counted} windows and {per_step} per optimiser step: not one step; lower --batch or --accumulation"
        )
    return Schedule(steps, per_step, per_epoch)


def count(sets: Sequence[TrajectorySet]) -> dict[str, dict[str, float]]:
    """How much each set holds."""
    return {
        each.name: {
            "trajectories": len(each.trajectories),
            "instructions": sum(len(trajectory.instructions) for trajectory in each.trajectories),
            "windows": each.windows,
            "weight": each.weight,
        }
        for each in sets
    }


def format_sets(sets: Sequence[TrajectorySet], schedule: Schedule) -> str:
    """Table of the mixture and what the run takes of it."""
    total = schedule.windows_per_epoch
    rows = [
        [each.name, *(f"{value:g}" for value in counts.values()), f"{100 * each.per_epoch / total:.1f}"]
        for each, counts in zip(sets, count(sets).values(), strict=True)
    ]
    headers = ["set", "trajectories", "instructions", "windows", "weight", "share (%)"]
    return (
        f"{tabulate(rows, headers=headers)}\n\n{schedule.steps} optimiser steps of {schedule.windows_per_step} "
        f"windows: {schedule.epochs:.2f} epochs of {total} windows"
    )


def order(sets: Sequence[TrajectorySet], seed: int, epoch: int) -> list[int]:
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


def positions(sets: Sequence[TrajectorySet], schedule: Schedule, seed: int) -> Iterator[Position]:
    """Every window of the run in order, for all GPUs together."""
    left = schedule.steps * schedule.windows_per_step
    epoch = 0
    while left > 0:
        for index in order(sets, seed, epoch)[:left]:
            yield epoch, index
        left -= schedule.windows_per_epoch
        epoch += 1


class RankBatches:
    """Batches of positions for one rank: rank r of w takes the r-th of every w batches, from step `start` on."""

    def __init__(
        self, sets: Sequence[TrajectorySet], schedule: Schedule, options: TrainOptions, rank: int, start: int
    ) -> None:
        self._all = list(positions(sets, schedule, options.seed))[start * schedule.windows_per_step :]
        self._batch = options.batch
        self._rank = rank
        self._stride = schedule.windows_per_step // options.accumulation

    def __iter__(self) -> Iterator[list[Position]]:
        for first in range(self._rank * self._batch, len(self._all), self._stride):
            yield self._all[first : first + self._batch]

    def __len__(self) -> int:
        return len(self._all) // self._stride


def make_windows(options: TrainOptions) -> Any:
    """How trajectories are cut. Raises UsageError where they cannot be cut evenly."""
    cut = import_string("agents.streamvln.windows:Windows")
    return cut(options.frames, options.history, options.future_steps)


def make_loader(
    sets: Sequence[TrajectorySet],
    tokenizer: Any,
    options: TrainOptions,
    batches: RankBatches,
    image_size: int,
    known: Callable[[str], Any] | None = None,
) -> DataLoader[Any]:
    """Read, resize, jitter and tokenise the batches of one rank in `--workers` processes.

    `known` has the features of frames that need not be decoded, by key.
    """
    prompts = import_string("agents.streamvln.prompt:Prompts")(tokenizer)
    trajectories = [trajectory for each in sets for trajectory in each.trajectories]
    dataset = import_string("agents.streamvln.samples:WindowDataset")(
        trajectories,
        prompts,
        make_windows(options),
        image_size,
        wording=options.wording,
        augmented=options.augment,
        known=known,
        seed=options.seed,
    )
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=options.workers,
        collate_fn=import_string("agents.streamvln.samples:collate"),
        persistent_workers=options.workers > 0,
    )


def digest(sets: Sequence[TrajectorySet]) -> str:
    """Hash of what the mixture is made of."""
    text = json.dumps([[each.name, each.weight, each.sha256] for each in sets])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
