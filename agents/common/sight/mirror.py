"""Walks and questions as they are in a mirror: left is right, in actions and in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from agents.common.sets.conversations import SYMBOLS, Conversation
from agents.common.sets.trajectories import Trajectory
from vlnbench.interfaces import Action

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
