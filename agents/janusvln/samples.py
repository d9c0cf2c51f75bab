"""Walks to learn from, and a sample for each of their steps, as the published code builds them.

Two layouts are read (github.com/MIV-XJTU/JanusVLN, create_data). R2R and RxR: a list of episodes (train.json,
train_guide.json, or either gzipped) and a folder per episode below train/ or images/, with frames
step_K_ACTION.png, each seen before that action. ScaleVLN and DAgger: walks in annotations.json with frames
rgb/NNN.jpg, as `vlnbench collect` writes them.
"""

from __future__ import annotations

import io
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from agents.common.qwen2_5_vl.config import BLOCK, MERGE
from agents.common.qwen2_5_vl.image import Grid, grid_of
from agents.common.qwen2_5_vl.network import IGNORED
from agents.common.sets.trajectories import read_trajectories
from agents.janusvln.agent import LABELS, Prompts, shown_steps
from agents.janusvln.features import GEOMETRIES, TOWERS, Seen, frame_key, geometry_key, mix
from agents.janusvln.network import JanusVLNConfig, resize
from agents.janusvln.options import EPISODES, SET_FILES, JanusVLNTraining
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.policy import Question
from vlnbench.training.family.trains import Known
from vlnbench.util.durable.json_stream import members
from vlnbench.util.durable.limits import regular

FRAMES = ("train", "images")
_NUMBER = re.compile(r"step_(\d+)_")


@dataclass(frozen=True, slots=True)
class Walk:
    """One walk: `actions[i]` is to be done at `frames[i]`, which lie in `folder`; strays are no examples.

    `before[i]` was done to get to frame i, None at the first. `texts` are instructions as they go into a question.
    """

    name: str
    folder: Path
    frames: tuple[str, ...]
    actions: tuple[Action, ...]
    texts: tuple[str, ...]
    before: tuple[Action | None, ...]
    strays: frozenset[int] = frozenset()


@dataclass(frozen=True)
class WalkSet:
    """A set: its walks in order, and of how many episodes there were no frames.

    Samples are numbered walk by walk, instruction by instruction, step by step.
    """

    file: Path
    walks: tuple[Walk, ...]
    absent: int
    history: int
    keys: tuple[tuple[int, int, int], ...]

    @property
    def windows(self) -> int:
        """Samples."""
        return len(self.keys)

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many: of what is no fault always, of what may be one only where there are some."""
        found = {"trajectories": len(self.walks), "instructions": sum(len(walk.texts) for walk in self.walks)}
        faults = {
            "episodes without frames": self.absent,
            "walks not in order (--chronological)": sum(map(_is_mixed, self.walks)),
        }
        return found | {name: count for name, count in faults.items() if count}

    def texts(self) -> Iterator[str]:
        """Instructions."""
        for walk in self.walks:
            yield from walk.texts

    def lengths(self) -> list[tuple[int, ...]]:
        """(images, characters of the instruction) of every sample."""
        return [(min(step, self.history) + 1, len(self.walks[walk].texts[text])) for walk, text, step in self.keys]


def read_set(folder: Path, options: JanusVLNTraining) -> WalkSet:
    """The walks of a set. Raises UsageError for one that is missing, empty or broken."""
    file = next((folder / name for name in SET_FILES if (folder / name).is_file()), None)
    if file is None:
        raise UsageError(
            f"{folder}: no training set; expected {TRAJECTORIES}, or {EPISODES[0]} beside {FRAMES[0]}/ with a "
            "folder of frames per episode"
        )
    absent = 0
    if file.name == TRAJECTORIES:
        walks = _trajectories(folder, options.instructions == "all")
    else:
        walks, absent = _episodes(file, options.chronological)
    keys = [
        (number, text, step)
        for number, walk in enumerate(walks)
        for text in range(len(walk.texts))
        for step in range(len(walk.frames))
        if step not in walk.strays
    ]
    assert options.history is not None  # settled
    return WalkSet(file, tuple(walks), absent, options.history, tuple(keys))


def _trajectories(folder: Path, every_text: bool) -> list[Walk]:
    """Walks of a folder with annotations.json; instructions stay as they are, blanks at their ends included."""
    return [
        Walk(
            name=found.frames_dir.parent.name,
            folder=found.frames_dir,
            frames=tuple(found.frame_names()),
            actions=found.taught,
            texts=found.instructions if every_text else found.instructions[:1],
            before=(None, *found.actions[:-1]),
            strays=found.strays,
        )
        for found in read_trajectories(folder, shortest=1)
    ]


def _episodes(file: Path, chronological: bool) -> tuple[list[Walk], int]:
    """Walks of a list of episodes, and how many of these have no folder; instructions are stripped."""
    root = next((file.parent / name for name in FRAMES if (file.parent / name).is_dir()), None)
    if root is None:
        raise UsageError(f"{file}: no folder {FRAMES[0]} or {FRAMES[1]} beside it, which has the frames")
    walks, absent = [], 0
    for name, text in _named_texts(file):
        if not (root / name).is_dir():
            absent += 1
            continue
        frames = _frames(root / name, chronological)
        actions = tuple(_label(root / name / frame) for frame in frames)
        walks.append(Walk(name, root / name, frames, actions, (text,), (None, *actions[:-1])))
    if not walks:
        raise UsageError(f"{root}: no frames for any of {absent} episodes of {file.name}; extract the archives")
    return walks, absent


def _named_texts(file: Path) -> Iterator[tuple[str, str]]:
    """Name of the frames' folder and instruction of every episode."""
    episodes = (value for name, value in members(file, "episodes") if name == "episodes")
    for number, episode in enumerate(episodes):
        where = f"{file}: episode {number}"
        name = episode.get("episode_id") if isinstance(episode, dict) else None
        if isinstance(name, bool) or not isinstance(name, int | str) or not re.fullmatch(r"[\w-]+", str(name)):
            raise UsageError(f"{where}: episode_id: expected a number or a plain word")
        told = episode.get("instruction")
        text = told.get("instruction_text") if isinstance(told, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"{where}: instruction: expected an object with instruction_text")
        yield str(name), text.strip()


