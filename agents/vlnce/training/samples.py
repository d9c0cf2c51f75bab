"""Training samples of CMA and Seq2Seq: whole walks, one under each of its instructions."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.common.trajectories import Trajectory
from agents.vlnce.config import Config, Views
from agents.vlnce.training.frames import Packed, content_of, frame_files, read_frame, read_walk
from agents.vlnce.views import numbered, share_of, word_numbers
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family import Known


@dataclass(frozen=True)
class WalkSet:
    """Walks; a window is a walk under all of its instructions, which share its frames."""

    file: Path
    walks: tuple[Trajectory, ...]
    packed: Packed | None = None

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


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame with its key: features if they are kept, else pixels, RGB and depth one after the other."""

    key: str
    features: Tensor | None
    pixels: Tensor | None


@dataclass(frozen=True)
class Frames:
    """Frames of a batch as the feature cache takes them: what is known, (K, ...), then pixels under their keys.

    `order[i]` are the frames of sample i as positions in both.
    """

    order: list[list[int]]
    known: Tensor
    keys: list[str]
    pixels: Tensor


@dataclass(frozen=True, slots=True)
class Sample:
    """One walk of T steps under its instructions.

    words: of each instruction, (L,) int64. frames: RGB, uint8 (T, H, W, 3), and depth, float32 (T, h, w) in [0, 1]
    or uint8 levels of it; or frames with keys. previous: (T,) int64, what was done before. labels: (T,) int64.
    weights: (T,) float32. progress: (T,) float32, which part of the way is done.
    """

    words: list[Tensor]
    frames: tuple[Tensor, Tensor] | list[Frame]
    previous: Tensor
    labels: Tensor
    weights: Tensor
    progress: Tensor


