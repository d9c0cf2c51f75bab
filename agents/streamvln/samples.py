"""Training samples of StreamVLN, one per trajectory, instruction and window, as the published code builds them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from agents.streamvln.image import augment, network_input, resize
from agents.streamvln.model import IGNORED, MEMORY
from agents.streamvln.prompt import PHRASES, SYMBOLS, SYSTEM, Content, Prompts, task_text, view
from agents.streamvln.trajectories import Trajectory
from agents.streamvln.windows import Windows
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action

_NAMES = {action: symbol for symbol, action in SYMBOLS.items()}


class WindowKey(NamedTuple):
    """Which sample: trajectory and instruction by position, window by its first step."""

    trajectory: int
    instruction: int
    start: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One window as a conversation.

    input_ids: L token ids with placeholders for images and memory. labels: L ids, `IGNORED` where the
    loss does not look. images: float32 (n, 3, size, size), the `n_memory` memory frames first, then one frame per
    turn. time_ids: steps of the window.
    """

    input_ids: list[int]
    labels: list[int]
    images: torch.Tensor
    n_memory: int
    time_ids: range


class WindowDataset:
    """The windows of all trajectories under all their instructions; a map-style dataset for torch.

    Sample `i` draws its phrases and, with `augmented`, its jitter from a generator that depends on `seed`, `epoch`
    and `i` only: not on workers, order or batch size.
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        prompts: Prompts,
        windows: Windows,
        image_size: int,
        *,
        augmented: bool = False,
        seed: int = 0,
    ) -> None:
        self._trajectories = trajectories
        self._prompts = prompts
        self._windows = windows
        self._image_size = image_size
        self._augmented = augmented
        self._seed = seed
        self._marks = prompts.block_marks()
        self.epoch = 0
        self.keys = [
            WindowKey(index, instruction, start)
            for index, trajectory in enumerate(trajectories)
            for instruction in range(len(trajectory.instructions))
            for start in range(0, len(trajectory.actions), windows.num_frames)
        ]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Sample:
        return self.sample(index, random.Random(f"{self._seed}/{self.epoch}/{index}"))

    def sample(self, index: int, rng: random.Random) -> Sample:
        """Build one sample; phrases come first from `rng`, in turn order, then the frames' jitter."""
        trajectory, instruction, start = self.keys[index]
        memory, turns = self.steps(index)
        actions = self._trajectories[trajectory].actions
        text = self._trajectories[trajectory].instructions[instruction]
        input_ids, labels = self._conversation(
            text, start, [actions[turn.start : turn.stop] for turn in turns], rng
        )
        files = self._trajectories[trajectory].frames()
        frames = [self._frame(files[step], rng) for step in (*memory, *(turn.start for turn in turns))]
        time_ids = range(start, turns[-1].stop)
        return Sample(input_ids, labels, network_input(frames), len(memory), time_ids)

    def steps(self, index: int) -> tuple[range, list[range]]:
        """Steps of the memory frames, and for each turn the steps it answers for; its frame is the first's."""
        trajectory, _, start = self.keys[index]
        end = min(start + self._windows.num_frames, len(self._trajectories[trajectory].actions))
        length = self._windows.num_future_steps
        turns = [range(first, min(first + length, end)) for first in range(start, end, length)]
        return self._windows.memory_steps(start), turns

    def _conversation(
        self, instruction: str, start: int, answers: Sequence[Sequence[Action]], rng: random.Random
    ) -> tuple[list[int], list[int]]:
        """Token ids and labels. Unlike the evaluation's, the memory sentence of the training has a colon."""
        ids: list[int] = []
        labels: list[int] = []

        def add(role: str, *content: str | int) -> None:
            block = self._prompts.block(role, *content)
            ids.extend(block)
            answered = role == "assistant"
            labels.extend(id_ if answered or id_ in self._marks else IGNORED for id_ in block)

        add("system", SYSTEM)
        sentence: Content = (" These are your historical observations: ", MEMORY, ".") if start else ()
        opening: Content = (task_text(instruction), *sentence, " ")
        for number, answer in enumerate(answers):
            add("user", *(opening if number == 0 else ()), *view(rng.choice(PHRASES)))
            add("assistant", "".join(_NAMES[action] for action in answer))
        return ids, labels

    def _frame(self, path: Path, rng: random.Random) -> NDArray[np.uint8]:
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError) as error:  # the latter is Pillow's for broken PNG files
            raise UsageError(f"{path}: cannot be read as an image ({error}); extract it again") from error
        return resize(augment(image, rng) if self._augmented else image, self._image_size)


def collate(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Samples as the arguments of `StreamVLN.forward`, which pads them itself."""
    return {
        "input_ids": [sample.input_ids for sample in samples],
        "images": [sample.images for sample in samples],
        "labels": [sample.labels for sample in samples],
    }
