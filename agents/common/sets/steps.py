"""Walks as sets of steps, a sample for each, in the two layouts that JanusVLN's published code reads.

They are those of github.com/MIV-XJTU/JanusVLN, create_data. R2R and RxR: a list of episodes (train.json,
train_guide.json, or either gzipped; where none is in the folder, that of the published dataset) and a folder per
episode below train/ or images/, with frames step_K_ACTION.png, each seen before that action. ScaleVLN and DAgger:
walks in annotations.json with frames rgb/NNN.jpg, as `vlnbench collect` writes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.common.answers.names import NAMES
from agents.common.sets.layouts import EPISODES, SET_FILES
from agents.common.sets.trajectories import read_trajectories
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.data.trajectory_sets import set_file
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.util.durable.json_stream import members

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
class StepSet:
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


def read_steps(folder: Path, history: int, *, every_text: bool = False, chronological: bool = False) -> StepSet:
    """The walks of a set. history: earlier frames that a sample shows at most. every_text: samples for each of a
    trajectory's instructions, not the first alone. chronological: frames step_K_ACTION.png in the order of K, not
    of their names. Raises UsageError for a set that is missing, empty or broken."""
    file = set_file(folder, SET_FILES)
    if file is None:
        raise UsageError(
            f"{folder}: no training set; expected {TRAJECTORIES}, or {EPISODES[0]} (R2R-CE's own "
            f"train.json.gz) beside {FRAMES[0]}/ or {FRAMES[1]}/ with a folder of frames per episode"
        )
    absent = 0
    if file.name == TRAJECTORIES:
        walks = _trajectories(folder, every_text)
    else:
        walks, absent = _episodes(file, folder, chronological)
    keys = [
        (number, text, step)
        for number, walk in enumerate(walks)
        for text in range(len(walk.texts))
        for step in range(len(walk.frames))
        if step not in walk.strays
    ]
    return StepSet(file, tuple(walks), absent, history, tuple(keys))


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


def _episodes(file: Path, folder: Path, chronological: bool) -> tuple[list[Walk], int]:
    """Walks of a list of episodes, and how many of these have no folder; instructions are stripped."""
    root = next((folder / name for name in FRAMES if (folder / name).is_dir()), None)
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
    if label not in NAMES:
        raise UsageError(f"{path}: expected a name step_K_ACTION with one of {', '.join(NAMES)}")
    return NAMES[label]


def _is_mixed(walk: Walk) -> bool:
    """Whether the frames are not in the order of their numbers."""
    numbers = [int(found[1]) for name in walk.frames if (found := _NUMBER.match(name))]
    return numbers != sorted(numbers)
