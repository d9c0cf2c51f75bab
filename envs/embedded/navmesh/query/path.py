"""Shortest paths: A* over polygons and the funnel through their portals.

Follows the algorithms of Detour (Mikko Mononen, zlib license) with the limits of habitat-sim's PathFinder.
A* runs over edge midpoints, so paths are not always the shortest possible.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.query.geometry import (
    HALF,
    LARGEST,
    ZERO,
    area2,
    distance,
    inside,
    nearly_equal,
    put_point,
    same_point,
    segment_distance_sqr,
)
from envs.embedded.navmesh.query.nearest import ANY_ISLAND, nearest
from envs.embedded.navmesh.query.surface import (
    APEX,
    CORNER_COUNT,
    COST,
    F32,
    GOAL,
    ISLAND,
    LEFT,
    MAX_NODES,
    MAX_PATH,
    NEXT_LEFT,
    NEXT_RIGHT,
    PARENT,
    PROJECTED_END,
    PROJECTED_START,
    RIGHT,
    STAMP,
    STATE,
    TOTAL,
    WALKABLE,
    Table,
    as_index,
    corners,
    costs,
    edges,
    heap,
    info,
    new_stamp,
    path,
    places,
    points,
    scratch,
    search,
)

Float32s = NDArray[np.float32]

OPEN, CLOSED = 1, 2
_HEURISTIC: Any = np.float32(0.999)  # Detour's H_SCALE
_AT_PORTAL: Any = np.float32(0.001) * np.float32(0.001)  # so close to a portal (squared meters), it is passed


@kernel
def _rise(queue: NDArray[np.int32], cost: Float32s, at: int, poly: int) -> None:
    """Put `poly` at place `at` of the heap or above."""
    while at > 0 and cost[queue[(at - 1) // 2], TOTAL] > cost[poly, TOTAL]:
        queue[at] = queue[(at - 1) // 2]
        at = (at - 1) // 2
    queue[at] = poly


@kernel
def pop(queue: NDArray[np.int32], cost: Float32s, size: int) -> int:
    """Take the cheapest polygon from a heap of `size` entries."""
    first = as_index(queue[0])
    size -= 1
    last = as_index(queue[size])
    at = 0
    child = 1
    while child < size:
        if child + 1 < size and cost[queue[child], TOTAL] > cost[queue[child + 1], TOTAL]:
            child += 1
        queue[at] = queue[child]
        at = child
        child = 2 * at + 1
    _rise(queue, cost, at, last)
    return int(first)


@kernel
def put(queue: NDArray[np.int32], cost: Float32s, size: int, poly: int, queued: bool) -> int:
    """Insert a polygon, or move it up after its cost fell; the new heap size."""
    if not queued:
        _rise(queue, cost, size, poly)
        return size + 1
    for at in range(size):
        if queue[at] == poly:
            _rise(queue, cost, at, poly)
            break
    return size


@kernel
def portal(table: Table, poly: int, target: int) -> int:
    """First edge of `poly` that leads to `target`, -1 without one."""
    edge = edges(table)
    for j in range(info(table)[poly, CORNER_COUNT]):
        if edge[poly, j] == target:
            return j
    return -1


@kernel
def enter(table: Table, poly: int, neighbor: int) -> None:
    """Set the place where a search enters `neighbor` from `poly`: the middle of their edge."""
    j = portal(table, poly, neighbor)
    corner = corners(table)[poly]
    following = (j + 1) % info(table)[poly, CORNER_COUNT]
    place = places(table)
    for axis in range(3):
        place[neighbor, axis] = (corner[j, axis] + corner[following, axis]) * HALF


@kernel
def collect(table: Table, last: int) -> int:
    """Write the polygons that lead to `last` into `path`; their number, 0 if they are too many."""
    node = search(table)
    length = 0
    poly = last
    while poly >= 0:
        length += 1
        poly = node[poly, PARENT]
    if length > MAX_PATH:
        return 0
    route = path(table)
    poly = last
    for k in range(length - 1, -1, -1):
        route[k] = poly
        poly = node[poly, PARENT]
    return length


@kernel
def polygon_path(table: Table, first: int, last: int, a: Float32s, b: Float32s) -> int:
    """A* from point a in `first` to b in `last`: number of polygons in `path`, 0 without a complete path."""
    if first == last:
        path(table)[0] = first
        return 1
    row, edge, node, cost, place, queue = (
        info(table),
        edges(table),
        search(table),
        costs(table),
        places(table),
        heap(table),
    )
    bx, by, bz = b[0], b[1], b[2]
    stamp = new_stamp(table)
    node[first, STAMP], node[first, STATE], node[first, PARENT] = stamp, OPEN, -1
    put_point(place[first], a)
    cost[first, COST] = ZERO
    cost[first, TOTAL] = distance(a[0], a[1], a[2], bx, by, bz) * _HEURISTIC
    touched = 1
    queue[0] = first
    size = 1
    reached = False
    while size > 0:
        poly = pop(queue, cost, size)
        size -= 1
        node[poly, STATE] = CLOSED
        if poly == last:
            reached = True
            break
        parent = node[poly, PARENT]
        px, py, pz = place[poly, 0], place[poly, 1], place[poly, 2]
        for j in range(row[poly, CORNER_COUNT]):
            other = as_index(edge[poly, j])
            if other < 0 or other == parent or row[other, WALKABLE] == 0:
                continue
            if node[other, STAMP] != stamp:
                if touched == MAX_NODES:
                    return 0
                touched += 1
                node[other, STAMP], node[other, STATE] = stamp, 0
            if node[other, STATE] == 0:
                enter(table, poly, other)
            ox, oy, oz = place[other, 0], place[other, 1], place[other, 2]
            spent = cost[poly, COST] + distance(px, py, pz, ox, oy, oz)
            ahead = distance(ox, oy, oz, bx, by, bz)
            if other == last:
                spent = spent + ahead
                ahead = ZERO
            total = spent + ahead * _HEURISTIC
            if node[other, STATE] != 0 and total >= cost[other, TOTAL]:
                continue
            node[other, PARENT] = poly
            cost[other, COST], cost[other, TOTAL] = spent, total
            size = put(queue, cost, size, other, node[other, STATE] == OPEN)
            node[other, STATE] = OPEN
    return collect(table, last) if reached else 0


@kernel
def _clamp_to(table: Table, poly: int, p: Float32s, out: Float32s) -> None:
    """Nearest plan point of a polygon: p itself inside it, else on its border with the border's height."""
    corner = corners(table)[poly]
    count = info(table)[poly, CORNER_COUNT]
    x, z = p[0], p[2]
    if inside(corner, count, x, z):
        put_point(out, p)
        return
    best = LARGEST
    best_t = ZERO
    at = 0
    for j in range(count):
        q = corner[(j + 1) % count]
        d, t = segment_distance_sqr(x, z, corner[j, 0], corner[j, 2], q[0], q[2])
        if d < best:
            best, best_t, at = d, t, j
    q = corner[(at + 1) % count]
    for axis in range(3):
        out[axis] = corner[at, axis] + (q[axis] - corner[at, axis]) * best_t


