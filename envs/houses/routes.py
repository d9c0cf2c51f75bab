"""What a path through a house means: rooms, doors, turns, objects passed, and where it ends.

Angles are in degrees, positive to the left; yaw 0 looks along -z. Everything here is measured on the true path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .furnish import Item
from .house import House
from .layout import Door, Rect

SAMPLE_M = 0.05
STRAIGHT_DEG = 25.0
SLIGHT_DEG = 45.0
AROUND_DEG = 150.0
PASS_M = 1.6
"""Objects further from the path than this are not mentioned as passed."""

Points = NDArray[np.float64]
"""(n, 2) plan coordinates (x, z) in metres."""


@dataclass(frozen=True)
class Goal:
    """Where a trajectory ends: beside an object, just behind a doorway, or in the middle of a room."""

    room: int
    x: float
    z: float
    item: Item | None = None
    relation: str = "next to"
    door: Door | None = None


@dataclass(frozen=True)
class Passing:
    """An object beside the path: `side` is where it is while it is passed, `distance` metres from the path."""

    item: Item
    side: str
    distance: float


@dataclass(frozen=True)
class Leg:
    """The part of a path inside one room.

    `turn_in`: from the heading on entry (start heading, or straight through the door) to the direction of the leg.
    `turn_out`: from that direction to the exit through `door`; 0 in the last leg, where `door` is None.
    `ordinal`: which door on that side it is, where counting helps.
    """

    room: int
    length: float
    turn_in: float
    turn_out: float
    door: Door | None
    ordinal: int | None
    passings: tuple[Passing, ...]


@dataclass(frozen=True)
class Route:
    """A path described leg by leg."""

    legs: tuple[Leg, ...]
    goal: Goal
    crossings: tuple[tuple[float, float], ...]
    """Points (x, z) where the path goes through a doorway."""


def wrap_degrees(angle: float) -> float:
    """To (-180, 180]."""
    return -((180.0 - angle) % 360.0 - 180.0)


def yaw_of(dx: float, dz: float) -> float:
    """Yaw in degrees of a plan direction."""
    return math.degrees(math.atan2(-dx, -dz))


def turn_class(angle: float) -> str:
    """straight, slight left/right, left/right or around."""
    size = abs(angle)
    if size <= STRAIGHT_DEG:
        return "straight"
    if size >= AROUND_DEG:
        return "around"
    side = "left" if angle > 0 else "right"
    return f"slight {side}" if size < SLIGHT_DEG else side


def resample(corners: Sequence[Sequence[float]]) -> Points:
    """Points every SAMPLE_M metres along a polyline of (x, z) corners, both ends included."""
    points = np.asarray(corners, dtype=np.float64)
    steps = np.hypot(*np.diff(points, axis=0).T)
    arc = np.concatenate(([0.0], np.cumsum(steps)))
    count = max(2, math.ceil(arc[-1] / SAMPLE_M) + 1)
    where = np.linspace(0.0, arc[-1], count)
    return np.stack([np.interp(where, arc, points[:, axis]) for axis in (0, 1)], axis=1)


def trace(house: House, corners: Sequence[Sequence[float]], start_yaw: float, goal: Goal) -> Route | None:
    """Describe a path; None if it crosses walls where no door is, or visits a room twice."""
    points = resample(corners)
    visits: list[tuple[int, int, int, Door | None]] = []  # room, first and last sample, exit door
    rooms = [house.plan.room_at(x, z) for x, z in points]
    first = 0
    for i in range(1, len(rooms)):
        if rooms[i] != rooms[i - 1]:
            door = _door_at(house, rooms[i - 1], rooms[i], points[i])
            if door is None:
                return None
            visits.append((rooms[i - 1], first, i, door))
            first = i
    visits.append((rooms[-1], first, len(points) - 1, None))
    if len({visit[0] for visit in visits}) != len(visits) or visits[-1][0] != goal.room:
        return None
    legs: list[Leg] = []
    heading = start_yaw
    for room, begin, end, door in visits:
        after = visits[len(legs) + 1][0] if door else room
        leg = _leg(house, points[begin : end + 1], heading, (room, after), door, first=not legs)
        legs.append(leg)
        if door is not None:
            heading = yaw_of(*door.normal(after))
    crossings = tuple((float(points[end][0]), float(points[end][1])) for _, _, end, door in visits if door)
    return Route(tuple(legs), goal, crossings)


def _door_at(house: House, a: int, b: int, point: NDArray[np.float64]) -> Door | None:
    for door in house.plan.doors:
        if set(door.rooms) == {a, b} and door.zone(0.3).contains(float(point[0]), float(point[1])):
            return door
    return None


def _leg(
    house: House, points: Points, heading: float, rooms: tuple[int, int], door: Door | None, *, first: bool
) -> Leg:
    length = float(np.hypot(*np.diff(points, axis=0).T).sum())
    span = points[-1] - points[0]
    bearing = yaw_of(*span) if np.hypot(*span) > 0.3 else heading
    if length > 1.25 * float(np.hypot(*span)) and length > 2.0:
        # A detour around furniture: say where it begins, not where it ends up.
        reach = min(len(points) - 1, round(1.2 / SAMPLE_M))
        bearing = yaw_of(*(points[reach] - points[0]))
    turn_in, turn_out = wrap_degrees(bearing - heading), 0.0
    if door is not None:
        out = yaw_of(*door.normal(rooms[1]))
        turn_out = wrap_degrees(out - bearing)
        if length < 1.0 and not first:
            # From door to door in a few steps: one turn, whatever the line between them.
            turn_in, turn_out = wrap_degrees(out - heading), 0.0
    elif length < 1.0:
        turn_in = 0.0
    ordinal = _ordinal(house, points, rooms[0], door) if door is not None else None
    passings = _passings(house, points, rooms[0])
    return Leg(rooms[0], length, turn_in, turn_out, door, ordinal, passings)


def _ordinal(house: House, points: Points, room: int, door: Door) -> int | None:
    """Count doors on the exit's wall from where the leg begins; None unless the leg runs along that wall."""
    axis = 0 if door.along == "x" else 1
    begin, end = points[0][axis], door.center[axis]
    if abs(end - begin) < 1.2:
        return None
    same_wall = [
        d
        for d in house.plan.doors_of(room)
        if d.along == door.along and abs(d.center[1 - axis] - door.center[1 - axis]) < 0.01
    ]
    sign = 1.0 if end > begin else -1.0
    ahead = sorted(
        (d.center[axis] - begin) * sign for d in same_wall if (d.center[axis] - begin) * sign > d.width / 2 + 0.2
    )
    return ahead.index((end - begin) * sign) + 1 if (end - begin) * sign in ahead and len(ahead) > 1 else None


