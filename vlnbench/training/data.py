"""Which windows a training run sees, in which order: mixtures of sets, epochs, steps, batches.

A set holds trajectories, which are cut into windows, or conversations about images, each of which counts as one
window.
"""

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
from vlnbench.training.options import CONVERSATIONS, TRAJECTORIES, TrainOptions, parse_set
from vlnbench.util.loading import import_string

Position = tuple[int, int]
"""(epoch, index of the window): what a sample's random draws depend on."""

STEPS_GROUPED = 64
"""Optimiser steps within which windows move, so that each shares a batch with others of like length."""


@dataclass(frozen=True)
class TrainingSet:
    """One set of a mixture: trajectories or conversations, how many windows they make, and how often an epoch sees
    each of them.

    `sha256` is over the file that says what the set holds.
    """

    name: str
    trajectories: tuple[Any, ...]
    conversations: tuple[Any, ...]
    windows: int
    weight: float
    sha256: str

    @property
    def per_epoch(self) -> int:
        """Windows of this set in one epoch of the mixture."""
        return max(1, round(self.windows * self.weight))

    @property
    def texts(self) -> Iterator[str]:
        """What is said: instructions, questions and answers."""
        for trajectory in self.trajectories:
            yield from trajectory.instructions
        for conversation in self.conversations:
            for turn in conversation.turns:
                yield from turn


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


def read_sets(options: TrainOptions) -> list[TrainingSet]:
    """Read the sets of the mixture. Raises UsageError for those that are missing, empty or broken."""
    return [_read_set(options, name, weight) for name, weight in options.mixture.items()]


def _read_set(options: TrainOptions, name: str, weight: float) -> TrainingSet:
    folder = options.trajectories / name
    trajectories: list[Any] = []
    conversations: list[Any] = []
    if (folder / CONVERSATIONS).is_file():
        if (folder / TRAJECTORIES).is_file():
            raise UsageError(
                f"{folder}: holds both {TRAJECTORIES} and {CONVERSATIONS}; move one to another folder"
            )
        conversations = import_string("agents.streamvln.conversations:read_conversations")(folder)
    else:
        trajectories = import_string("agents.streamvln.trajectories:read_trajectories")(folder)
    windows = len(conversations) + sum(
        len(trajectory.instructions) * math.ceil(len(trajectory.actions) / options.frames)
        for trajectory in trajectories
    )
    content = (folder / (CONVERSATIONS if conversations else TRAJECTORIES)).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return TrainingSet(name, tuple(trajectories), tuple(conversations), windows, weight, digest)


def make_schedule(options: TrainOptions, sets: Sequence[TrainingSet], world_size: int) -> Schedule:
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


def count(sets: Sequence[TrainingSet]) -> dict[str, dict[str, float]]:
    """How much each set holds."""
    return {
        each.name: {
            "trajectories": len(each.trajectories),
            "instructions": sum(len(trajectory.instructions) for trajectory in each.trajectories),
            "conversations": len(each.conversations),
            "windows": each.windows,
            "weight": each.weight,
        }
        for each in sets
    }


def format_sets(sets: Sequence[TrainingSet], schedule: Schedule) -> str:
    """Table of the mixture and what the run takes of it."""
    total = schedule.windows_per_epoch
    rows = [
        [each.name, *(f"{value:g}" for value in counts.values()), f"{100 * each.per_epoch / total:.1f}"]
        for each, counts in zip(sets, count(sets).values(), strict=True)
    ]
    headers = ["set", "trajectories", "instructions", "conversations", "windows", "weight", "share (%)"]
    return (
        f"{tabulate(rows, headers=headers)}\n\n{schedule.steps} optimiser steps of {schedule.windows_per_step} "
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


def _lengths(sets: Sequence[TrainingSet], options: TrainOptions) -> list[tuple[int, int]]:
    """(images, characters of text) of every window of the mixture."""
    of_windows = import_string("agents.streamvln.samples:window_lengths")
    lengths: list[tuple[int, int]] = []
    for each in sets:
        lengths += of_windows(each.trajectories, make_windows(options))
        lengths += [conversation.length for conversation in each.conversations]
    return lengths


class RankBatches:
    """Batches of positions for one rank: rank r of w takes the r-th of every w batches, from step `start` on."""

    def __init__(
        self, sets: Sequence[TrainingSet], schedule: Schedule, options: TrainOptions, rank: int, start: int
    ) -> None:
        per_step = schedule.windows_per_step
        run = list(positions(sets, schedule, options.seed))
        if options.group_by_length:
            run = group_by_length(run, _lengths(sets, options), per_step, options.batch, options.seed)
        self._all = run[start * per_step :]
        self._batch = options.batch
        self._rank = rank
        self._stride = per_step // options.accumulation

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
    sets: Sequence[TrainingSet],
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
    parts = [_dataset(each, prompts, options, image_size, known) for each in sets]
    dataset = import_string("agents.streamvln.samples:Mixture")(parts, options.seed)
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=options.workers,
        collate_fn=import_string("agents.streamvln.samples:collate"),
        persistent_workers=options.workers > 0,
    )


def _dataset(
    source: TrainingSet, prompts: Any, options: TrainOptions, image_size: int, known: Callable[[str], Any] | None
) -> Any:
    """The samples of one set."""
    reader = import_string("agents.streamvln.samples:FrameReader")(image_size, options.augment, known)
    if source.conversations:
        conversations = import_string("agents.streamvln.conversations:ConversationDataset")
        return conversations(source.conversations, prompts, reader, wording=options.wording)
    return import_string("agents.streamvln.samples:WindowDataset")(
        source.trajectories,
        prompts,
        make_windows(options),
        reader,
        wording=options.wording,
        inflection_weight=options.inflection_weight,
        seed=options.seed,
    )


def digest(sets: Sequence[TrainingSet]) -> str:
    """Hash of what the mixture is made of."""
    text = json.dumps([[each.name, each.weight, each.sha256] for each in sets])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
