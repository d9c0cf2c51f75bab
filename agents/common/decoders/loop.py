"""An agent's loop over an episode, as of StreamVLN: windows of frames, turns, queued actions, memory."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from agents.common.answers.noted import told
from agents.common.decoders.turns import Turn
from agents.common.decoders.windows import Windows
from agents.common.sight.instead import Instead
from agents.common.sight.options import FramesOptions
from agents.common.towers.siglip import network_input, resize
from vlnbench.interfaces import Action, Answer, Episode, Observation


class Writes(Protocol):
    """Writes what a window says, and reads answers; ids of prompts are those of `Turn`."""

    phrases: Sequence[str]

    def opening(self, instruction: str, phrase: str, *, memory: bool) -> list[int]:
        """Token ids of the first turn of a window; memory: whether it shows memory frames."""
        ...

    def following(self, answer: Sequence[int], phrase: str) -> list[int]:
        """Token ids of a later turn, from the answer before it on."""
        ...

    def actions(self, answer: Sequence[int]) -> list[Action]:
        """The actions that an answer names, at least one."""
        ...

    def read(self, answer: Sequence[int]) -> list[Action] | None:
        """The actions that an answer names, None if it names none."""
        ...

    def text(self, answer: Sequence[int]) -> str:
        """An answer in words."""
        ...

    def reworded(self, answer: Sequence[int], actions: Sequence[Action]) -> list[int]:
        """An answer that names other actions instead."""
        ...


class Answers(Protocol):
    """The part of `agents.common.decoders.turns.Decoder` that the loop needs."""

    max_new_tokens: int

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        """The tokens of the answer to each turn."""
        ...

    def drop(self, slot: int) -> None:
        """Forget the window of a slot; nothing to do for a slot that has none."""
        ...


@dataclass(slots=True)
class _Running:
    """One episode under way. `asked`: step of the last turn; `window`: first step of its window; `step`: of the
    last look; `told`: images of the last turn and the actions read from its answer, until that is told."""

    instruction: str
    seed: int
    rng: random.Random
    frames: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    queue: deque[Action] = field(default_factory=deque)
    window: int | None = None
    answer: list[int] = field(default_factory=list)
    asked: int = 0
    step: int = 0
    told: tuple[int, list[Action] | None] | None = None


class EpisodeLoop:
    """Drives many episodes: one turn of the model whenever a slot has used up the actions of its last answer.

    A turn shows the current frame; the first turn of a window states the task again and, from the second window
    on, shows the memory frames. Windows begin at multiples of `num_frames` steps and share nothing but memory and
    the actions still queued. STOP ends the episode, whatever is queued after it.

    Where queued actions reach over a boundary the published code has no memory frames for the late window and
    fails; here a window that opens late gets the memory frames of its boundary. Wherever that code works, the two
    do the same.

    `truncated_turns` counts answers that reached the decoder's `max_new_tokens`.

    A slot keeps the resized frames that can become memory, one in `windows.stride` steps, until its next episode:
    see `frame_bytes`.
    """

    def __init__(
        self,
        prompts: Writes,
        decoder: Answers,
        windows: Windows,
        image_size: int,
        shown: Instead | None = None,
    ) -> None:
        """`shown`: frames in place of those that are observed; None: these."""
        self._prompts = prompts
        self._shown = shown or Instead(FramesOptions())
        self._model: Answers | None = decoder
        self._windows = windows
        self._image_size = image_size
        self._slots: dict[int, _Running] = {}
        self.truncated_turns = 0

    @property
    def rgb_size(self) -> tuple[int, int]:
        """Height and width of a frame as the network sees it."""
        return self._image_size, self._image_size

    @property
    def _decoder(self) -> Answers:
        if self._model is None:
            raise RuntimeError("the agent is closed")
        return self._model

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        """Begin an episode; `seed` decides the phrase of every turn and whose frames are shown, if not its own."""
        self._decoder.drop(slot)
        self._slots[slot] = _Running(episode.instruction, seed, random.Random(seed))

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each slot; the slots whose queues are empty ask the model together."""
        turns = [turn for slot, seen in observations.items() if (turn := self._see(slot, seen)) is not None]
        if turns:
            for turn, answer in zip(turns, self._decoder.run(turns), strict=True):
                running = self._slots[turn.slot]
                read = self._prompts.read(answer)
                running.answer, running.told = answer, (len(turn.images), read)
                running.queue.extend(read or [Action.STOP])
                self.truncated_turns += len(answer) >= self._decoder.max_new_tokens
        actions = {slot: self._slots[slot].queue.popleft() for slot in observations}
        for slot, action in actions.items():
            if action is Action.STOP:
                self._end(slot)
        return actions

    def answered(self, slot: int) -> list[Answer]:
        """What the model answered, if it was asked for the action just given."""
        running = self._slots[slot]
        found, running.told = running.told, None
        if found is None:
            return []
        images, actions = found
        return [told(self._model, slot, self._prompts.text(running.answer), running.answer, actions, images)]

    def ahead(self, slot: int) -> list[Action]:
        """The queued actions up to the next frame that is looked at: for a turn, or to become memory."""
        running, actions = self._slots[slot], []
        step = running.step + 1
        while running.queue and step % self._windows.stride:
            actions.append(running.queue.popleft())
            step += 1
            if actions[-1] is Action.STOP:
                self._forget(slot)
        return actions

    def watch(self, observations: Mapping[int, Observation]) -> None:
        """See frames on which somebody else acts, also where the model has said STOP.

        What was planned is forgotten, and so is the window's conversation, whose answers were not what was done:
        the next turn opens the window anew, as a late one, with the memory frames of its boundary.
        """
        for slot, observation in observations.items():
            self._forget(slot)
            if observation.step % self._windows.stride == 0:
                self._slots[slot].frames[observation.step] = self._frame(slot, observation)

    def close(self) -> None:
        """Forget all episodes, let go of the model and give its memory back to the device."""
        self._slots.clear()
        self._model = None
        torch.cuda.empty_cache()

    def frame_bytes(self, steps: int) -> int:
        """Bytes of the frames that a slot keeps in an episode of so many steps."""
        return -(-steps // self._windows.stride) * self._image_size**2 * 3

    def _see(self, slot: int, observation: Observation) -> Turn | None:
        """Keep the frame if it can become memory; make a turn of it if the slot has no action left."""
        running, step = self._slots[slot], observation.step
        running.step = step
        keep, turn = step % self._windows.stride == 0, not running.queue
        if not keep and not turn:
            return None
        frame = self._frame(slot, observation)
        if keep:
            running.frames[step] = frame
        return self._turn(slot, running, step, frame) if turn else None

    def _frame(self, slot: int, observation: Observation) -> NDArray[np.uint8]:
        if observation.rgb is None:
            raise ValueError("the environment reported no RGB frame")
        rgb = self._shown.rgb(observation.rgb, observation.step, self._slots[slot].seed)
        return rgb if rgb.shape[:2] == self.rgb_size else resize(rgb, self._image_size)

    def _end(self, slot: int) -> None:
        """The model has said STOP in a slot."""
        self._forget(slot)

    def _forget(self, slot: int) -> None:
        """Let go of what the slot has planned and of its conversation with the model; its frames stay."""
        self._decoder.drop(slot)
        self._slots[slot].queue.clear()
        self._slots[slot].window = None

    def _turn(self, slot: int, running: _Running, step: int, frame: NDArray[np.uint8]) -> Turn:
        phrase = running.rng.choice(self._prompts.phrases)
        running.asked, boundary = step, self._windows.boundary(step)
        if boundary == running.window:
            input_ids = self._prompts.following(running.answer, phrase)
            return Turn(slot, input_ids, network_input([frame]), opens_window=False)
        running.window = boundary
        memory = [running.frames[earlier] for earlier in self._windows.memory_steps(boundary)]
        input_ids = self._prompts.opening(running.instruction, phrase, memory=bool(memory))
        return Turn(slot, input_ids, network_input([*memory, frame]), opens_window=True)


class Unsays(Answers, Protocol):
    """A decoder whose answers can be replaced by others."""

    def unsay(self, slot: int) -> None:
        """Forget the last answer of a slot; the next turn begins with whatever is to stand in its place."""
        ...


class FeelingLoop(EpisodeLoop):
    """A loop that can be told what was done instead: the model then reads that as what it has answered.

    So does training read walks whose labels differ from what was done. There a turn comes every `num_future_steps`
    steps, and nobody looks in between: where STOP is overruled, the rest of its answer is STOP too, for whoever
    has overruled it to act on.
    """

    def __init__(
        self, prompts: Writes, decoder: Unsays, windows: Windows, image_size: int, shown: Instead | None = None
    ) -> None:
        """As `EpisodeLoop`."""
        super().__init__(prompts, decoder, windows, image_size, shown)
        self._unsay, self._turn_steps = decoder.unsay, windows.num_future_steps
        self._ended: set[int] = set()

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self._ended.discard(slot)
        super().reset(slot, episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """As `EpisodeLoop.act`; a slot is forgotten with the call after its STOP, so that it may be overruled."""
        for slot in self._ended:
            self._forget(slot)
        self._ended.clear()
        return super().act(observations)

    def feel(self, slot: int, action: Action) -> None:
        """Take in that `action` is done in a slot, instead of what `act` has just returned for it."""
        running = self._slots[slot]
        place = running.step - running.asked
        said = self._prompts.actions(running.answer)
        told = [*said[:place], action, *said[place + 1 :]]
        if said[place] is Action.STOP and action is not Action.STOP:
            rest = [Action.STOP] * (self._turn_steps - place - 1)
            told[place + 1 :] = rest
            running.queue = deque(rest)
            self._ended.discard(slot)
        elif action is Action.STOP:
            self._ended.add(slot)
        running.answer = self._prompts.reworded(running.answer, told)
        self._unsay(slot)

    def close(self) -> None:
        super().close()
        self._ended.clear()

    def _end(self, slot: int) -> None:
        self._ended.add(slot)