def _frames(folder: Path, chronological: bool) -> tuple[str, ...]:
    names = sorted(name for name in os.listdir(folder) if name.endswith((".png", ".jpg")))
    if not names:
        raise UsageError(f"{folder}: no frames step_K_ACTION.png; extract the archives completely")
    if chronological:
        numbers = {name: int(found[1]) if (found := _NUMBER.match(name)) else -1 for name in names}
        names.sort(key=lambda name: numbers[name])
    return tuple(names)


def _label(path: Path) -> Action:
    """The action in a frame's name: its last word, or with more than three words its last two."""
    words: Sequence[str] = path.stem.split("_")
    label = "_".join(words[-2:]) if len(words) > 3 else words[-1]
    if label not in LABELS:
        raise UsageError(f"{path}: expected a name step_K_ACTION with one of {', '.join(LABELS)}")
    return LABELS[label]


def _is_mixed(walk: Walk) -> bool:
    """Whether the frames are not in the order of their numbers."""
    numbers = [int(found[1]) for name in walk.frames if (found := _NUMBER.match(name))]
    return numbers != sorted(numbers)


@dataclass(frozen=True)
class Reader:
    """How frames are read: scaled to `width`; with `known`, what encoders make of them is looked up first.

    `sees`: whether Qwen's tower is frozen, so that its features are known, too.
    """

    width: int
    known: Known | None = None
    sees: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of a walk.

    input_ids: L token ids with one placeholder per image. labels: L ids, `IGNORED` where the loss does not look.
    grid: embeddings of its images. frames: uint8 (k, height, width, 3), the current one last; None where nothing
    has to look at them again. towers, geometries: what encoders look at, where features are kept.
    """

    input_ids: list[int]
    labels: list[int]
    grid: Grid
    frames: Tensor | None
    towers: list[Seen] | None = None
    geometries: list[Seen] | None = None


class StepSamples:
    """The steps of a set's walks, as samples."""

    def __init__(self, content: WalkSet, prompts: Prompts, config: JanusVLNConfig, reader: Reader) -> None:
        self.content = content
        self._prompts, self._config, self._reader = prompts, config, reader
        self.places = range(content.windows)

    def __len__(self) -> int:
        return self.content.windows

    def question(self, index: int, rng: random.Random) -> Question:
        """A step as an agent would be asked there, and what the expert did."""
        sample = self.sample(index, rng)
        asked = [id_ for id_, label in zip(sample.input_ids, sample.labels, strict=True) if label == IGNORED]
        walk, _, step = self.content.keys[index]
        return Question((asked, sample.frames), (self.content.walks[walk].actions[step],))

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; nothing is drawn."""
        walk_number, text, step = self.content.keys[index]
        walk = self.content.walks[walk_number]
        paths = [walk.folder / walk.frames[shown] for shown in shown_steps(step, self._config.num_history)]
        try:
            ids, labels = self.written(walk.texts[text], len(paths), walk.actions[step].name)
        except ValueError as error:
            raise UsageError(f"{self.content.file}: {walk.name}: {error}") from error
        if self._reader.known is None:
            frames = torch.stack([_decoded(path, _content(path), self._reader.width) for path in paths])
            return Sample(ids, labels, grid_of(*frames.shape[1:3]), frames)
        return self._keyed(ids, labels, paths, self._reader.known)

    def written(self, instruction: str, images: int, label: str) -> tuple[list[int], list[int]]:
        """Token ids and labels of a question with its answer."""
        asked, told = self._prompts.question(instruction, images), self._prompts.answer(label)
        if not self._prompts.published:
            told = told[:-1]  # answers end before the newline
        return asked + told, [IGNORED] * len(asked) + told

    def _keyed(self, ids: list[int], labels: list[int], paths: Sequence[Path], known: Known) -> Sample:
        """The same with what is known in the place of frames."""
        contents = [_content(path) for path in paths]
        keys = [frame_key(content) for content in contents]
        geometry = known(geometry_key(keys))
        sees, width = self._reader.sees, self._reader.width
        towers = [known(key) if sees else None for key in keys]
        needed = [i for i, tower in enumerate(towers) if geometry is None or tower is None]
        frames = {i: _decoded(paths[i], contents[i], width) for i in needed}
        whole = torch.stack([frames[i] for i in needed]) if len(needed) == len(keys) else None
        seen = Seen(geometry_key(keys), geometry, whole if geometry is None else None)
        return Sample(
            ids,
            labels,
            _grid(width, frames, [geometry, *towers]),
            None if sees else whole,
            [
                Seen(key, tower, frames[i] if tower is None else None)
                for i, (key, tower) in enumerate(zip(keys, towers, strict=True))
            ]
            if sees
            else None,
            [seen],
        )


def _grid(width: int, frames: dict[int, Tensor], known: Sequence[Tensor | None]) -> Grid:
    """The embeddings of a sample's images, from a frame or from features of one."""
    for frame in frames.values():
        return grid_of(*frame.shape[:2])
    columns = width // BLOCK
    patches = next(len(each) for each in known if each is not None)
    return Grid(patches // MERGE**2 // columns, columns)


def _content(path: Path) -> bytes:
    try:
        return regular(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); extract it again") from error


def _decoded(path: Path, content: bytes, width: int) -> Tensor:
    """A frame scaled for the network, uint8 (height, width, 3)."""
    try:
        with Image.open(io.BytesIO(content)) as picture:
            return torch.from_numpy(resize(np.asarray(picture.convert("RGB")), width))
    except (OSError, SyntaxError, ValueError) as error:  # SyntaxError is Pillow's for broken PNG files
        raise UsageError(f"{path}: cannot be read as a frame ({error}); extract it again") from error


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as the arguments of `JanusVLN.forward`; whoever has features puts those in the place of `Mixed`."""
    frames = [sample.frames for sample in samples if sample.frames is not None]
    batch: dict[str, Any] = {
        "input_ids": [sample.input_ids for sample in samples],
        "frames": frames or None,
        "labels": [sample.labels for sample in samples],
        "grids": [sample.grid for sample in samples],
    }
    for name in (TOWERS, GEOMETRIES):
        seen = [getattr(sample, name) for sample in samples]
        if seen[0] is not None:
            batch[name] = mix(seen)
    return batch
