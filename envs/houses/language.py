"""English instructions for a route, and the vocabulary they are written in."""

from __future__ import annotations

import random
import re
from itertools import pairwise

from .furnish import Item
from .furniture import FURNISHINGS
from .house import House
from .rooms import KINDS
from .routes import Leg, Passing, Route, turn_class

MAX_TOKENS = 200
EXIT_SIDE_DEG = 45.0
_ORDINALS = ("first", "second", "third", "fourth", "fifth")

_PHRASES: dict[str, tuple[str, ...]] = {
    "start straight": ("walk forward", "go straight ahead", "walk straight ahead", "head forward"),
    "start slight": ("turn slightly {side}", "bear {side}", "turn a little to the {side}"),
    "start side": ("turn {side}", "turn to your {side}", "make a {side} turn", "face {side}"),
    "start around": ("turn around", "turn all the way around", "turn back"),
    "leave": (
        "leave the {room} and enter the {next}",
        "walk out of the {room} into the {next}",
        "go into the {next}",
        "enter the {next}",
        "exit the {room} into the {next}",
        "go through the doorway into the {next}",
        "head out of the {room} to the {next}",
    ),
    "leave side": (
        "leave the {room} through the door on your {side} into the {next}",
        "take the door on the {side} into the {next}",
        "walk out of the {room} through the doorway on the {side} to the {next}",
        "exit into the {next} through the door on your {side}",
    ),
    "through straight": (
        "go straight through the {room}",
        "walk straight across the {room}",
        "continue straight ahead across the {room}",
        "keep going straight through the {room}",
    ),
    "through slight": (
        "bear {side} across the {room}",
        "go slightly {side} through the {room}",
        "veer {side} across the {room}",
    ),
    "through side": (
        "turn {side} and walk through the {room}",
        "go {side} through the {room}",
        "turn to your {side} and cross the {room}",
    ),
    "through around": ("turn back on yourself in the {room}", "make a sharp turn in the {room}"),
    "hall straight": (
        "go straight along the {room}",
        "walk straight down the {room}",
        "continue along the {room}",
    ),
    "hall slight": (
        "bear {side} along the {room}",
        "go slightly {side} in the {room}",
        "veer {side} in the {room}",
    ),
    "hall side": (
        "turn {side} and walk down the {room}",
        "go {side} along the {room}",
        "take a {side} in the {room}",
        "head {side} down the {room}",
    ),
    "short straight": ("cross the {room}", "go straight across the {room}"),
    "straight into": (
        "cross the {room} into the {next}",
        "go straight through the {room} into the {next}",
        "continue through the {room} into the {next}",
    ),
    "turn into": (
        "turn {side} and go through the {room} into the {next}",
        "go {side} through the {room} into the {next}",
        "turn {side} and cross the {room} to the {next}",
    ),
    "into straight": (
        "continue straight into the {next}",
        "enter the {next} ahead of you",
        "go through the doorway ahead into the {next}",
        "walk into the {next}",
    ),
    "into side": (
        "turn {side} into the {next}",
        "enter the {next} on your {side}",
        "go through the door on your {side} into the {next}",
        "turn {side} and enter the {next}",
    ),
    "into ordinal": (
        "take the {ordinal} door on the {side} into the {next}",
        "go through the {ordinal} doorway on your {side} into the {next}",
        "enter the {next} , the {ordinal} door on your {side}",
    ),
    "pass": (
        "walk past the {object} on your {side}",
        "pass the {object} on your {side}",
        "keep the {object} to your {side}",
        "go past the {object} on your {side}",
    ),
    "last side": ("turn {side}", "go {side}", "turn to the {side}", "head to your {side}"),
    "last slight": ("bear {side}", "go slightly {side}", "veer to the {side}"),
    "last straight": ("walk straight in", "keep going straight", "continue ahead"),
    "last around": ("turn back", "turn around"),
    "stop next to": (
        "stop next to the {object}",
        "wait beside the {object}",
        "stop by the {object}",
        "stop near the {object}",
        "wait next to the {object}",
    ),
    "stop in front of": (
        "stop in front of the {object}",
        "wait in front of the {object}",
        "stop before the {object}",
        "walk up to the front of the {object} and stop",
    ),
    "stop door": (
        "stop in the doorway of the {room}",
        "wait just inside the {room}",
        "stop as soon as you are in the {room}",
        "wait in the doorway",
    ),
    "stop middle": (
        "stop in the middle of the {room}",
        "wait in the center of the {room}",
        "stop when you reach the middle of the {room}",
    ),
    "glue": ("{a} , then {b}", "{a} and {b}", "{a} , and {b}"),
    "break": (*("{a} . {b}",) * 5, "{a} . then {b}"),
}


def describe(house: House, route: Route, rng: random.Random) -> str:
    """One instruction for a route: a few sentences of clauses, in the order in which they are to be done."""
    clauses: list[str] = []
    mentions = 1
    for leg, after in pairwise(route.legs):
        names = {"room": house.title(leg.room), "next": house.title(after.room)}
        passing = _choose_passing(leg, route, rng) if mentions else None
        said = _first_leg(leg, names, rng) if not clauses else _middle_leg(leg, names, passing is None, rng)
        if passing is not None:
            mentions -= 1
            seen = _phrase("pass", rng, object=_object(passing.item, house, rng), side=passing.side)
            said.insert(len(said) - 1, seen)
        clauses += said
    return _sentences([*clauses, *_last(house, route, rng)], rng)


