"""Is an instruction true of its path, and does every step of it single out one door or object?

The check shares nothing with the making of instructions but the clauses: it reads the text back and follows the
recorded walk through the house. Angles are in degrees, positive to the left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from envs.houses.language.grammar import Clause, voice
from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House
from envs.houses.plan.layout import Door, Ramp
from envs.houses.plan.visibility import visible
from envs.houses.routes.routes import rooms_at, wrap_degrees, yaw_of

EYE_M = 1.25
TURN_DEG = 15.0
_NEAR_M = 1.5
"""Where a turn leads is measured this far behind it, and at the end of the leg."""
_SLACK_DEG = 15.0
_PASS_M = 1.9
_STOP_M = 1.3
_SEE_M = 7.0


@dataclass(frozen=True)
class _Leg:
    """The part of a walk in one room: its locations, the heading on entry, how it was entered and is left."""

    room: int
    points: NDArray[np.float64]
    heading: float
    entry: Door | Ramp | None
    exit: Door | Ramp | None
    beyond: NDArray[np.float64]
    """The first location after the leg; the last one of the leg where there is none."""

    @property
    def arc(self) -> NDArray[np.float64]:
        steps = np.hypot(*np.diff(self.points[:, (0, 2)], axis=0).T)
        return np.concatenate(([0.0], np.cumsum(steps)))

    @property
    def length(self) -> float:
        return float(self.arc[-1] + np.hypot(*(self.beyond - self.points[-1])[[0, 2]]))

    def bearing(self, reach: float = math.inf) -> float:
        """Direction from the entry to the location `reach` meters on, or to the end."""
        index = int(np.searchsorted(self.arc, reach))
        target = self.points[index] if index < len(self.points) else self.beyond
        dx, _, dz = target - self.points[0]
        return yaw_of(dx, dz) if math.hypot(dx, dz) > 0.1 else self.heading


def check_text(
    house: House,
    text: str,
    voice_name: str,
    start_yaw: float,
    walk: tuple[Sequence[int], Sequence[Sequence[float]]],
) -> list[str]:
    """What is wrong with an instruction, one line per clause that is; empty if it is true and unambiguous.

    `start_yaw` in degrees. `walk` holds actions and locations as ground-truth files do.
    """
    clauses = voice(voice_name).read(text)
    if clauses is None:
        return [f"unreadable: {text}"]
    return check_clauses(house, clauses, start_yaw, walk)


def check_clauses(
    house: House,
    clauses: Sequence[Clause],
    start_yaw: float,
    walk: tuple[Sequence[int], Sequence[Sequence[float]]],
) -> list[str]:
    """As `check_text`, for clauses that were read already. A problem begins with the kind of its clause."""
    reader = _Reader(house, _legs(house, start_yaw, *walk))
    problems = []
    for clause in clauses:
        problem = reader.follow(clause)
        if problem:
            problems.append(f"{clause.kind}: {problem}")
        if reader.lost:
            return problems
    if reader.at < len(reader.legs) - 1:
        problems.append("end: the text ends before the last room")
    elif not clauses or not (clauses[-1].kind.startswith("stop") or clauses[-1].kind == "done"):
        problems.append("end: the text does not say where to stop")
    return problems


def _legs(house: House, yaw: float, actions: Sequence[int], locations: Sequence[Sequence[float]]) -> list[_Leg]:
    points = np.asarray(locations, dtype=np.float64)
    headings = [yaw]
    for action in actions:
        if action == 1:
            headings.append(yaw)
        yaw += {2: TURN_DEG, 3: -TURN_DEG}.get(action, 0.0)
    rooms = rooms_at(house.plan, points)
    spans = [[i for i, _ in group] for _, group in groupby(enumerate(rooms), key=lambda entry: entry[1])]
    ways: list[Door | Ramp | None] = [None]
    for before, after in pairwise(spans):
        middle = (points[before[-1]] + points[after[0]]) / 2
        ways.append(_way(house, {rooms[before[0]], rooms[after[0]]}, middle))
    ways.append(None)
    legs = []
    for number, whole in enumerate(spans):
        # What is said of a room is meant of its floor, not of the ramps at the ends of the leg.
        ramps = [way for way in ways[number : number + 2] if isinstance(way, Ramp)]
        span = [i for i in whole if not any(_on(ramp, points[i]) for ramp in ramps)] or whole
        last = min(span[-1] + 1, len(points) - 1)
        legs.append(
            _Leg(
                rooms[span[0]],
                points[span],
                headings[span[0]],
                ways[number],
                ways[number + 1],
                points[last],
            )
        )
    return legs


def _way(house: House, rooms: set[int], point: NDArray[np.float64]) -> Door | Ramp | None:
    """Door or ramp between two rooms, the one nearest to a point."""
    every: list[Door | Ramp] = [*house.plan.doors, *house.plan.ramps]
    ways = [way for way in every if set(way.rooms) == rooms]
    return min(ways, key=lambda way: math.dist(_middle(way), (point[0], point[2])), default=None)


def _on(ramp: Ramp, point: NDArray[np.float64]) -> bool:
    return ramp.rect.contains(float(point[0]), float(point[2]))


def _middle(way: Door | Ramp) -> tuple[float, float]:
    return way.center if isinstance(way, Door) else way.rect.center


class _Reader:
    """Follows an instruction clause by clause along a walk."""

    def __init__(self, house: House, legs: list[_Leg]) -> None:
        self.house = house
        self.legs = legs
        self.at = 0
        self.lost = False
        self._turned = False
        self._progress = 0.0

    @property
    def leg(self) -> _Leg:
        return self.legs[self.at]

    @property
    def _title(self) -> str:
        return self.house.title(self.leg.room)

    def follow(self, clause: Clause) -> str:
        """What is wrong with the clause at this place; nothing if it is right."""
        if clause.room and clause.room != self._title:
            return f"this is the {self._title}, not the {clause.room}"
        if clause.kind == "exit" or clause.kind in ("up", "down"):
            problem = self._exit(clause) if clause.kind == "exit" else self._ramp(clause.kind)
            self.at += 1
            self.lost = bool(problem) or self.at == len(self.legs)
            if self.at == len(self.legs):
                return problem or "the path does not leave this room"
            self._turned, self._progress = False, 0.0
            return problem
        if clause.kind.startswith("stop"):
            return self._stop(clause)
        if clause.object:
            return self._object(clause)
        if clause.kind in ("turn", "slight", "around", "straight"):
            return self._turn(clause)
        return self._walk(clause.kind)

    def _turn(self, clause: Clause) -> str:
        leg, kind = self.leg, clause.kind
        turns = [wrap_degrees(bearing - leg.heading) for bearing in (leg.bearing(_NEAR_M), leg.bearing())]
        if kind == "straight":
            bend = wrap_degrees(leg.bearing() - leg.bearing(_NEAR_M))
            wrong = abs(bend) > 45.0 or (not self._turned and max(map(abs, turns)) > 45.0)
        elif kind == "around":
            wrong = max(map(abs, turns)) < 125.0
        else:
            sign = 1.0 if clause.side == "left" else -1.0
            low, high = sorted(sign * turn for turn in turns)
            most, least = (75.0, 10.0) if kind == "slight" else (170.0, 30.0)
            wrong = not (least <= high <= most and low >= -_SLACK_DEG)
        self._turned = True
        degrees = " and ".join(str(round(turn)) for turn in turns)
        return f"{clause.side} but the path turns {degrees} degrees" if wrong else ""

    def _walk(self, kind: str) -> str:
        length = self.leg.length
        last = self.at == len(self.legs) - 1
        if kind == "done":
            return "" if last else "this is not the last room"
        if kind in ("cross", "along") and (last or length < (2.5 if kind == "along" else 1.2)):
            return f"the path does not go on through the {self._title}"
        if (kind == "short" and length > 3.5) or (kind == "long" and length < 3.5):
            return f"{length:.1f} m"
        return ""

    def _direction(self) -> float:
        """Where the walker looks before it takes a door."""
        leg = self.leg
        return leg.bearing() if self._turned or leg.length >= 1.5 else leg.heading

    def _exits(self) -> list[Door | Ramp]:
        """Ways out of the room, without the one by which it was entered."""
        plan, leg = self.house.plan, self.leg
        every: list[Door | Ramp] = [*plan.doors_of(leg.room), *plan.ramps_of(leg.room)]
        return [way for way in every if way != leg.entry]

    def _exit(self, clause: Clause) -> str:
        leg = self.leg
        if not isinstance(leg.exit, Door):
            return "the path does not go through a door here"
        if clause.next and clause.next != self._title_behind(leg.exit):
            return f"the door leads to the {self._title_behind(leg.exit)}, not the {clause.next}"
        if clause.side and not self._lies(leg.exit, clause.side, 35.0):
            return f"the door is not on the {clause.side}"
        rivals = [way for way in self._exits() if way != leg.exit and self._matches(way, clause)]
        if not clause.ordinal:
            return f"{len(rivals) + 1} ways out fit" if rivals else ""
        along = sorted(self._ahead(way) for way in rivals if isinstance(way, Door))
        own = self._ahead(leg.exit)
        if any(abs(other - own) < 0.6 for other in along):
            return "doors too close together to be counted"
        number = 1 + sum(other < own for other in along)
        return "" if number == clause.ordinal else f"it is door {number} on the {clause.side}"

    def _title_behind(self, way: Door | Ramp) -> str:
        (other,) = set(way.rooms) - {self.leg.room}
        return self.house.title(other)

    def _lies(self, door: Door, side: str, margin: float) -> bool:
        """Whether one has to turn to that side to go through the door, give or take."""
        (other,) = set(door.rooms) - {self.leg.room}
        angle = wrap_degrees(yaw_of(*door.normal(other)) - self._direction())
        if side == "ahead":
            return abs(angle) <= margin + 5.0
        angle = angle if side == "left" else -angle
        return margin <= angle <= 180.0 - margin

    def _ahead(self, door: Door) -> float:
        """How far along the walker's direction a door lies, meters from where the leg begins."""
        yaw = math.radians(self._direction())
        x, _, z = self.leg.points[0]
        return float(-(door.center[0] - x) * math.sin(yaw) - (door.center[1] - z) * math.cos(yaw))

    def _matches(self, way: Door | Ramp, clause: Clause) -> bool:
        """Whether another way out could be meant, read generously."""
        if clause.next and clause.next != self._title_behind(way):
            return False
        if isinstance(way, Ramp):
            return not clause.side and not clause.next
        if not clause.side:
            return True
        return self._lies(way, clause.side, 45.0 if clause.side == "ahead" else 25.0) and self._ahead(way) > -0.3

    def _ramp(self, kind: str) -> str:
        leg = self.leg
        if not isinstance(leg.exit, Ramp):
            return "the path does not take a ramp here"
        upwards = leg.exit.rooms[0] == leg.room
        if upwards != (kind == "up"):
            return "the ramp leads the other way"
        rivals = [way for way in self._exits() if isinstance(way, Ramp) and way != leg.exit]
        return "several ramps" if any((way.rooms[0] == leg.room) == upwards for way in rivals) else ""

    def _named(self, name: str) -> Item | str:
        """The one object of the room that fits a name, or why there is none."""
        found = [i for i in self.house.items if i.room == self.leg.room and name in (i.noun, i.name)]
        return found[0] if len(found) == 1 else f"{len(found)} objects here are a {name}"

    def _object(self, clause: Clause) -> str:
        item = self._named(clause.object)
        if isinstance(item, str):
            return item
        if clause.kind == "see":
            return self._see(item, clause.side)
        if clause.kind == "toward":
            return self._toward(item)
        if clause.kind == "turn at":
            return self._turn_at(item, clause.side)
        return self._pass(item, clause.side)

    def _sees(self, item: Item, points: Iterable[NDArray[np.float64]]) -> bool:
        return any(visible(self.house, point + np.array((0.0, EYE_M, 0.0)), item) for point in points)

    def _see(self, item: Item, side: str) -> str:
        leg = self.leg
        here = leg.points[0]
        angle = wrap_degrees(yaw_of(item.x - here[0], item.z - here[2]) - leg.heading)
        angle = abs(angle) if side == "ahead" else angle if side == "left" else -angle
        low, high = (0.0, 30.0) if side == "ahead" else (30.0, 150.0)
        if not low <= angle <= high:
            return f"the {item.name} is not {side}"
        if math.hypot(item.x - here[0], item.z - here[2]) > _SEE_M or not self._sees(item, [here]):
            return f"the {item.name} cannot be seen"
        return ""

    def _toward(self, item: Item) -> str:
        leg = self.leg
        here, end = leg.points[0], leg.points[-1]
        angle = wrap_degrees(yaw_of(item.x - here[0], item.z - here[2]) - leg.bearing(_NEAR_M))
        if abs(angle) > 50.0 or item.footprint.distance(end[0], end[2]) > _PASS_M:
            return f"the path does not lead to the {item.name}"
        return "" if self._sees(item, [here, leg.points[len(leg.points) // 3]]) else f"{item.name} out of sight"

    def _turn_at(self, item: Item, side: str) -> str:
        """The walk turns to that side on its way out of the room, beside the object."""
        leg = self.leg
        if not isinstance(leg.exit, Door) or not self._lies(leg.exit, side, 40.0):
            return f"the path does not turn {side} to leave the room"
        near = item.footprint.distance(*leg.exit.center)
        if near > _PASS_M:
            return f"the path turns {near:.1f} m from the {item.name}"
        self._turned = True
        return "" if self._sees(item, leg.points[:: max(1, len(leg.points) // 3)]) else f"{item.name} out of sight"

    def _pass(self, item: Item, side: str) -> str:
        leg = self.leg
        gaps = [item.footprint.distance(x, z) for x, _, z in leg.points]
        middles = np.hypot(leg.points[:, 0] - item.x, leg.points[:, 2] - item.z)
        nearest = int(middles.argmin())
        if min(gaps) > _PASS_M or not 0 < nearest < len(gaps) - 1:
            return f"the path does not pass the {item.name}"
        if leg.arc[nearest] < self._progress - 0.3:
            return f"the {item.name} is passed earlier"
        self._progress = float(leg.arc[nearest])
        here, (a, b) = leg.points[nearest], (leg.points[max(0, nearest - 2)], leg.points[nearest + 1])
        ahead = yaw_of(b[0] - a[0], b[2] - a[2])
        angle = wrap_degrees(yaw_of(item.x - here[0], item.z - here[2]) - ahead)
        if side and not 35.0 <= (angle if side == "left" else -angle) <= 145.0:
            return f"the {item.name} is not on the {side}"
        seen = self._sees(item, [leg.points[max(0, nearest - 4)], here])
        return "" if seen else f"{item.name} out of sight"

    def _stop(self, clause: Clause) -> str:
        leg, plan = self.leg, self.house.plan
        if self.at < len(self.legs) - 1:
            self.lost = True
            return "this is not the last room"
        x, _, z = end = leg.points[-1]
        if clause.kind == "stop door":
            near = isinstance(leg.entry, Door) and math.dist(leg.entry.center, (x, z)) <= _STOP_M
            return "" if near else "the path does not end behind the door by which the room is entered"
        if clause.kind == "stop middle":
            return "" if math.dist(plan.rooms[leg.room].center, (x, z)) <= 1.0 else "not the middle of the room"
        item = self._named(clause.object)
        if isinstance(item, str):
            return item
        if item.footprint.distance(x, z) > _STOP_M:
            return f"the path ends {item.footprint.distance(x, z):.1f} m from the {item.name}"
        if clause.kind == "stop in front of":
            off = wrap_degrees(yaw_of(x - item.x, z - item.z) - yaw_of(*item.facing))
            if abs(off) > 60.0:
                return f"the path ends beside the {item.name}, not in front of it"
        return "" if self._sees(item, [end, leg.points[0]]) else f"{item.name} out of sight"