@kernel
def _append(line: Float32s, size: int, p: Float32s) -> int:
    """Add a corner point unless it equals the last one; the new number of points."""
    if size > 0:
        q = line[size - 1]
        if same_point(q[0], q[1], q[2], p[0], p[1], p[2]):
            return size
    put_point(line[size], p)
    return size + 1


@kernel
def _side(apex: Float32s, arm: Float32s, p: Float32s) -> F32:
    return area2(apex[0], apex[2], arm[0], arm[2], p[0], p[2])


@kernel
def _same(p: Float32s, q: Float32s) -> bool:
    return same_point(p[0], p[1], p[2], q[0], q[1], q[2])


@kernel
def funnel(table: Table, length: int, start: Float32s, end: Float32s) -> int:
    """Pull the string through the polygons in `path`; number of corners in `points`, 0 if they are too many."""
    route, line, corner, row = path(table), points(table), corners(table), info(table)
    work = scratch(table)
    apex, left, right, goal = work[APEX], work[LEFT], work[RIGHT], work[GOAL]
    next_left, next_right = work[NEXT_LEFT], work[NEXT_RIGHT]
    _clamp_to(table, route[0], start, apex)
    _clamp_to(table, route[length - 1], end, goal)
    size = _append(line, 0, apex)
    put_point(left, apex)
    put_point(right, apex)
    left_at = right_at = 0
    left_ends = right_ends = False
    i = -1
    while length > 1 and i + 1 < length:
        i += 1
        ends = i + 1 == length
        if ends:
            put_point(next_left, goal)
            put_point(next_right, goal)
        else:
            poly = route[i]
            j = portal(table, poly, route[i + 1])
            put_point(next_left, corner[poly, j])
            put_point(next_right, corner[poly, (j + 1) % row[poly, CORNER_COUNT]])
            if i == 0:
                near, _ = segment_distance_sqr(
                    apex[0], apex[2], next_left[0], next_left[2], next_right[0], next_right[2]
                )
                if near < _AT_PORTAL:
                    continue
        turned = turn_ends = False
        if _side(apex, right, next_right) <= ZERO:
            if _same(apex, right) or _side(apex, left, next_right) > ZERO:
                put_point(right, next_right)
                right_at, right_ends = i, ends
            else:
                turned, turn_ends, i = True, left_ends, left_at
                put_point(apex, left)
        if not turned and _side(apex, left, next_left) >= ZERO:
            if _same(apex, left) or _side(apex, right, next_left) < ZERO:
                put_point(left, next_left)
                left_at, left_ends = i, ends
            else:
                turned, turn_ends, i = True, right_ends, right_at
                put_point(apex, right)
        if turned:
            before = size
            size = _append(line, size, apex)
            if size == MAX_PATH:
                return 0
            if turn_ends and size > before:
                return size
            put_point(left, apex)
            put_point(right, apex)
            left_at = right_at = i
    size = _append(line, size, goal)
    return size if size < MAX_PATH else 0