def _passings(house: House, points: Points, room: int) -> tuple[Passing, ...]:
    """Objects abreast of the path somewhere in the middle of a leg, in the order they are passed."""
    margin = round(0.6 / SAMPLE_M)
    if len(points) < 2 * margin + 3:
        return ()
    found = []
    for item in house.items:
        if item.room != room or item.noun == "rug":
            continue
        distances = np.hypot(points[:, 0] - item.x, points[:, 1] - item.z)
        nearest = int(distances.argmin())
        gap = _gap(item.footprint, points[nearest])
        if not margin <= nearest < len(points) - margin or gap > PASS_M or distances[nearest] > PASS_M + 0.5:
            continue
        ahead = points[min(nearest + 6, len(points) - 1)] - points[max(nearest - 6, 0)]
        offset = (item.x - points[nearest][0], item.z - points[nearest][1])
        angle = wrap_degrees(yaw_of(*offset) - yaw_of(*ahead))
        if 55.0 <= abs(angle) <= 125.0:
            found.append((nearest, Passing(item, "left" if angle > 0 else "right", gap)))
    return tuple(passing for _, passing in sorted(found, key=lambda entry: entry[0]))


def _gap(footprint: Rect, point: NDArray[np.float64]) -> float:
    return footprint.distance(float(point[0]), float(point[1]))
