"""What a path through a house means: rooms, doors, turns, objects passed, and where it ends.

Angles are in degrees, positive to the left; yaw 0 looks along -z. Everything here is measured on the true path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House
from envs.houses.plan.layout import STOREY_M, Door, Plan, Ramp

SAMPLE_M = 0.05
STRAIGHT_DEG = 25.0
SLIGHT_DEG = 45.0
AROUND_DEG = 150.0
PASS_M = 1.6
"""Objects further from the path than this are not mentioned as passed."""
_CROSSING = 6
"""Samples before and after a doorway that give the direction in which a path goes through it."""
FAR_M = 3.5
"""A last leg is far that is longer: the radius of success and a step or two into the room."""
WAYPOINT_M = 1.7
"""Objects further from the end of a leg than this do not mark it."""

Points = NDArray[np.float64]
"""(n, 2) plan coordinates (x, z) in meters."""


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
    """An object beside the path: `side` is where it is while it is passed, `distance` meters from the path."""

    item: Item
    side: str
    distance: float


@dataclass(frozen=True)
class Leg:
    """The part of a path inside one room, without the ramps at its ends.

    `start` is where it begins, (x, y, z), and `heading` the walker's there: the start heading, or that of the
    path through the door or along the ramp. `turn_in`: from that heading to the direction of the leg. `turn_out`:
    from that direction to the exit through the door `way`; 0 where the way is a ramp and in the last leg, where it
    is None. `ordinal`: which door on that side it is, where counting helps. `waypoint`: an object beside the exit.
    """

    room: int
    start: tuple[float, float, float]
    heading: float
    length: float
    turn_in: float
    turn_out: float
    way: Door | Ramp | None
    ordinal: int | None = None
    passings: tuple[Passing, ...] = ()
    waypoint: Item | None = None

    @property
    def climbs(self) -> str:
        """up or down where the way is a ramp."""
        if not isinstance(self.way, Ramp):
            return ""
        return "up" if self.way.rooms[0] == self.room else "down"


@dataclass(frozen=True)
class Route:
    """A path described leg by leg."""

    legs: tuple[Leg, ...]
    goal: Goal
    crossings: tuple[tuple[float, float], ...]
    """Points (x, z) where the path goes through a doorway, or half-way up a ramp."""

    @property
    def far(self) -> bool:
        """Whether who stops as soon as the goal's room is entered has failed, whatever stands in the way."""
        return self.legs[-1].length > FAR_M


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
    """Points every SAMPLE_M meters along a polyline of (x, z) corners, both ends included."""
    points = np.asarray(corners, dtype=np.float64)
    steps = np.hypot(*np.diff(points, axis=0).T)
    arc = np.concatenate(([0.0], np.cumsum(steps)))
    count = max(2, math.ceil(arc[-1] / SAMPLE_M) + 1)
    where = np.linspace(0.0, arc[-1], count)
    return np.stack([np.interp(where, arc, points[:, axis]) for axis in (0, 1)], axis=1)


def trace(house: House, corners: Sequence[Sequence[float]], start_yaw: float, goal: Goal) -> Route | None:
    """Describe a path of (x, y, z) corners; None if it crosses walls where no door is, or visits a room twice."""
    points = resample([(x, z) for x, _, z in corners])
    rooms, on_ramp = _rooms_along(house.plan, points, corners[0][1])
    visits: list[tuple[int, int, int, Door | Ramp | None]] = []  # room, first and last sample, way out
    first = 0
    for i in range(1, len(rooms)):
        if rooms[i] != rooms[i - 1]:
            way = _way_at(house.plan, rooms[i - 1], rooms[i], points[i])
            if way is None:
                return None
            visits.append((rooms[i - 1], first, i, way))
            first = i
    visits.append((rooms[-1], first, len(points) - 1, None))
    if len({visit[0] for visit in visits}) != len(visits) or visits[-1][0] != goal.room:
        return None
    legs: list[Leg] = []
    heading, entry = start_yaw, None
    for room, begin, end, way in visits:
        level = [i for i in range(begin, end + 1) if not on_ramp[i]]
        if len(level) < 2:
            return None  # starts or ends on a ramp
        after = visits[len(legs) + 1][0] if way else room
        leg = _leg(house, points[level], heading, (room, after), (entry, way))
        legs.append(leg)
        if way is not None:
            span = points[min(end + _CROSSING, len(points) - 1)] - points[max(end - _CROSSING, 0)]
            heading = yaw_of(*span)
        entry = way
    crossings = tuple((float(points[end][0]), float(points[end][1])) for _, _, end, way in visits if way)
    return Route(tuple(legs), goal, crossings)


def rooms_at(plan: Plan, points: NDArray[np.float64]) -> list[int]:
    """`Plan.room_at` for (n, 3) points (x, y, z) at once."""
    rects = np.array([(room.x0, room.z0, room.x1, room.z1) for room in plan.rooms])
    x, z = points[:, None, 0], points[:, None, 2]
    dx = np.maximum(np.maximum(rects[:, 0] - x, x - rects[:, 2]), 0.0)
    dz = np.maximum(np.maximum(rects[:, 1] - z, z - rects[:, 3]), 0.0)
    storeys = np.clip(np.round(points[:, 1] / STOREY_M), 0, plan.n_storeys - 1)
    elsewhere = storeys[:, None] != np.array(plan.storeys)[None]
    nearest: list[int] = np.where(elsewhere, np.inf, dx * dx + dz * dz).argmin(axis=1).tolist()
    return nearest


