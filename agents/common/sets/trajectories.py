"""Folders of recorded trajectories in StreamVLN's training layout.

`<folder>/annotations.json` lists the trajectories; frame i of one lies in `<folder>/<video>/rgb`, at position i of
the sorted listing (the names count from 000 or from 001), and was seen before its i-th action.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vlnbench.data.sets import TRAJECTORIES, read_list
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action

SHORTEST = 4
"""Trajectories with fewer actions are left out, as the published training does."""
_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One recorded trajectory: `actions[i]` is what was done at frame i; the last is STOP.

    strays: frames at which what was done is no example. labels: what is to be done at every frame, empty where
    that is what was done. distances: meters to the goal at every frame, empty where they are not known. tokens: of
    every instruction in its dataset's own numbers, empty where there are none.
    """

    frames_dir: Path
    instructions: tuple[str, ...]
    actions: tuple[Action, ...]
    strays: frozenset[int] = frozenset()
    labels: tuple[Action, ...] = ()
    distances: tuple[float, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()

    @property
    def taught(self) -> tuple[Action, ...]:
        """What is to be done at every frame."""
        return self.labels or self.actions

    def frames(self) -> list[Path]:
        """Image files in order."""
        return [self.frames_dir / name for name in self.frame_names()]

    def frames_at(self, steps: Iterable[int]) -> list[Path]:
        """Those of some steps."""
        names = self.frame_names()
        return [self.frames_dir / names[step] for step in steps]

    def frame_names(self) -> list[str]:
        """Their names, which is all that a window needs to find its few: paths cost more than the listing."""
        return sorted(name for name in os.listdir(self.frames_dir) if name.lower().endswith(_SUFFIXES))


def read_trajectories(folder: Path, shortest: int = SHORTEST) -> list[Trajectory]:
    """The trajectories of a folder with at least `shortest` actions, in the order of its annotations.

    Every frame is looked for. Raises UsageError for records that break the format and for frames that are
    missing or too many, with their number.
    """
    path = folder / TRAJECTORIES
    records = read_list(path, "trajectories", f"expected a folder of trajectories with {TRAJECTORIES}")
    trajectories = [
        trajectory
        for index, record in enumerate(records)
        if len((trajectory := _trajectory(path, index, record)).actions) >= shortest
    ]
    if not trajectories:
        raise UsageError(f"{path}: no trajectory of at least {shortest} actions")
    _check_frames(path, trajectories)
    return trajectories


def _trajectory(path: Path, index: int, record: Any) -> Trajectory:
    def fail(name: str, expected: str) -> UsageError:
        return UsageError(f"{path}: record {index}: field {name!r}: expected {expected}")

    if not isinstance(record, dict):
        raise UsageError(f"{path}: record {index}: expected an object with video, instructions and actions")
    video, texts, actions = (record.get(name) for name in ("video", "instructions", "actions"))
    if not isinstance(video, str) or not video:
        raise fail("video", "the path of the trajectory's folder")
    if not stays_below(video):
        raise fail("video", f"{BELOW}, found {video!r}")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise fail("instructions", "a text or a list of texts")
    if not isinstance(actions, list) or actions[:1] != [-1] or not all(map(_is_action, actions[1:])):
        raise fail("actions", "-1 and then actions from 0 to 3")
    labels = (*(Action(action) for action in actions[1:]), Action.STOP)
    strays = record.get("strays", [])
    if not isinstance(strays, list) or not all(type(k) is int and 0 < k < len(actions) for k in strays):
        raise fail("strays", "positions in actions, from 1 on")
    taught = record.get("labels", [])
    if not isinstance(taught, list) or len(taught) not in (0, len(actions)) or not all(map(_is_action, taught)):
        raise fail("labels", "an action from 0 to 3 for every frame")
    distances = record.get("distances", [])
    if (
        not isinstance(distances, list)
        or len(distances) not in (0, len(actions))
        or not all(map(_is_m, distances))
    ):
        raise fail("distances", "meters for every frame")
    tokens = record.get("tokens", [])
    if not isinstance(tokens, list) or len(tokens) not in (0, len(texts)) or not all(map(_are_tokens, tokens)):
        raise fail("tokens", "a list of numbers for every instruction")
    return Trajectory(
        path.parent / video / "rgb",
        tuple(texts),
        labels,
        frozenset(k - 1 for k in strays),
        tuple(map(Action, taught)),
        tuple(map(float, distances)),
        tuple(map(tuple, tokens)),
    )


BELOW = "a path below the folder of the set, relative and without '..'"
"""What `stays_below` asks for, in words."""


def stays_below(name: str) -> bool:
    """Whether a path in a set cannot name a file elsewhere: sets are downloaded, and their frames are shown."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _is_action(value: Any) -> bool:
    return type(value) is int and 0 <= value <= Action.TURN_RIGHT


def _is_m(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _are_tokens(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(each) is int and 0 <= each < 1 << 31 for each in value)
    )


def _check_frames(path: Path, trajectories: list[Trajectory]) -> None:
    broken, missing = [], 0
    for trajectory in trajectories:
        found = len(trajectory.frame_names()) if trajectory.frames_dir.is_dir() else 0
        if found != len(trajectory.actions):
            broken.append((trajectory, found))
            missing += max(len(trajectory.actions) - found, 0)
    if broken:
        first, found = broken[0]
        raise UsageError(
            f"{path}: {len(broken)} of {len(trajectories)} trajectories have not one frame per action "
            f"({missing} frames missing), first {first.frames_dir}: expected {len(first.actions)} images, found "
            f"{found}; extract the image archives completely, or where no frames are published render them: "
            f"`vlnbench data render {path.parent}`"
        )