@kernel
def _length(line: Float32s, size: int) -> F32:
    total = ZERO
    for k in range(1, size):
        p, q = line[k - 1], line[k]
        total += distance(q[0], q[1], q[2], p[0], p[1], p[2])
    return total


@kernel
def _path_between(
    table: Table, first: int, a: Float32s, start: Float32s, last: int, b: Float32s, end: Float32s
) -> tuple[int, F32]:
    """Path from `start` (projected to a in `first`) to `end` (b in `last`): (points, length), 0 if none."""
    if nearly_equal(a[0], b[0]) and nearly_equal(a[1], b[1]) and nearly_equal(a[2], b[2]):
        line = points(table)
        put_point(line[0], a)
        put_point(line[1], b)
        return 2, ZERO
    row = info(table)
    if row[first, ISLAND] != row[last, ISLAND]:
        return 0, ZERO
    length = polygon_path(table, first, last, a, b)
    if length == 0:
        return 0, ZERO
    size = funnel(table, length, start, end)
    return size, _length(points(table), size)


@kernel
def shortest(table: Table, start: Float32s, goals: Float32s, line: Float32s) -> tuple[int, F32, int]:
    """Shortest path from `start` to the nearest of `goals`: (points in `line`, length, goal index).

    Goals are tried in the order of their straight distance and skipped once that exceeds the best path.
    (0, inf, -1) without a path.
    """
    best = np.float32(np.inf)
    best_goal = -1
    size = 0
    first, ax, ay, az = nearest(table, start[0], start[1], start[2], ANY_ISLAND)
    if first < 0:
        return size, best, best_goal
    a, b = scratch(table)[PROJECTED_START], scratch(table)[PROJECTED_END]
    a[0], a[1], a[2] = ax, ay, az
    count = len(goals)
    bounds = np.zeros(count, np.float32)
    if count > 1:
        for k in range(count):
            g = goals[k]
            straight = distance(start[0], start[1], start[2], g[0], g[1], g[2])
            bounds[k] = straight if math.isfinite(straight) else best
    for _ in range(count):
        k = 0
        for other in range(1, count):
            if bounds[other] < bounds[k]:
                k = other
        if bounds[k] > best:
            break
        bounds[k] = np.float32(np.inf)
        goal = goals[k]
        last, bx, by, bz = nearest(table, goal[0], goal[1], goal[2], ANY_ISLAND)
        if last < 0:
            continue
        b[0], b[1], b[2] = bx, by, bz
        found, length = _path_between(table, first, a, start, last, b, goal)
        if found > 0 and length < best:
            best, best_goal, size = length, k, found
            for row in range(found):
                put_point(line[row], points(table)[row])
    return size, best, best_goal
