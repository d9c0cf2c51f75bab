"""Whole walks, and instructions about single views, as samples of recurrent policies over RGB, depth and words."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from agents.common.packing.frames import Frame, Frames, frame_key, pack
from agents.common.prompts.words import Words
from agents.common.sets.trajectories import Trajectory
from agents.common.sight.options import Views
from agents.common.sight.pictures import AGAIN, content_of
from agents.common.sight.rgbd import Files, Kept, Windows, frame_files, joined, read_frames
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.policy import Question
from vlnbench.training.family.trains import Known

SampleFrames = tuple[Tensor, Tensor] | Tensor | list[Frame]
"""RGB, uint8 (F, H, W, 3), and depth, float32 (F, h, w) in [0, 1] or uint8 levels of it; or their features, (F,
numbers); or frames with keys."""


@dataclass(frozen=True)
class WalkSet:
    """Walks; a window is a walk under all of its instructions, which share its frames."""

    file: Path
    walks: tuple[Trajectory, ...]
    kept: Kept | None = None

    @property
    def windows(self) -> int:
        return len(self.walks)

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many."""
        return {
            "walks": len(self.walks),
            "instructions": sum(len(walk.instructions) for walk in self.walks),
            "relabeled": sum(bool(walk.labels) for walk in self.walks),
        }

    def texts(self) -> Iterator[str]:
        """Instructions."""
        for walk in self.walks:
            yield from walk.instructions

    def lengths(self) -> list[tuple[int, ...]]:
        """(steps, instructions) of every window."""
        return [(len(walk.actions), len(walk.instructions)) for walk in self.walks]

    def files(self, window: int) -> Files:
        """RGB and depth image of every frame of a walk."""
        return frame_files(self.walks[window])


@dataclass(frozen=True, slots=True)
class Sample:
    """W walks of T steps under N instructions, over F frames.

    words: of each instruction, (L,) int64. walk_of: (N,) int64, which walk it is about. Of every step, (W, T):
    rows, which frame it shows; previous, what was done before; labels; weights; progress, which part of the way is
    done. shown: bool (F, names, GRID, GRID), what the cells of the frames show; None where that is not known.
    """

    words: list[Tensor]
    walk_of: Tensor
    frames: SampleFrames
    rows: Tensor
    previous: Tensor
    labels: Tensor
    weights: Tensor
    progress: Tensor
    shown: Tensor | None = None


def one_walk(
    words: list[Tensor],
    frames: SampleFrames,
    previous: Sequence[int],
    labels: Sequence[int],
    weights: Tensor,
    progress: Tensor | None = None,
) -> Sample:
    """A walk of T steps, (T,) each; no part of the way is done where that is not said."""
    done = torch.zeros_like(weights) if progress is None else progress
    steps = torch.arange(len(labels)), torch.tensor(previous), torch.tensor(labels), weights, done
    return Sample(words, torch.zeros(len(words), dtype=torch.long), frames, *(each[None] for each in steps))


