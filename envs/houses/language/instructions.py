"""What to say of a route: the clauses of R2R-like, RxR-like and machine-spoken instructions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from envs.houses.language.checker import EYE_M
from envs.houses.language.grammar import MOST_DOORS_COUNTED, Clause
from envs.houses.plan.catalog import FURNISHINGS, LANDMARKS
from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House
from envs.houses.plan.layout import Ramp
from envs.houses.plan.visibility import visible
from envs.houses.routes.routes import Leg, Route, turn_class, wrap_degrees, yaw_of

_SIDE_DEG = (50.0, 130.0)
"""Doors in this range of turns are on a side, without a doubt."""
_AHEAD_DEG = 22.0
_SIGHT_M = 6.0
_ADDITIONS = frozenset({"turn", "slight", "around", "straight", "cross", "along", "pass", "toward"})
"""Kinds that an instruction can do without."""


@dataclass(frozen=True)
class Noise:
    """How often the machine speaker errs: shares of clauses left out, and of sides and objects that are false."""

    dropped: float = 0.08
    wrong_side: float = 0.04
    wrong_object: float = 0.06

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0.0 <= getattr(self, field.name) <= 1.0:
                raise ValueError(f"{field.name} must lie between 0 and 1")


def brief(house: House, route: Route, rng: random.Random, dropout: float = 0.0) -> list[Clause]:
    """Clauses in the manner of R2R: a turn, a mark and a way out for every room, and where to stop.

    `dropout`: chance that a clause which is not needed is left out.
    """
    clauses: list[Clause] = []
    marks = rng.random() < 0.75
    for leg, after in pairwise(route.legs):
        said = _turns(house, leg, first=not clauses, rng=rng)
        if marks and (mark := _mark(house, leg, rng)) is not None:
            marks = False
            said.append(mark)
        clauses += [*said, _exit(house, leg, after, rng)]
    clauses += [*_last_turn(route.legs[-1], rng), _stop(house, route, rng)]
    return [clause for clause in clauses if clause.kind not in _ADDITIONS or rng.random() >= dropout]


def dense(house: House, route: Route, rng: random.Random) -> list[Clause]:
    """Clauses in the manner of RxR: step by step, with what is to be seen on the way."""
    first = route.legs[0]
    clauses = [Clause("here", room=house.title(first.room))]
    for leg, after in pairwise(route.legs):
        if leg is not first and rng.random() < 0.5:
            clauses.append(Clause("now", room=house.title(leg.room)))
        clauses += _sights(house, leg, 1 if leg is first or rng.random() < 0.4 else 0, rng)
        straight = turn_class(leg.turn_in) == "straight"
        passings = [p for p in leg.passings if p.item != route.goal.item][: 1 + (rng.random() < 0.3)]
        if not straight or (not passings and leg.length > 1.0 and rng.random() < 0.6):
            clauses.append(_turn(leg.turn_in))
        clauses += [Clause("pass", side=p.side, object=_name(house, p.item, rng)) for p in passings]
        if not passings and leg.length > 4.5 and not leg.climbs:
            clauses.append(Clause("long"))
        elif not passings and not straight and 1.2 < leg.length < 2.8 and rng.random() < 0.5:
            clauses.append(Clause("short"))
        clauses.append(_exit(house, leg, after, rng, always_next=True))
    last = route.legs[-1]
    if route.goal.door is None and rng.random() < 0.8:
        clauses.append(Clause("now", room=house.title(last.room)))
    clauses += _sights(house, last, rng.random() < 0.5, rng)
    if last.length >= 1.0:
        clauses.append(_turn(last.turn_in))
    return [*clauses, _stop(house, route, rng), *([Clause("done")] if rng.random() < 0.6 else [])]


def noisy(clauses: Sequence[Clause], noise: Noise, rng: random.Random) -> list[Clause]:
    """The same with clauses missing and sides and objects that are wrong; the last clause stays."""
    told = []
    for clause in clauses:
        if clause is not clauses[-1] and rng.random() < noise.dropped:
            continue
        if clause.side in ("left", "right") and rng.random() < noise.wrong_side:
            clause = replace(clause, side="right" if clause.side == "left" else "left")
        if clause.object and rng.random() < noise.wrong_object:
            noun = rng.choice(LANDMARKS)
            clause = replace(clause, object=f"{rng.choice(FURNISHINGS[noun].colors)} {noun}")
        told.append(clause)
    return told


def _turns(house: House, leg: Leg, *, first: bool, rng: random.Random) -> list[Clause]:
    """How to set out in a room that is walked through, and perhaps that one walks on through it."""
    kind = turn_class(leg.turn_in)
    if not first and kind.startswith("slight"):
        kind = "straight"  # doors are rarely quite opposite each other
    if not first and leg.length < 1.0:
        return []  # from door to door in one turn: the way out says it
    along = Clause("along" if leg.room == 0 and leg.length > 3.0 else "cross", room=house.title(leg.room))
    said = [] if kind == "straight" else [_turn(leg.turn_in)]
    if first:
        straight = kind == "straight" and rng.random() < 0.4
        return [Clause("straight")] if straight else said
    if leg.length > 2.0 and not leg.climbs and rng.random() < 0.22:
        said.append(along if said or rng.random() < 0.7 else Clause("straight"))
    return said


def _mark(house: House, leg: Leg, rng: random.Random) -> Clause | None:
    """An object to walk past, or to walk to before one leaves the room."""
    choices = []
    if leg.passings:
        passing = rng.choice([p for p in leg.passings if p.item.landmark] or list(leg.passings))
        side = passing.side if rng.random() < 0.6 else ""
        choices.append(Clause("pass", side=side, object=_name(house, passing.item, rng)))
    if leg.waypoint is not None and leg.length > 2.0:
        choices.append(Clause("toward", object=_name(house, leg.waypoint, rng)))
        if _clear_side(leg) and turn_class(leg.turn_in) == "straight":
            choices.append(Clause("turn at", side=_clear_side(leg), object=_name(house, leg.waypoint, rng)))
    return rng.choice(choices) if choices and rng.random() < 0.7 else None


def _exit(house: House, leg: Leg, after: Leg, rng: random.Random, *, always_next: bool = False) -> Clause:
    """The way out of a room, told by one or several of: where it leads, its side, and its number."""
    room = house.title(leg.room)
    if isinstance(leg.way, Ramp):
        return Clause(leg.climbs)
    next_room = house.title(after.room)
    side = _clear_side(leg)
    ahead = "ahead" if abs(leg.turn_out) < _AHEAD_DEG and leg.length > 0.8 else ""
    full = Clause("exit", side=side, room=room, next=next_room)
    choices = [replace(full, side="")] * 3 + [full] * (4 if side else 0)
    if ahead:
        choices += [replace(full, side=ahead)]
    if side and not always_next:
        choices.append(replace(full, next=""))
    if side and leg.ordinal is not None and 2 <= leg.ordinal <= MOST_DOORS_COUNTED:
        choices += [
            replace(full, ordinal=leg.ordinal),
            *([] if always_next else [replace(full, ordinal=leg.ordinal, next="")]),
        ]
    if not always_next and len(house.plan.doors_of(leg.room)) + len(house.plan.ramps_of(leg.room)) == 1:
        choices += [replace(full, side="", next="")] * 2
    return rng.choice(choices)


def _last_turn(leg: Leg, rng: random.Random) -> list[Clause]:
    kind = turn_class(leg.turn_in)
    if leg.length < 1.2 or kind == "straight":
        return [Clause("straight")] if leg.length > 2.5 and rng.random() < 0.3 else []
    return [_turn(leg.turn_in)]


def _stop(house: House, route: Route, rng: random.Random) -> Clause:
    goal = route.goal
    room = house.title(goal.room)
    if goal.door is not None:
        return Clause("stop door", room=room)
    if goal.item is None:
        return Clause("stop middle", room=room)
    return Clause(f"stop {goal.relation}", object=_name(house, goal.item, rng))


def _turn(angle: float) -> Clause:
    kind = turn_class(angle)
    if kind in ("straight", "around"):
        return Clause(kind)
    form, _, side = kind.rpartition(" ")
    return Clause(form or "turn", side=side)


def _clear_side(leg: Leg) -> str:
    """On which side the exit lies for someone walking the leg; nothing if there is a doubt."""
    low, high = _SIDE_DEG
    if not low <= abs(leg.turn_out) <= high:
        return ""
    return "left" if leg.turn_out > 0 else "right"


def _name(house: House, item: Item, rng: random.Random) -> str:
    alone = sum(other.noun == item.noun for other in house.items if other.room == item.room) == 1
    return item.noun if alone and not item.landmark and rng.random() < 0.5 else item.name


def _sights(house: House, leg: Leg, count: int, rng: random.Random) -> list[Clause]:
    """Objects in sight from where a leg begins, relative to the walker's heading there."""
    x, y, z = leg.start
    found: list[Clause] = []
    items = [item for item in house.items if item.room == leg.room and item.noun != "rug" and not item.distractor]
    rng.shuffle(items)
    for item in items:
        if len(found) == count:
            break
        away = ((item.x - x) ** 2 + (item.z - z) ** 2) ** 0.5
        angle = wrap_degrees(yaw_of(item.x - x, item.z - z) - leg.heading)
        side = "ahead" if abs(angle) < 20.0 else "left" if angle > 0 else "right"
        clear = side == "ahead" or 45.0 < abs(angle) < 135.0
        if clear and 0.8 < away < _SIGHT_M and visible(house, (x, y + EYE_M, z), item):
            found.append(Clause("see", side=side, object=_name(house, item, rng)))
    return found
