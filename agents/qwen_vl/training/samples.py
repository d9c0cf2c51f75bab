"""Training samples of Qwen2.5-VL: a question at every few steps of a walk, and the expert's next actions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from agents.common.prompts.navigation import spread
from agents.common.qwen2_5_vl.network import IGNORED
from agents.common.sets.trajectories import Trajectory
from agents.qwen_vl.image import resize
from agents.qwen_vl.prompt import Prompts
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.util.durable.limits import regular


class WindowKey(NamedTuple):
    """Which sample: trajectory and instruction by position, and the step of the question."""

    trajectory: int
    instruction: int
    step: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A question with its answer.

    input_ids: L token ids with a placeholder per image. labels: L ids, `IGNORED` where the loss does not look.
    frames: uint8 (k, height, width, 3), the current one last.
    """

    input_ids: list[int]
    labels: list[int]
    frames: Tensor


@dataclass(frozen=True)
class QwenVLSet:
    """A set of walks."""

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


class QuestionDataset:
    """The questions of a set; see `Samples`."""

    def __init__(self, content: QwenVLSet, prompts: Prompts, history: int, most_pixels: int) -> None:
        self._content, self._prompts = content, prompts
        self._history, self._most_pixels = history, most_pixels
        self._keys = content.keys()

    def __len__(self) -> int:
        return len(self._keys)

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Nothing is drawn."""
        ids, frames, expected = self.question(index)
        answer = self._prompts.answer(expected)
        return Sample([*ids, *answer], [IGNORED] * len(ids) + answer, frames)

    def question(self, index: int) -> tuple[list[int], Tensor, tuple[Action, ...]]:
        """Token ids and frames of a question, and what the expert did."""
        trajectory, instruction, step = self._keys[index]
        walk = self._content.trajectories[trajectory]
        earlier = spread(step, self._history)
        ids = self._prompts.question(walk.instructions[instruction], walk.actions[:step], len(earlier))
        names = walk.frame_names()
        frames = [self._frame(walk.frames_dir / names[each]) for each in (*earlier, step)]
        expected = walk.actions[step : step + self._content.actions_per_answer]
        return ids, torch.from_numpy(np.stack(frames)), expected

    def _frame(self, path: Path) -> Any:
        try:
            with Image.open(regular(path)) as image:
                return resize(image.convert("RGB"), self._most_pixels)
        except (OSError, SyntaxError) as error:  # the latter is Pillow's for broken PNG files
            raise UsageError(f"{path}: cannot be read as an image ({error}); extract it again") from error


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Samples as the arguments of `QwenVL.forward`, which pads them itself."""
    return {
        "input_ids": [sample.input_ids for sample in samples],
        "frames": [sample.frames for sample in samples],
        "labels": [sample.labels for sample in samples],
    }