def _first_leg(leg: Leg, names: dict[str, str], rng: random.Random) -> list[str]:
    side = exit_side(leg)
    leave = _phrase("leave side" if side else "leave", rng, side=side, **names)
    if turn_class(leg.turn_in) == "straight" and rng.random() < 0.5:
        return [leave]
    return [_turn("start", leg.turn_in, rng), leave]


def _middle_leg(leg: Leg, names: dict[str, str], brief: bool, rng: random.Random) -> list[str]:
    """One or two clauses: how to go through the room, and through which door out of it."""
    side, kind = exit_side(leg), turn_class(leg.turn_in)
    if kind.startswith("slight") and (side == _side(leg.turn_in) or (not side and leg.length < 3.0)):
        kind = "straight"  # one turn, or just a door that lies a little to one side
    brief = brief and rng.random() < 0.6
    if kind in ("left", "right") and not side and (brief or leg.length < 1.0):
        return [_phrase("into side" if leg.length < 1.0 else "turn into", rng, side=kind, **names)]
    if kind == "straight" and not side and brief and leg.length > 1.5:
        return [_phrase("straight into", rng, **names)]
    clauses = []
    if kind != "straight":
        stage = "hall" if leg.room == 0 and kind != "around" else "through"
        clauses.append(_turn(stage, leg.turn_in, rng, **names))
    elif leg.length > 1.5 and not brief:
        form = "short" if leg.length < 2.6 else "hall" if leg.room == 0 else "through"
        clauses.append(_phrase(f"{form} straight", rng, **names))
    if side and leg.ordinal is not None and leg.ordinal <= len(_ORDINALS) and rng.random() < 0.6:
        ordinal = _ORDINALS[leg.ordinal - 1]
        return [*clauses, _phrase("into ordinal", rng, ordinal=ordinal, side=side, **names)]
    return [*clauses, _phrase("into side" if side else "into straight", rng, side=side, **names)]


def _last(house: House, route: Route, rng: random.Random) -> list[str]:
    goal, leg = route.goal, route.legs[-1]
    room = house.title(goal.room)
    if goal.door is not None:
        return [_phrase("stop door", rng, room=room)]
    straight = turn_class(leg.turn_in) == "straight"
    clauses = [] if leg.length < 1.0 or (straight and rng.random() < 0.6) else [_turn("last", leg.turn_in, rng)]
    if goal.item is None:
        return [*clauses, _phrase("stop middle", rng, room=room)]
    return [*clauses, _phrase(f"stop {goal.relation}", rng, object=_object(goal.item, house, rng))]


def exit_side(leg: Leg) -> str:
    """On which side the exit lies for someone walking the leg; nothing if it is about straight ahead."""
    if abs(leg.turn_out) < EXIT_SIDE_DEG:
        return ""
    return "left" if leg.turn_out > 0 else "right"


def _choose_passing(leg: Leg, route: Route, rng: random.Random) -> Passing | None:
    choices = [p for p in leg.passings if p.item != route.goal.item]
    choices = [p for p in choices if p.item.landmark] or choices
    if not choices or rng.random() < 0.4:
        return None
    return rng.choice(choices)


def _object(item: Item, house: House, rng: random.Random) -> str:
    alone = sum(other.noun == item.noun for other in house.items if other.room == item.room) == 1
    return item.noun if alone and not item.landmark and rng.random() < 0.4 else item.name


def _turn(stage: str, angle: float, rng: random.Random, **names: str) -> str:
    kind = turn_class(angle)
    form = kind.split()[0] if kind in ("straight", "around") or kind.startswith("slight") else "side"
    return _phrase(f"{stage} {form}", rng, side=_side(angle), **names)


def _side(angle: float) -> str:
    """left, right, or nothing for straight on and turning around."""
    kind = turn_class(angle)
    return kind.rsplit(" ", maxsplit=1)[-1] if kind.endswith(("left", "right")) else ""


def _phrase(key: str, rng: random.Random, **values: str) -> str:
    return rng.choice(_PHRASES[key]).format(**values)


def _sentences(clauses: list[str], rng: random.Random) -> str:
    """Join clauses, at most two to a sentence."""
    text, joined = clauses[0], False
    for before, clause in pairwise(clauses):
        join = not joined and rng.random() < 0.7
        options = _PHRASES["glue"] if join else _PHRASES["break"]
        glue = options[0] if join and " and " in before + clause else rng.choice(options)
        text, joined = glue.format(a=text, b=clause), join
    sentences = [part.strip() for part in text.split(" . ")]
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in sentences).replace(" ,", ",")


def tokenize(text: str) -> list[str]:
    """Lower-case words and punctuation marks."""
    return re.findall(r"[a-z]+|[.,]", text.lower())


def vocabulary() -> list[str]:
    """Every word an instruction can hold, in index order: padding, unknown, then sorted.

    It depends on the grammar alone, so that agents trained on one seed read instructions of another.
    """
    words = {".", ",", "left", "right", *_ORDINALS}
    for phrases in _PHRASES.values():
        for phrase in phrases:
            words.update(tokenize(re.sub(r"\{\w+\}", " ", phrase)))
    for furnishing in FURNISHINGS.values():
        words.update(tokenize(furnishing.noun))
        words.update(furnishing.colors)
    for kind in KINDS.values():
        words.update(tokenize(kind.name))
        words.update(kind.wall_colors)
    return ["<pad>", "<unk>", *sorted(words)]


def encode(text: str, index: dict[str, int]) -> list[int]:
    """Word indices, padded with 0 to MAX_TOKENS."""
    tokens = [index[word] for word in tokenize(text)]
    return tokens + [0] * (MAX_TOKENS - len(tokens))
