"""Walks as sets of answers: a window for every answer of several actions, of models that are asked in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agents.common.prompts.navigation import spread
from agents.common.sets.trajectories import Trajectory, read_trajectories
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action


class WindowKey(NamedTuple):
    """Which window: trajectory and instruction by position, and the step of the question."""

    trajectory: int
    instruction: int
    step: int


class Asked(NamedTuple):
    """A question along a walk: what was done before it, files of its frames, the current one last, the answer."""

    instruction: str
    done: tuple[Action, ...]
    frames: tuple[Path, ...]
    expected: tuple[Action, ...]


@dataclass(frozen=True)
class AnswerSet:
    """A set of walks; a `SetContent`."""

    file: Path
    trajectories: tuple[Trajectory, ...]
    actions_per_answer: int

    @property
    def windows(self) -> int:
        return len(self.keys())

    @property
    def counts(self) -> Mapping[str, int]:
        """Of each kind how many."""
        return {
            "trajectories": len(self.trajectories),
            "instructions": sum(len(each.instructions) for each in self.trajectories),
        }

    def texts(self) -> Iterator[str]:
        for each in self.trajectories:
            yield from each.instructions

    def lengths(self) -> list[tuple[int, ...]]:
        """(steps before, characters of the instruction) of every window."""
        return [
            (key.step, len(self.trajectories[key.trajectory].instructions[key.instruction])) for key in self.keys()
        ]

    def keys(self) -> list[WindowKey]:
        """The questions of all walks under all their instructions, but for those that a stray would answer."""
        return [
            WindowKey(index, instruction, step)
            for index, walk in enumerate(self.trajectories)
            for instruction in range(len(walk.instructions))
            for step in range(0, len(walk.actions), self.actions_per_answer)
            if not walk.strays.intersection(range(step, step + self.actions_per_answer))
        ]

    def asked(self, key: WindowKey, history: int) -> Asked:
        """A question that shows up to `history` earlier frames, as an agent would put it there."""
        walk, step = self.trajectories[key.trajectory], key.step
        return Asked(
            walk.instructions[key.instruction],
            walk.actions[:step],
            tuple(walk.frames_at((*spread(step, history), step))),
            walk.actions[step : step + self.actions_per_answer],
        )


def read_answers(folder: Path, actions_per_answer: int) -> AnswerSet:
    """The walks of a folder. Raises UsageError as `read_trajectories`, and for labels of single steps."""
    walks, file = read_trajectories(folder), folder / TRAJECTORIES
    if any(walk.labels for walk in walks):
        raise UsageError(
            f"{file}: has labels of single steps (collect --relabel); an answer has several actions and is "
            "what was done: collect without --relabel"
        )
    return AnswerSet(file, tuple(walks), actions_per_answer)
