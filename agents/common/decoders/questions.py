"""An agent's loop over episodes whose every question stands alone: frames so far, queued actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from agents.common.answers.noted import told
from agents.common.sight.instead import Instead
from agents.common.sight.options import FramesOptions
from vlnbench.interfaces import Action, Answer, Episode, Observation, Sensor

Q = TypeVar("Q", bound="Asking")


class Asking(Protocol):
    """A request for an answer."""

    @property
    def slot(self) -> int: ...


@dataclass(slots=True)
class Running:
    """One episode under way: all frames as the network sees them, what was done and what is planned."""

    instruction: str
    seed: int
    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    done: list[Action] = field(default_factory=list)
    queue: deque[Action] = field(default_factory=deque)
    told: tuple[Sequence[int], Sequence[Action] | None, int] | None = None
    """The last answer, what was read from it and how many frames it was asked with, until it is told."""


class QuestionLoop(ABC, Generic[Q]):
    """Drives many episodes: a question whenever a slot has done all of its last answer.

    An answer that cannot be read is one `instead`, which `unreadable` counts.
    """

    sensors: frozenset[Sensor] = frozenset({"rgb"})
    privileged = False

    def __init__(
        self, prompts: Any, answers: Any, instead: Action = Action.STOP, shown: Instead | None = None
    ) -> None:
        """prompts: its `read` gives the actions of an answer, None where it cannot be read, its `text` the words.
        answers: its `run` gives the tokens of the answer to each question. shown: frames in place of those that
        are observed; None: these."""
        self._shown = shown or Instead(FramesOptions())
        self._prompts, self._answers, self._instead = prompts, answers, instead
        self._slots: dict[int, Running] = {}
        self.unreadable = 0

    @abstractmethod
    def frame(self, rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A frame as the network sees it."""

    @abstractmethod
    def question(self, slot: int, running: Running) -> Q:
        """What is asked at the newest frame."""

    def read(self, answer: Sequence[int]) -> Sequence[Action] | None:
        """The actions of an answer, None where it cannot be read."""
        found: Sequence[Action] | None = self._prompts.read(answer)
        return found

    @abstractmethod
    def images(self, question: Q) -> int:
        """How many frames a question shows."""

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._slots[slot] = Running(episode.instruction, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each slot; the slots whose queues are empty ask the model together."""
        if self._answers is None:
            raise RuntimeError("the agent is closed")
        for slot, seen in observations.items():
            self._see(slot, seen)
        asking = [self.question(slot, self._slots[slot]) for slot in observations if not self._slots[slot].queue]
        if asking:
            for question, answer in zip(asking, self._answers.run(asking), strict=True):
                actions = self.read(answer)
                self.unreadable += actions is None
                self._slots[question.slot].queue.extend(actions or [self._instead])
                self._slots[question.slot].told = answer, actions, self.images(question)
        chosen = {slot: self._slots[slot].queue.popleft() for slot in observations}
        for slot, action in chosen.items():
            self._slots[slot].done.append(action)
        return chosen

    def answered(self, slot: int) -> list[Answer]:
        """What the network answered, if it was asked for the action just given."""
        running = self._slots[slot]
        found, running.told = running.told, None
        if found is None:
            return []
        answer, actions, images = found
        return [told(self._answers, slot, self._prompts.text(answer), answer, actions, images)]

    def watch(self, observations: Mapping[int, Observation]) -> None:
        """See frames on which somebody else acts: what was planned is forgotten."""
        for slot, seen in observations.items():
            self._see(slot, seen)
            self._slots[slot].queue.clear()

    def feel(self, slot: int, action: Action) -> None:
        """Take in that `action` is done instead of what `act` has just returned."""
        self._slots[slot].done[-1] = action
        self._slots[slot].queue.clear()

    @property
    def remarks(self) -> str:
        """What a reader of the results should know about the answers so far; empty if nothing."""
        count = self.unreadable
        return f"{count} answers could not be read and counted as {self._instead.name}" if count else ""

    def close(self) -> None:
        """Forget all episodes and let go of the model."""
        self._slots.clear()
        self._answers = None

    def _see(self, slot: int, seen: Observation) -> None:
        if seen.rgb is None:
            raise ValueError("the environment reported no RGB frame")
        running = self._slots[slot]
        rgb = self._shown.rgb(seen.rgb, seen.step, running.seed)
        running.frames.append(self.frame(rgb))
