"""JanusVLN's loop over an episode: every step sees a frame, asks the model and does the one action it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agents.janusvln.config import WIDTH
from agents.janusvln.decode import Memory, Question
from agents.janusvln.image import resize
from agents.janusvln.prompt import LABELS, Prompts, shown_steps
from vlnbench.interfaces import Action, Conventions, Episode, Observation

EXPECTS = Conventions(width=640, height=480, hfov=79.0, camera_height_m=1.25, forward_m=0.25, turn_deg=15.0)
"""What released checkpoints were trained with."""


class Answers(Protocol):
    """The part of `agents.janusvln.decode.Decoder` that the loop needs."""

    def begin(self, slot: int) -> None: ...

    def memory(self, slot: int) -> Memory: ...

    def see(self, frames: Mapping[int, NDArray[np.uint8]]) -> None: ...

    def run(self, questions: Sequence[Question]) -> list[list[int]]: ...


class EpisodeLoop:
    """Drives many episodes; frames are scaled to `width` pixels. From step `max_steps` on every action is STOP, as
    in the published evaluation, by which an agent that stands near the goal then succeeds.

    `unreadable` counts answers that were none of the four labels, which stop the episode; `forced_stops` counts
    episodes that were ended at `max_steps`.
    """

    def __init__(
        self, prompts: Prompts, decoder: Answers, num_history: int, max_steps: int, width: int = WIDTH
    ) -> None:
        self._prompts = prompts
        self._model: Answers | None = decoder
        self._num_history = num_history
        self._max_steps = max_steps
        self._width = width
        self._instructions: dict[int, str] = {}
        self._seen: dict[int, int] = {}  # the last step whose frame a slot has seen
        self.unreadable = 0
        self.forced_stops = 0

    @property
    def _decoder(self) -> Answers:
        if self._model is None:
            raise RuntimeError("the agent is closed")
        return self._model

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        """Begin an episode, which forgets all frames. Nothing is drawn, so `seed` decides nothing."""
        self._decoder.begin(slot)
        self._instructions[slot] = episode.instruction
        self._seen.pop(slot, None)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each slot; the model is asked for all of them together."""
        self.watch(observations)
        actions: dict[int, Action] = {}
        questions = []
        for slot, observation in observations.items():
            if observation.step >= self._max_steps:
                self.forced_stops += 1
                actions[slot] = Action.STOP
            else:
                questions.append(self._question(slot))
        answers = self._decoder.run(questions) if questions else []
        for question, answer in zip(questions, answers, strict=True):
            actions[question.slot] = self._action(answer)
        return actions

    def watch(self, observations: Mapping[int, Observation]) -> None:
        """See frames, also those on which somebody else acts and those after a STOP; a frame that was seen already
        changes nothing."""
        frames = {}
        for slot, observation in observations.items():
            if observation.rgb is None:
                raise ValueError("the environment reported no RGB frame")
            if self._seen.get(slot) != observation.step:
                frames[slot] = resize(observation.rgb, self._width)
        if frames:
            self._decoder.see(frames)
        self._seen |= {slot: observations[slot].step for slot in frames}

    def close(self) -> None:
        """Forget all episodes and let go of the model."""
        self._instructions.clear()
        self._seen.clear()
        self._model = None

    def _question(self, slot: int) -> Question:
        steps = shown_steps(len(self._decoder.memory(slot).images) - 1, self._num_history)
        return Question(slot, self._prompts.question(self._instructions[slot], len(steps)), steps)

    def _action(self, answer: Sequence[int]) -> Action:
        text = self._prompts.text(answer)
        self.unreadable += text not in LABELS
        return LABELS.get(text, Action.STOP)