def _rooms_along(plan: Plan, points: Points, y: float) -> tuple[list[int], list[bool]]:
    """Room of every point of a path that begins at height y, and whether the point lies on a ramp."""
    heights, on_ramp = np.zeros(len(points)), [False] * len(points)
    if plan.ramps:
        for i, (x, z) in enumerate(points.tolist()):
            ramp = next((ramp for ramp in plan.ramps if ramp.rect.contains(x, z) and _reaches(ramp, y)), None)
            y = ramp.height_at(x, z) if ramp else STOREY_M * round(y / STOREY_M)
            heights[i], on_ramp[i] = y, ramp is not None
    return rooms_at(plan, np.stack((points[:, 0], heights, points[:, 1]), axis=1)), on_ramp


def _reaches(ramp: Ramp, y: float) -> bool:
    return ramp.bottom[1] - 0.5 <= y <= ramp.top[1] + 0.5


def _way_at(plan: Plan, a: int, b: int, point: NDArray[np.float64]) -> Door | Ramp | None:
    x, z = float(point[0]), float(point[1])
    for door in plan.doors:
        if set(door.rooms) == {a, b} and door.zone(0.3).contains(x, z):
            return door
    return next((ramp for ramp in plan.ramps if set(ramp.rooms) == {a, b} and ramp.rect.contains(x, z)), None)


def _leg(
    house: House,
    points: Points,
    heading: float,
    rooms: tuple[int, int],
    ways: tuple[Door | Ramp | None, Door | Ramp | None],
) -> Leg:
    room, (entry, way) = rooms[0], ways
    length = float(np.hypot(*np.diff(points, axis=0).T).sum())
    span = points[-1] - points[0]
    bearing = yaw_of(*span) if np.hypot(*span) > 0.3 else heading
    if length > 1.25 * float(np.hypot(*span)) and length > 2.0:
        # A detour around furniture: say where it begins, not where it ends up.
        reach = min(len(points) - 1, round(1.2 / SAMPLE_M))
        bearing = yaw_of(*(points[reach] - points[0]))
    turn_in, turn_out = wrap_degrees(bearing - heading), 0.0
    if isinstance(way, Door):
        out = yaw_of(*way.normal(rooms[1]))
        turn_out = wrap_degrees(out - bearing)
        if length < 1.0 and entry is not None:
            # From door to door in a few steps: one turn, whatever the line between them.
            turn_in, turn_out = wrap_degrees(out - heading), 0.0
    elif way is None and length < 1.0:
        turn_in = 0.0
    x, z = points[0].tolist()
    return Leg(
        room=room,
        start=(x, house.plan.floor_m(room), z),
        heading=heading,
        length=length,
        turn_in=turn_in,
        turn_out=turn_out,
        way=way,
        ordinal=_ordinal(house, points, room, way) if isinstance(way, Door) else None,
        passings=_passings(house, points, room),
        waypoint=_waypoint(house, points, room),
    )


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


def _waypoint(house: House, points: Points, room: int) -> Item | None:
    """The landmark nearest to where a leg ends, if it is a good mark for that place."""
    x, z = points[-1].tolist()
    bearing = yaw_of(*(points[min(len(points) - 1, round(1.5 / SAMPLE_M))] - points[0]))
    gaps = [
        (item.footprint.distance(x, z), i)
        for i, item in enumerate(house.items)
        if item.room == room
        and item.landmark
        and item.footprint.distance(x, z) <= WAYPOINT_M
        and abs(wrap_degrees(yaw_of(item.x - points[0][0], item.z - points[0][1]) - bearing)) < 40.0
    ]
    return house.items[min(gaps)[1]] if gaps else None


def _passings(house: House, points: Points, room: int) -> tuple[Passing, ...]:
    """Objects abreast of the path somewhere in the middle of a leg, in the order they are passed."""
    margin = round(0.6 / SAMPLE_M)
    if len(points) < 2 * margin + 3:
        return ()
    found = []
    for item in house.items:
        if item.room != room or item.noun == "rug" or item.distractor:
            continue
        distances = np.hypot(points[:, 0] - item.x, points[:, 1] - item.z)
        nearest = int(distances.argmin())
        gap = item.footprint.distance(float(points[nearest][0]), float(points[nearest][1]))
        if not margin <= nearest < len(points) - margin or gap > PASS_M or distances[nearest] > PASS_M + 0.5:
            continue
        ahead = points[min(nearest + 6, len(points) - 1)] - points[max(nearest - 6, 0)]
        offset = (item.x - points[nearest][0], item.z - points[nearest][1])
        angle = wrap_degrees(yaw_of(*offset) - yaw_of(*ahead))
        if 55.0 <= abs(angle) <= 125.0:
            found.append((nearest, Passing(item, "left" if angle > 0 else "right", gap)))
    return tuple(passing for _, passing in sorted(found, key=lambda entry: entry[0]))
