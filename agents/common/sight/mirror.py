"""Walks and questions as they are in a mirror: left is right, in actions, in words and in frames."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agents.common.sets.conversations import SYMBOLS, Conversation
from agents.common.sets.trajectories import Trajectory
from vlnbench.interfaces import Action
from vlnbench.training.family.trains import Samples

_TURNED = {Action.TURN_LEFT: Action.TURN_RIGHT, Action.TURN_RIGHT: Action.TURN_LEFT}
_LEFT, _RIGHT = ({action: symbol for symbol, action in SYMBOLS.items()}[turn] for turn in _TURNED)
_SIDES = {"left": "right", "right": "left", _LEFT: _RIGHT, _RIGHT: _LEFT}
_SIDED = re.compile(rf"\b(?:left|right)\b|[{_LEFT}{_RIGHT}]", re.IGNORECASE)


def mirrored_text(text: str) -> str:
    """A text with left and right exchanged, as words and as symbols of actions."""
    return _SIDED.sub(lambda found: _like(found[0], _SIDES[found[0].lower()]), text)


def mirrored_walk(walk: Trajectory) -> Trajectory:
    """A walk in a mirror; its image files are the same, and are to be flipped when they are read."""
    return replace(
        walk,
        instructions=tuple(map(mirrored_text, walk.instructions)),
        actions=_turned(walk.actions),
        labels=_turned(walk.labels),
    )


def mirrored_conversation(conversation: Conversation) -> Conversation:
    """Questions in a mirror, with the image files of `mirrored_walk`."""
    turns = ((mirrored_text(asked), mirrored_text(told)) for asked, told in conversation.turns)
    return replace(conversation, turns=tuple(turns))


def _turned(actions: Sequence[Action]) -> tuple[Action, ...]:
    return tuple(_TURNED.get(action, action) for action in actions)


def _like(word: str, other: str) -> str:
    """The other word, written with capitals as the word is."""
    return other.upper() if word.isupper() else other.capitalize() if word[:1].isupper() else other


class MirrorSamples:
    """Samples of a set, some of them in a mirror, by chance."""

    def __init__(self, plain: Samples, mirrored: Samples, chance: float) -> None:
        """mirrored: the same with left and right exchanged in all but the frames."""
        self._plain, self._mirrored, self._chance = plain, mirrored, chance

    def __len__(self) -> int:
        return len(self._plain)

    def sample(self, index: int, rng: random.Random) -> Any:
        """Build one sample; first is drawn whether it is one in the mirror."""
        if rng.random() >= self._chance:
            return self._plain.sample(index, rng)
        sample = self._mirrored.sample(index, rng)
        shown = None if sample.shown is None else sample.shown.flip(-1)
        return replace(sample, images=sample.images.flip(-1), shown=shown)
