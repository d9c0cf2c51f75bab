"""Qwen2.5-VL's loop over an episode: a question whenever the actions of the last answer are used up."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from agents.common.prompts.navigation import spread
from agents.qwen_vl.decode import Question
from agents.qwen_vl.image import resize
from agents.qwen_vl.prompt import Prompts
from vlnbench.interfaces import Action, Episode, Observation


class Answers(Protocol):
    """The part of `agents.qwen_vl.decode.Answerer` that the loop needs."""

    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        """The tokens of the answer to each question."""
        ...


@dataclass(slots=True)
class _Running:
    """One episode under way: all frames as the network sees them, what was done and what is planned."""

    instruction: str
    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    done: list[Action] = field(default_factory=list)
    queue: deque[Action] = field(default_factory=deque)


class EpisodeLoop:
    """Drives many episodes. An answer that cannot be read is a STOP, which `unreadable` counts."""

    def __init__(self, prompts: Prompts, answers: Answers, history: int, most_pixels: int) -> None:
        self._prompts, self._history, self._most_pixels = prompts, history, most_pixels
        self._answers: Answers | None = answers
        self._slots: dict[int, _Running] = {}
        self.unreadable = 0

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._slots[slot] = _Running(episode.instruction)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each slot; the slots whose queues are empty ask the model together."""
        if self._answers is None:
            raise RuntimeError("the agent is closed")
        asking = []
        for slot, seen in observations.items():
            self._see(slot, seen)
            if not self._slots[slot].queue:
                asking.append(self._question(slot))
        if asking:
            for question, answer in zip(asking, self._answers.run(asking), strict=True):
                actions = self._prompts.read(answer)
                self.unreadable += actions is None
                self._slots[question.slot].queue.extend(actions or [Action.STOP])
        chosen = {slot: self._slots[slot].queue.popleft() for slot in observations}
        for slot, action in chosen.items():
            self._slots[slot].done.append(action)
        return chosen

    def watch(self, observations: Mapping[int, Observation]) -> None:
        """See frames on which somebody else acts: what was planned is forgotten."""
        for slot, seen in observations.items():
            self._see(slot, seen)
            self._slots[slot].queue.clear()

    def feel(self, slot: int, action: Action) -> None:
        """Take in that `action` is done instead of what `act` has just returned."""
        self._slots[slot].done[-1] = action
        self._slots[slot].queue.clear()

    def close(self) -> None:
        """Forget all episodes and let go of the model."""
        self._slots.clear()
        self._answers = None

    def _see(self, slot: int, seen: Observation) -> None:
        if seen.rgb is None:
            raise ValueError("the environment reported no RGB frame")
        self._slots[slot].frames.append(resize(Image.fromarray(seen.rgb), self._most_pixels))

    def _question(self, slot: int) -> Question:
        running = self._slots[slot]
        step = len(running.frames) - 1
        earlier = spread(step, self._history)
        ids = self._prompts.question(running.instruction, running.done, len(earlier))
        frames = torch.from_numpy(np.stack([running.frames[each] for each in (*earlier, step)]))
        return Question(slot, ids, frames)