class WalkSamples:
    """The windows of a set, as samples."""

    def __init__(
        self,
        content: WalkSet,
        config: Config,
        inflection_weight: float,
        known: Known | None,
        mirror: float = 0.0,
    ) -> None:
        """Raises UsageError where the walks lack what the network reads, and for `mirror`, the chance that a walk
        is mirrored, where the words are not known."""
        self._walks, self._packed = content.walks, content.packed
        self._config, self._inflection_weight, self._known = config, inflection_weight, known
        self._numbers = word_numbers(config.vocabulary)
        self._mirror = mirror
        if mirror and not config.vocabulary:
            raise UsageError("--mirror: swaps words, and the checkpoint reads tokens of R2R; leave it out")
        if not config.vocabulary and not all(walk.tokens for walk in content.walks):
            raise UsageError(
                f"{content.file}: tokens: the checkpoint reads R2R's, and the walks have none; collect them with "
                "--depth from a dataset with tokens"
            )
        if config.network.progress_monitor and not all(walk.distances for walk in content.walks):
            raise UsageError(f"{content.file}: distances: the progress monitor needs them; collect with --depth")

    def __len__(self) -> int:
        return len(self._walks)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; whether it is mirrored is drawn."""
        walk = self._walks[index]
        labels = np.array(walk.labels or walk.actions, dtype=np.int64)
        weights = inflection_weights(labels, self._inflection_weight)
        weights[list(walk.strays)] = 0
        previous = np.array([0, *walk.actions[:-1]], dtype=np.int64)
        sample = Sample(
            words=[torch.from_numpy(self._words(walk, i)) for i in range(len(walk.instructions))],
            frames=self._frames(walk, index),
            previous=torch.from_numpy(previous),
            labels=torch.from_numpy(labels),
            weights=torch.from_numpy(weights),
            progress=torch.from_numpy(progress(walk)),
        )
        return self._mirrored(sample) if rng.random() < self._mirror else sample

    def _mirrored(self, sample: Sample) -> Sample:
        """The same walk in a mirror."""
        assert isinstance(sample.frames, tuple)
        rgb, depth = sample.frames
        left, right = (self._numbers.get(word) for word in ("left", "right"))
        return replace(
            sample,
            words=[_swapped(words, left, right) for words in sample.words],
            frames=(rgb.flip(2), depth.flip(2)),
            previous=_swapped(sample.previous, Action.TURN_LEFT, Action.TURN_RIGHT),
            labels=_swapped(sample.labels, Action.TURN_LEFT, Action.TURN_RIGHT),
        )

    def _words(self, walk: Trajectory, instruction: int) -> NDArray[np.int64]:
        if self._config.vocabulary:
            return numbered(walk.instructions[instruction], self._numbers)
        words = np.array(walk.tokens[instruction], dtype=np.int64)
        if words.max() >= self._config.network.vocab_size:
            raise UsageError(
                f"{walk.frames_dir.parent.name}: tokens: up to {words.max()}, the checkpoint knows "
                f"{self._config.network.vocab_size}; others number words differently"
            )
        return words

    def _frames(self, walk: Trajectory, index: int) -> tuple[Tensor, Tensor] | list[Frame]:
        if self._packed is not None:
            return self._packed.frames(index)
        views = self._config.views
        if self._known is None:
            return read_walk(walk, views)
        return [self._keyed(*files, self._known) for files in frame_files(walk)]

    def _keyed(self, rgb: Path, depth: Path, known: Known) -> Frame:
        digest = hashlib.blake2b(content_of(rgb), digest_size=16)
        digest.update(content_of(depth))
        key = digest.hexdigest()
        if (features := known(key)) is not None:
            return Frame(key, features, None)
        return Frame(key, None, flat(*read_frame(rgb, depth, self._config.views)))


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


def flat(rgb: Tensor, depth: Tensor) -> Tensor:
    """A frame as one float32 vector, for the feature cache; `unflat` is the way back, for many."""
    return torch.cat([rgb.flatten().float(), share_of(depth).flatten()])


def unflat(pixels: Tensor, views: Views) -> tuple[Tensor, Tensor]:
    """(N, numbers) as RGB, uint8 (N, H, W, 3), and depth (N, h, w)."""
    frame, depth_frame = views.inputs
    split = frame[0] * frame[1] * 3
    return pixels[:, :split].to(torch.uint8).view(-1, *frame, 3), pixels[:, split:].view(-1, *depth_frame)


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as the arguments of `Learner.forward`: frames walk after walk, the rest padded."""
    pad = torch.nn.utils.rnn.pad_sequence
    lengths = [len(sample.labels) for sample in samples]
    rows = list(torch.split(torch.arange(sum(lengths)), lengths))
    return {
        "frames": _joined([sample.frames for sample in samples]),
        "words": pad([words for sample in samples for words in sample.words], batch_first=True),
        "walk_of": torch.tensor([i for i, sample in enumerate(samples) for _ in sample.words]),
        **{
            name: pad([getattr(sample, name) for sample in samples], batch_first=True)
            for name in ("previous", "labels", "weights", "progress")
        },
        "rows": pad(rows, batch_first=True, padding_value=sum(lengths)),
    }


def _joined(frames: Sequence[Any]) -> tuple[Tensor, Tensor] | Frames:
    if isinstance(frames[0], tuple):
        rgb, depth = zip(*frames, strict=True)
        return torch.cat(rgb), torch.cat(depth)
    unique = {frame.key: frame for each in frames for frame in each}
    known = {key: frame.features for key, frame in unique.items() if frame.features is not None}
    unknown = {key: frame.pixels for key, frame in unique.items() if frame.pixels is not None}
    position = {key: i for i, key in enumerate([*known, *unknown])}
    return Frames(
        order=[[position[frame.key] for frame in each] for each in frames],
        known=torch.stack(list(known.values())) if known else torch.empty(0),
        keys=list(unknown),
        pixels=torch.stack(list(unknown.values())) if unknown else torch.empty(0),
    )
