"""Training samples of CMA and Seq2Seq: walks, each under one or more instructions, and questions about views."""

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

from agents.common.prompts.words import numbered, word_numbers
from agents.common.sets.conversations import SYMBOLS, TAG, read_conversations
from agents.common.sets.trajectories import Trajectory
from agents.common.sight.pictures import AGAIN, beside, check_there, content_of
from agents.common.sight.rgbd import (
    Files,
    Packed,
    PackedFeatures,
    Windows,
    flat,
    frame_files,
    read_frame,
    read_frames,
)
from agents.common.sight.semantics import Semantics, read_semantics
from agents.common.sight.shown import Shown
from agents.common.towers.resnet import GRID
from agents.vlnce.options import Config
from vlnbench.data.sets import CONVERSATIONS
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


VIEWS = 8
"""How many views an album holds at most."""


@dataclass(frozen=True, slots=True)
class View:
    """RGB and depth image, what is asked with the action that comes first, where the semantic image would be."""

    files: tuple[Path, Path]
    asked: tuple[tuple[str, Action], ...]
    semantic: Path


@dataclass(frozen=True)
class AlbumSet:
    """Views of which a window holds several, from all houses. semantics: what their pixels may belong to. packed:
    their frames, where they are kept decoded."""

    file: Path
    views: tuple[View, ...]
    semantics: Semantics | None = None
    packed: Packed | PackedFeatures | None = None

    @property
    def windows(self) -> int:
        return -(-len(self.views) // VIEWS)

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many."""
        return {"conversations": len(self.views), "questions": sum(len(view.asked) for view in self.views)}

    def texts(self) -> Iterator[str]:
        """Questions."""
        for view in self.views:
            yield from (question for question, _ in view.asked)

    def lengths(self) -> list[tuple[int, ...]]:
        """(steps, questions) of every window."""
        return [(1, sum(len(view.asked) for view in self.album(index))) for index in range(self.windows)]

    def album(self, window: int) -> tuple[View, ...]:
        """Views that lie far apart in the set, so that they are of many houses."""
        return self.views[window :: self.windows]

    def frame_counts(self) -> list[int]:
        """How many views each window has."""
        return [len(self.album(window)) for window in range(self.windows)]

    def files(self, window: int) -> Files:
        """RGB and depth image of every view of a window."""
        return [view.files for view in self.album(window)]

    @property
    def shown(self) -> Shown | None:
        """What the cells of every window's views show, if that is known."""
        if self.semantics is None:
            return None
        albums = map(self.album, range(self.windows))
        return Shown(self.semantics, [[view.semantic for view in album] for album in albums], GRID)


def read_albums(folder: Path) -> AlbumSet:
    """The views of a folder of questions about which something is asked that an action answers.

    Raises UsageError for records that break the format, missing images, and where there are no such questions.
    """
    views = []
    for each in read_conversations(folder):
        asked = tuple(
            (question.replace(TAG, "").strip(), SYMBOLS[answer[0]])
            for question, answer in each.turns
            if answer[:1] in SYMBOLS and not question.rstrip().endswith("?")
        )
        if asked and len(each.images) == 1:
            image = each.images[0]
            views.append(View((image, beside(folder, image, "depth")), asked, beside(folder, image, "semantic")))
    file, semantics = folder / CONVERSATIONS, read_semantics(folder)
    if not views:
        raise UsageError(
            f"{file}: no instruction about one image that actions answer; make it with data questions"
        )
    check_there(file, "depth", [view.files[1] for view in views])
    if semantics is not None:
        check_there(file, "semantic", [view.semantic for view in views])
    return AlbumSet(file, tuple(views), semantics)


class AlbumSamples(SetSamples):
    """The windows of a set of views, as samples of walks of one step."""

    def __init__(
        self,
        content: AlbumSet,
        config: Config,
        known: Known | None,
        mirror: float = 0.0,
        shown: Shown | None = None,
    ) -> None:
        """shown: what is to be told. Raises UsageError for a network that reads no words; see `SetSamples`."""
        super().__init__(config, known, mirror)
        if not config.vocabulary:
            raise UsageError(
                f"{content.file}: questions in words, and the checkpoint reads tokens of R2R; leave the set out"
            )
        self._content, self._shown = content, shown

    def __len__(self) -> int:
        return self._content.windows

    def _sample(self, index: int) -> Sample:
        album = self._content.album(index)
        asked = [(row, *pair) for row, view in enumerate(album) for pair in view.asked]
        rows, questions, actions = zip(*asked, strict=True)
        labels = torch.tensor(actions)[:, None]
        return Sample(
            words=[self._numbered(question) for question in questions],
            walk_of=torch.arange(len(asked)),
            frames=self._frames(index, self._content, self._content.packed),
            rows=torch.tensor(rows)[:, None],
            previous=torch.zeros_like(labels),
            labels=labels,
            weights=torch.ones_like(labels, dtype=torch.float32),
            progress=torch.zeros_like(labels, dtype=torch.float32),
            shown=None if self._shown is None else self._shown.of(index),
        )
