"""Start and goal pairs of a house, their paths and ground-truth walks."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from envs.embedded.navmesh.pathfinder import PathFinder
from envs.houses.options import StartHeading
from envs.houses.plan.catalog import FURNISHINGS
from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House
from envs.houses.plan.layout import WALL_M
from envs.houses.routes.follow import FollowedPath, follow
from envs.houses.routes.routes import Goal, Route, resample, trace, wrap_degrees, yaw_of

Point = tuple[float, float, float]
Start = tuple[Point, float]
"""Position and heading (yaw in degrees, a multiple of 30)."""
Place = tuple[Goal, Point]
"""A goal and where to stand for it."""

LENGTH_BANDS_M = (4.0, 5.6, 6.5, 7.3, 8.0, 8.8, 9.6, 10.6, 11.8, 13.6, 20.0)
"""Between two neighbors lies a tenth of the geodesic distances of R2R-CE's train split, but for the few below 4 m
and above 20 m."""
SHORTEST_M, LONGEST_M = LENGTH_BANDS_M[0], LENGTH_BANDS_M[-1]
MAX_DETOUR_M = 0.6
"""A walk further from the planned path than this has left it."""
GOAL_TOLERANCE_M = 0.5
_MOST_DOORS = 4
_GOAL_CLEARANCE_M = 0.25
_START_CLEARANCE_M = 0.35
_FRONT_DEG = 40.0
_NODE_SPACING_M = 2.5


@dataclass(frozen=True)
class Trajectory:
    """One path through a house: what the episodes that share it have in common."""

    start: Point
    yaw: float
    goal: Point
    geodesic: float
    reference_path: tuple[Point, ...]
    walk: FollowedPath
    route: Route


def trajectories(
    house: House,
    pathfinder: PathFinder,
    rng: random.Random,
    heading: StartHeading = "random",
    starts_per_room: int = 2,
    near_kept: float = 1.0,
) -> Iterator[Trajectory]:
    """All usable trajectories of a house: from the first on, equally many of every band of lengths that it has.

    Starts come from a small pool and every start is paired with goals all over the house, so that the instruction
    alone tells where to go. `near_kept`: share of those that are kept whose goal is not far.
    """
    starts = _starts(house, pathfinder, starts_per_room, rng)
    goals = []
    for goal in _goals(house, rng):
        point = _stand(pathfinder, goal, house.plan.floor_m(goal.room))
        if point is not None:
            goals.append((goal, point))
    left = _by_length(pathfinder, starts, goals, rng)
    given = [0] * len(left)

    def keep(route: Route) -> bool:
        return near_kept == 1 or route.far or rng.random() < near_kept

    while any(left):
        band = min((i for i, pairs in enumerate(left) if pairs), key=lambda i: (given[i], rng.random()))
        start, place = left[band].pop()
        trajectory = _make(house, pathfinder, start, place, heading, keep)
        if trajectory is not None:
            given[band] += 1
            yield trajectory


def _by_length(
    pathfinder: PathFinder, starts: Sequence[Start], goals: Sequence[Place], rng: random.Random
) -> list[list[tuple[Start, Place]]]:
    """Pairs of a start and a goal for every band of lengths, in random order."""
    bands: list[list[tuple[Start, Place]]] = [[] for _ in LENGTH_BANDS_M[1:]]
    for start in starts:
        for goal in goals:
            length = pathfinder.geodesic_distance(start[0], goal[1])
            if SHORTEST_M <= length <= LONGEST_M:
                bands[min(bisect_right(LENGTH_BANDS_M, length), len(bands)) - 1].append((start, goal))
    for pairs in bands:
        rng.shuffle(pairs)
    return bands


def _starts(house: House, pathfinder: PathFinder, per_room: int, rng: random.Random) -> list[Start]:
    starts: list[Start] = []
    for room, rect in enumerate(house.plan.rooms):
        inner = rect.grown(-WALL_M / 2 - _START_CLEARANCE_M)
        found = 0
        for _ in range(60):
            x = inner.x0 + rng.random() * inner.width
            z = inner.z0 + rng.random() * inner.depth
            yaw = 30.0 * rng.randrange(12)
            point = _snap(pathfinder, (x, house.plan.floor_m(room), z), _START_CLEARANCE_M)
            if point is not None and rect.contains(point[0], point[2]):
                starts.append((point, yaw))
                found += 1
                if found == per_room:
                    break
    return starts


def _goals(house: House, rng: random.Random) -> Iterator[Goal]:
    for item in house.items:
        if item.noun == "rug" or item.distractor:
            continue
        alone = [other.noun for other in house.items if other.room == item.room].count(item.noun) == 1
        if alone or item.landmark:
            yield from _beside(house, item, rng)
    for room, rect in enumerate(house.plan.rooms):
        x, z = rect.center
        if room != 0:
            yield Goal(room, x, z)
        for door in house.plan.doors_of(room):
            nx, nz = door.normal(room)
            yield Goal(room, door.center[0] + 0.4 * nx, door.center[1] + 0.4 * nz, door=door)


def _beside(house: House, item: Item, rng: random.Random) -> Iterator[Goal]:
    rect = house.plan.rooms[item.room].grown(-WALL_M / 2 - _GOAL_CLEARANCE_M)
    reach = max(item.footprint.width, item.footprint.depth) / 2 + 0.9
    for _ in range(40):
        x = item.x + (2 * rng.random() - 1) * reach
        z = item.z + (2 * rng.random() - 1) * reach
        gap = item.footprint.distance(x, z)
        if not rect.contains(x, z) or not 0.45 <= gap <= 0.85:
            continue
        off_front = abs(wrap_degrees(yaw_of(x - item.x, z - item.z) - yaw_of(*item.facing)))
        front = off_front <= _FRONT_DEG and not item.landmark and FURNISHINGS[item.noun].place == "wall"
        yield Goal(item.room, x, z, item, "in front of" if front and rng.random() < 0.6 else "next to")
        return


def _stand(pathfinder: PathFinder, goal: Goal, floor_m: float) -> Point | None:
    place = (goal.x, floor_m, goal.z)
    point = _snap(pathfinder, place, 0.1 if goal.door else _GOAL_CLEARANCE_M)
    if point is None or math.hypot(point[0] - goal.x, point[2] - goal.z) > 0.3:
        return None
    return point


def _snap(pathfinder: PathFinder, place: Point, clearance: float) -> Point | None:
    """The navmesh point at a place on the floor, unless an obstacle is close."""
    point = pathfinder.snap_point(place)
    if not np.isfinite(point).all() or abs(float(point[1]) - place[1]) > 0.15:
        return None
    if pathfinder.distance_to_closest_obstacle(point, 1.0) < clearance:
        return None
    return float(point[0]), float(point[1]), float(point[2])


def _make(
    house: House,
    pathfinder: PathFinder,
    start: Start,
    goal: Place,
    heading: StartHeading,
    keep: Callable[[Route], bool],
) -> Trajectory | None:
    (position, yaw), (where, end) = start, goal
    path = pathfinder.find_path(position, end)
    if not SHORTEST_M <= path.geodesic_distance <= LONGEST_M:
        return None
    corners = [(float(x), float(y), float(z)) for x, y, z in path.points]
    if heading != "random":
        ahead = yaw_of(corners[1][0] - corners[0][0], corners[1][2] - corners[0][2])
        yaw = 30.0 * (round((ahead + (180.0 if heading == "away" else 0.0)) / 30.0) % 12)
    route = trace(house, corners, yaw, where)
    if route is None or not 2 <= len(route.legs) <= _MOST_DOORS + 1 or not keep(route):
        return None
    if where.door is not None and route.legs[-2].way != where.door:
        return None
    reference = reference_path(pathfinder, corners, route.crossings)
    walk = follow(pathfinder, position, yaw, end)
    if walk is None or pathfinder.geodesic_distance(walk.locations[-1], end) > GOAL_TOLERANCE_M:
        return None
    if math.dist(walk.locations[-1], end) > GOAL_TOLERANCE_M or not _keeps_to(corners, walk.locations):
        return None
    return Trajectory(position, yaw, end, path.geodesic_distance, reference, walk, route)


def _keeps_to(corners: Sequence[Point], locations: Sequence[Point]) -> bool:
    """Whether a walk follows the path that is described.

    The walker asks for the shortest path anew at every step: between two ways of nearly equal length it may take
    the other one.
    """
    path = resample([(x, z) for x, _, z in corners])
    walked = np.array([(x, z) for x, _, z in locations])
    gaps = np.hypot(*np.moveaxis(walked[:, None] - path[None], 2, 0)).min(axis=1)
    return bool(gaps.max() <= MAX_DETOUR_M)


def reference_path(
    pathfinder: PathFinder, corners: Sequence[Point], crossings: Sequence[tuple[float, float]]
) -> tuple[Point, ...]:
    """Four to seven points along a path: start, doorways, the sharpest corners, goal, long gaps halved."""
    arc = [0.0]
    for a, b in pairwise(corners):
        arc.append(arc[-1] + math.dist(a, b))
    marks = {0.0: corners[0], arc[-1]: corners[-1]}
    doors = sorted(_project(corners, arc, crossing) for crossing in crossings)
    for where in doors:
        if _free(marks, where, 0.4):
            marks[where] = _at(corners, arc, where)
    bends = sorted(range(1, len(corners) - 1), key=lambda i: (-_bend(corners, i), i))
    for i in bends:
        if len(marks) < 7 and _bend(corners, i) > 15.0 and _free(marks, arc[i], 0.8):
            marks[arc[i]] = corners[i]
    while len(marks) < 7:
        low, high = max(pairwise(sorted(marks)), key=lambda pair: pair[1] - pair[0])
        if len(marks) >= 4 and high - low < _NODE_SPACING_M:
            break
        marks[(low + high) / 2] = _at(corners, arc, (low + high) / 2)
    inner = [pathfinder.snap_point(marks[where]) for where in sorted(marks)[1:-1]]
    snapped = [(float(p[0]), float(p[1]), float(p[2])) for p in inner]
    return corners[0], *snapped, corners[-1]


def _free(marks: dict[float, Point], where: float, apart: float) -> bool:
    return all(abs(where - other) >= apart for other in marks)


def _bend(corners: Sequence[Point], i: int) -> float:
    before = yaw_of(corners[i][0] - corners[i - 1][0], corners[i][2] - corners[i - 1][2])
    after = yaw_of(corners[i + 1][0] - corners[i][0], corners[i + 1][2] - corners[i][2])
    return abs(wrap_degrees(after - before))


def _project(corners: Sequence[Point], arc: Sequence[float], crossing: tuple[float, float]) -> float:
    """Arc length of the path point nearest to a crossing."""
    best = (math.inf, 0.0)
    for i in range(len(corners) - 1):
        ax, az = corners[i][0], corners[i][2]
        dx, dz = corners[i + 1][0] - ax, corners[i + 1][2] - az
        square = dx * dx + dz * dz
        t = 0.0 if square == 0 else ((crossing[0] - ax) * dx + (crossing[1] - az) * dz) / square
        t = min(1.0, max(0.0, t))
        gap = math.hypot(ax + t * dx - crossing[0], az + t * dz - crossing[1])
        best = min(best, (gap, arc[i] + t * (arc[i + 1] - arc[i])))
    return best[1]


def _at(corners: Sequence[Point], arc: Sequence[float], where: float) -> Point:
    x, y, z = (float(np.interp(where, arc, [corner[axis] for corner in corners])) for axis in range(3))
    return x, y, z
