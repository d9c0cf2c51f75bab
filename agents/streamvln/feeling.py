"""StreamVLN's loop beside somebody who does other things than the model has said."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from agents.common.sight.instead import Instead
from agents.streamvln.loop import Answers, EpisodeLoop
from agents.streamvln.prompt import Prompts
from agents.streamvln.windows import Windows
from vlnbench.interfaces import Action, Episode, Observation


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
        self, prompts: Prompts, decoder: Unsays, windows: Windows, image_size: int, shown: Instead | None = None
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