class SetSamples(ABC):
    """The windows of a set, as samples."""

    def __init__(
        self, content: Windows, views: Views, words: Words, known: Known | None = None, mirror: float = 0.0
    ) -> None:
        """mirror: chance that a window is mirrored. Raises UsageError for one where the words are not known."""
        self._content, self._views, self._words = content, views, words
        self._known, self._mirror = known, mirror
        if mirror and not words.numbers:
            raise UsageError("--mirror: swaps words, and the checkpoint reads tokens of R2R; leave it out")

    def __len__(self) -> int:
        return self._content.windows

    @abstractmethod
    def _sample(self, index: int) -> Sample:
        """A window as it is."""

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; whether it is mirrored is drawn."""
        sample = self._sample(index)
        return self._mirrored(sample) if rng.random() < self._mirror else sample

    def _mirrored(self, sample: Sample) -> Sample:
        """The same walks in a mirror."""
        assert isinstance(sample.frames, tuple)
        rgb, depth = sample.frames
        left, right = (self._words.numbers.get(word) for word in ("left", "right"))
        return replace(
            sample,
            words=[_swapped(words, left, right) for words in sample.words],
            frames=(rgb.flip(2), depth.flip(2)),
            shown=None if sample.shown is None else sample.shown.flip(3),
            previous=_swapped(sample.previous, Action.TURN_LEFT, Action.TURN_RIGHT),
            labels=_swapped(sample.labels, Action.TURN_LEFT, Action.TURN_RIGHT),
        )

    def _frames(self, index: int) -> SampleFrames:
        if self._content.kept is not None:
            return self._content.kept.frames(index)
        files = self._content.files(index)
        if self._known is None:
            return read_frames(files, self._views)
        return [self._keyed(*each, self._known) for each in files]

    def _keyed(self, rgb: Path, depth: Path, known: Known) -> Frame:
        key = frame_key(content_of(rgb, AGAIN) + content_of(depth, AGAIN))
        if (features := known(key)) is not None:
            return Frame(key, features, None)
        return Frame(key, None, joined(*read_frames([(rgb, depth)], self._views))[0])


class WalkSamples(SetSamples):
    """The walks of a set, as samples of one walk each; see `SetSamples`."""

    def __init__(
        self,
        content: WalkSet,
        views: Views,
        words: Words,
        known: Known | None = None,
        mirror: float = 0.0,
        inflection_weight: float = 1.0,
        monitored: bool = False,
    ) -> None:
        """monitored: whether progress is learned. Raises UsageError where the walks lack what is read."""
        super().__init__(content, views, words, known, mirror)
        self.walks, self._inflection_weight = content.walks, inflection_weight
        if not words.numbers and not all(walk.tokens for walk in self.walks):
            raise UsageError(
                f"{content.file}: tokens: the checkpoint reads R2R's, and the walks have none; collect them with "
                "--depth from a dataset with tokens"
            )
        if monitored and not all(walk.distances for walk in self.walks):
            raise UsageError(f"{content.file}: distances: the progress monitor needs them; collect with --depth")
        self.places = [i for i, walk in enumerate(self.walks) if len(walk.strays) < len(walk.actions)]

    def _sample(self, index: int) -> Sample:
        walk = self.walks[index]
        weights = inflection_weights(np.array(walk.taught), self._inflection_weight)
        weights[list(walk.strays)] = 0
        return one_walk(
            [self._read(walk, i) for i in range(len(walk.instructions))],
            self._frames(index),
            [0, *walk.actions[:-1]],
            walk.taught,
            torch.from_numpy(weights),
            torch.from_numpy(progress(walk)),
        )

    def _read(self, walk: Trajectory, instruction: int) -> Tensor:
        if self._words.numbers:
            return torch.from_numpy(self._words.numbered(walk.instructions[instruction]))
        words = torch.tensor(walk.tokens[instruction])
        if words.max() >= self._words.size:
            raise UsageError(
                f"{walk.frames_dir.parent.name}: tokens: up to {words.max()}, the checkpoint knows "
                f"{self._words.size}; others number words differently"
            )
        return words

    def question(self, place: int, rng: random.Random) -> Question:
        """A walk up to one of its steps that are examples, what was done before it and under one instruction."""
        whole = self.sample(place, rng)
        (weights,), (labels,), (previous,) = whole.weights, whole.labels.tolist(), whole.previous.tolist()
        step = rng.choice(weights.nonzero()[:, 0].tolist())
        words, counted = rng.choice(whole.words), torch.zeros(step + 1)
        counted[-1] = 1
        assert isinstance(whole.frames, tuple)
        rgb, depth = (each[: step + 1] for each in whole.frames)
        prompt = one_walk([words], (rgb, depth), previous[: step + 1], labels[: step + 1], counted)
        return Question(prompt, (Action(labels[step]),))


def _swapped(numbers: Tensor, one: int | None, other: int | None) -> Tensor:
    """`one` in place of `other` and the other way round; a word that is not known is none."""
    found = numbers.clone()
    for old, new in ((one, other), (other, one)):
        if old is not None:
            found[numbers == old] = 1 if new is None else new
    return found


def inflection_weights(labels: NDArray[np.int64], weight: float) -> NDArray[np.float32]:
    """1 for a step, `weight` for the first one and for one whose label is not the one before it."""
    changes = np.diff(labels, prepend=-1) != 0
    return np.where(changes, np.float32(weight), np.float32(1))


def progress(walk: Trajectory) -> NDArray[np.float32]:
    """Part of the way to the goal that is done at every frame; zeros where distances are not known."""
    if not walk.distances:
        return np.zeros(len(walk.actions), dtype=np.float32)
    distances = np.array(walk.distances, dtype=np.float32)
    done: NDArray[np.float32] = (distances[0] - distances) / max(distances[0], np.float32(1e-3))
    return done


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as a batch: frames sample after sample, walks padded behind their end."""
    counts = [len(each.frames[0] if isinstance(each.frames, tuple) else each.frames) for each in samples]
    first = [0, *accumulate(counts)]
    walks = [0, *accumulate(len(each.labels) for each in samples)]
    rows = [each.rows + before for each, before in zip(samples, first, strict=False)]
    return {
        "frames": _joined([sample.frames for sample in samples]),
        "words": pad_sequence([words for sample in samples for words in sample.words], batch_first=True),
        "walk_of": torch.cat([each.walk_of + before for each, before in zip(samples, walks, strict=False)]),
        **{
            name: _padded([getattr(sample, name) for sample in samples], 0)
            for name in ("previous", "labels", "weights", "progress")
        },
        "rows": _padded(rows, sum(counts)),
        **_shown(samples, first),
    }


def _shown(samples: Sequence[Sample], first: Sequence[int]) -> dict[str, Tensor]:
    """What is to be seen in the cells of which frames, if any of them is known."""
    known = [(each.shown, before) for each, before in zip(samples, first, strict=False) if each.shown is not None]
    if not known:
        return {}
    rows = [torch.arange(len(shown)) + before for shown, before in known]
    return {"shown": torch.cat([shown for shown, _ in known]), "shown_of": torch.cat(rows)}


def _padded(parts: Sequence[Tensor], value: int) -> Tensor:
    """Parts (W, T), each with its own W and T, as one (sum of W, longest T)."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat([pad(part, (0, longest - part.shape[1]), value=value) for part in parts])


def _joined(frames: Sequence[Any]) -> tuple[Tensor, Tensor] | Sequence[Tensor] | Frames:
    if isinstance(frames[0], Tensor):
        return frames
    if isinstance(frames[0], list):
        return pack(frames)
    rgb, depth = zip(*frames, strict=True)
    return torch.cat(rgb), torch.cat(depth)
