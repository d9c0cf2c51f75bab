"""Training samples of CMA and Seq2Seq: walks, each under one or more instructions."""

from __future__ import annotations

import hashlib
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

from agents.common.sets.trajectories import Trajectory
from agents.common.sight.pictures import AGAIN, content_of
from agents.vlnce.config import Config, Views
from agents.vlnce.training.frames import (
    Files,
    Packed,
    PackedFeatures,
    Windows,
    frame_files,
    read_frame,
    read_frames,
)
from agents.vlnce.views import numbered, share_of, word_numbers
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.trains import Known


@dataclass(frozen=True)
class WalkSet:
    """Walks; a window is a walk under all of its instructions, which share its frames."""

    file: Path
    walks: tuple[Trajectory, ...]
    packed: Packed | PackedFeatures | None = None

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

    def frame_counts(self) -> list[int]:
        """How many frames each window has."""
        return [len(walk.actions) for walk in self.walks]

    def files(self, window: int) -> Files:
        """RGB and depth image of every frame of a walk."""
        return frame_files(self.walks[window])


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
    """W walks of T steps under N instructions, over F frames.

    words: of each instruction, (L,) int64. walk_of: (N,) int64, which walk it is about. frames: RGB, uint8
    (F, H, W, 3), and depth, float32 (F, h, w) in [0, 1] or uint8 levels of it; or their features, (F, numbers); or
    frames with keys. rows: (W, T) int64, which frame a step shows. previous: (W, T) int64, what was done before.
    labels: (W, T) int64. weights: (W, T) float32. progress: (W, T) float32, which part of the way is done. shown:
    bool (F, names, GRID, GRID), what the cells of the frames show; None where that is not known.
    """

    words: list[Tensor]
    walk_of: Tensor
    frames: tuple[Tensor, Tensor] | Tensor | list[Frame]
    rows: Tensor
    previous: Tensor
    labels: Tensor
    weights: Tensor
    progress: Tensor
    shown: Tensor | None = None


class SetSamples(ABC):
    """The windows of a set, as samples."""

    def __init__(self, config: Config, known: Known | None, mirror: float) -> None:
        """mirror: chance that a window is mirrored. Raises UsageError for one where the words are not known."""
        self._config, self._known, self._mirror = config, known, mirror
        self._numbers = word_numbers(config.vocabulary)
        if mirror and not config.vocabulary:
            raise UsageError("--mirror: swaps words, and the checkpoint reads tokens of R2R; leave it out")

    @abstractmethod
    def __len__(self) -> int: ...

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
        left, right = (self._numbers.get(word) for word in ("left", "right"))
        return replace(
            sample,
            words=[_swapped(words, left, right) for words in sample.words],
            frames=(rgb.flip(2), depth.flip(2)),
            shown=None if sample.shown is None else sample.shown.flip(3),
            previous=_swapped(sample.previous, Action.TURN_LEFT, Action.TURN_RIGHT),
            labels=_swapped(sample.labels, Action.TURN_LEFT, Action.TURN_RIGHT),
        )

    def _numbered(self, text: str) -> Tensor:
        """The words of a text by number, (L,) int64."""
        return torch.from_numpy(numbered(text, self._numbers))

    def _frames(
        self, index: int, content: Windows, packed: Packed | PackedFeatures | None
    ) -> tuple[Tensor, Tensor] | Tensor | list[Frame]:
        if packed is not None:
            return packed.frames(index)
        files = content.files(index)
        if self._known is None:
            return read_frames(files, self._config.views)
        return [self._keyed(*each, self._known) for each in files]

    def _keyed(self, rgb: Path, depth: Path, known: Known) -> Frame:
        digest = hashlib.blake2b(content_of(rgb, AGAIN), digest_size=16)
        digest.update(content_of(depth, AGAIN))
        key = digest.hexdigest()
        if (features := known(key)) is not None:
            return Frame(key, features, None)
        return Frame(key, None, flat(*read_frame(rgb, depth, self._config.views)))


class WalkSamples(SetSamples):
    """The walks of a set, as samples of one walk each."""

    def __init__(
        self,
        content: WalkSet,
        config: Config,
        inflection_weight: float,
        known: Known | None,
        mirror: float = 0.0,
    ) -> None:
        """Raises UsageError where the walks lack what the network reads; see `SetSamples`."""
        super().__init__(config, known, mirror)
        self._content, self._inflection_weight = content, inflection_weight
        if not config.vocabulary and not all(walk.tokens for walk in content.walks):
            raise UsageError(
                f"{content.file}: tokens: the checkpoint reads R2R's, and the walks have none; collect them with "
                "--depth from a dataset with tokens"
            )
        if config.network.progress_monitor and not all(walk.distances for walk in content.walks):
            raise UsageError(f"{content.file}: distances: the progress monitor needs them; collect with --depth")

    def __len__(self) -> int:
        return len(self._content.walks)

    def _sample(self, index: int) -> Sample:
        walk = self._content.walks[index]
        labels = np.array(walk.taught, dtype=np.int64)
        weights = inflection_weights(labels, self._inflection_weight)
        weights[list(walk.strays)] = 0
        previous = np.array([0, *walk.actions[:-1]], dtype=np.int64)
        return Sample(
            words=[self._words(walk, i) for i in range(len(walk.instructions))],
            walk_of=torch.zeros(len(walk.instructions), dtype=torch.long),
            frames=self._frames(index, self._content, self._content.packed),
            rows=torch.arange(len(labels))[None],
            previous=torch.from_numpy(previous)[None],
            labels=torch.from_numpy(labels)[None],
            weights=torch.from_numpy(weights)[None],
            progress=torch.from_numpy(progress(walk))[None],
        )

    def _words(self, walk: Trajectory, instruction: int) -> Tensor:
        if self._config.vocabulary:
            return self._numbered(walk.instructions[instruction])
        words = torch.tensor(walk.tokens[instruction])
        if words.max() >= self._config.network.vocab_size:
            raise UsageError(
                f"{walk.frames_dir.parent.name}: tokens: up to {words.max()}, the checkpoint knows "
                f"{self._config.network.vocab_size}; others number words differently"
            )
        return words


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
    """Samples as the arguments of `Learner.forward`: frames sample after sample, walks padded behind their end."""
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
