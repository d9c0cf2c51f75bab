"""What a model answered in an episode, as it is kept: bounded, plain, and of no effect on how the episode ends."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import msgspec

from vlnbench.interfaces import Action, Agent, Answer
from vlnbench.traits import TellsAnswers
from vlnbench.util.loading import describe

STEP_BYTES = 2000
"""That the answers of a step take in a run folder, at most. Longer texts lose their middle."""
MOST_TRIES, MOST_ACTIONS, LONGEST_NOTE = 3, 200, 60
_OTHERS = 350  # bytes of all but the text of an answer: 200 actions, 60 characters of a note, numbers
_LARGEST = 10**15


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, the step of the episode at which it was given (from 0), and the agent's seconds for it."""

    step: int
    seconds: float
    answer: Answer


class Kept:
    """What an agent has told of an episode so far; `all` of it."""

    def __init__(self) -> None:
        self.all: list[Answered] = []
        self._step = 0

    def add(self, agent: Agent, slot: int, actions: Sequence[Action], seconds: float) -> None:
        """Take in what decided on some actions, which the agent has just given within so many seconds."""
        step, self._step = self._step, self._step + len(actions)
        found = told(agent, slot, actions)
        self.all += [Answered(step, seconds / len(found), each) for each in found]


def tells(agent: Agent, wanted: bool) -> bool:
    """Whether there is something to be kept."""
    return wanted and isinstance(agent, TellsAnswers)


def told(agent: Agent, slot: int, actions: Sequence[Action]) -> list[Answer]:
    """What an agent that tells has to say of some actions, which it has just given.

    Whatever goes wrong with telling is a note in the place of an answer: it must not change how an episode ends.
    """
    assert isinstance(agent, TellsAnswers)
    try:
        given = list(islice(agent.answered(slot), MOST_ACTIONS))[-MOST_TRIES:]
        return [_plain(each, actions, len(given)) for each in given]
    except Exception as error:
        return [Answer(note=_shortened(f"not told: {describe(error)}", 6 * LONGEST_NOTE))]


def _plain(given: Any, done: Sequence[Action], tries: int) -> Answer:
    """An answer as it is kept, of so many at a step. Raises ValueError or TypeError for what is none."""
    if not isinstance(given, Answer):
        raise TypeError(f"expected an Answer, found {type(given).__name__}")
    actions = () if given.unparsable else tuple(map(Action, given.actions or done))
    numbers = {name: _count(getattr(given, name)) for name in ("prompt_tokens", "images", "answer_tokens")}
    logarithm = None if given.log_probability is None else float(given.log_probability)
    if logarithm is not None and not math.isfinite(logarithm):
        raise ValueError("log_probability: expected a finite number")
    return replace(
        given,
        text=_shortened(str(given.text), (STEP_BYTES - 150 - tries * _OTHERS) // tries),
        actions=actions[:MOST_ACTIONS],
        unparsable=bool(given.unparsable),
        note=_shortened(str(given.note), LONGEST_NOTE),
        log_probability=logarithm,
        **numbers,
    )


def _count(given: Any) -> int | None:
    if given is None:
        return None
    number = operator.index(given)
    if not 0 <= number <= _LARGEST:
        raise ValueError(f"{number}: expected a count")
    return int(number)


def _shortened(text: str, most: int) -> str:
    """A text of at most so many bytes in JSON, without its middle where it has more."""
    text = kept = text.encode(errors="replace").decode()  # without halves of characters
    left = len(text)
    while 6 * len(kept) > most and (size := len(msgspec.json.encode(kept)) - 2) > most:
        left = max(0, min(left - 1, left * (most - len(_CUT)) // size))
        kept = f"{text[: 2 * left // 3]}{_CUT}{text[len(text) - left // 3 :]}"
    return kept


_CUT = " [...] "
