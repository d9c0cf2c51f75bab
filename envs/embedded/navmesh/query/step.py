"""Moving on the navmesh: a step that slides along walls, or stops at the first one.

Follows the algorithms of Detour (Mikko Mononen, zlib license) with the rules of habitat-sim's PathFinder.
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
    ONE,
    TWO,
    ZERO,
    crossing,
    distance,
    inside,
    segment_distance_sqr,
)
from envs.embedded.navmesh.query.nearest import ANY_ISLAND, height_on, nearest
from envs.embedded.navmesh.query.path import collect
from envs.embedded.navmesh.query.surface import (
    CORNER_COUNT,
    F32,
    ISLAND,
    PARENT,
    STAMP,
    STATE,
    WALKABLE,
    Table,
    as_index,
    corners,
    edges,
    info,
    new_stamp,
    path,
    search,
)

Float32s = NDArray[np.float32]

_WAITING_MAX = 48  # Detour's stack in moveAlongSurface
_TOUCHED_MAX = 64  # and its small pool of nodes; a route of so many always fits into `path`
_MARGIN: Any = np.float32(0.001)  # meters, Detour's
_NUDGE: Any = np.float32(1e-4)
_SEEN = 1


@kernel
def slide(table: Table, first: int, sx: F32, sy: F32, sz: F32, end: Float32s) -> tuple[int, F32, F32, F32]:
    """Move from s in polygon `first` towards `end` as far as walls allow: (polygons in `path`, point reached).

    At most 64 polygons are looked at and 48 wait their turn, so very long moves stop early.
    """
    row, edge, node, corner, waiting = info(table), edges(table), search(table), corners(table), path(table)
    ex, ey, ez = end[0], end[1], end[2]
    mid_x = sx + (ex - sx) * HALF
    mid_z = sz + (ez - sz) * HALF
    radius = distance(sx, sy, sz, ex, ey, ez) / TWO + _MARGIN
    radius = radius * radius
    best = LARGEST
    best_poly = -1
    bx, by, bz = sx, sy, sz
    stamp = new_stamp(table)
    node[first, STAMP], node[first, STATE], node[first, PARENT] = stamp, _SEEN, -1
    waiting[0] = first
    head, tail, touched = 0, 1, 1
    while head < tail:
        poly = waiting[head]
        head += 1
        shape = corner[poly]
        count = row[poly, CORNER_COUNT]
        if inside(shape, count, ex, ez):
            best_poly = poly
            bx, by, bz = ex, ey, ez
            break
        j = count - 1
        for i in range(count):
            p, q = shape[j], shape[i]
            other = edge[poly, j]
            j = i
            if other < 0 or row[other, WALKABLE] == 0:
                d, t = segment_distance_sqr(ex, ez, p[0], p[2], q[0], q[2])
                if d < best:
                    best = d
                    best_poly = poly
                    bx, by, bz = p[0] + (q[0] - p[0]) * t, p[1] + (q[1] - p[1]) * t, p[2] + (q[2] - p[2]) * t
                continue
            if node[other, STAMP] != stamp:
                if touched == _TOUCHED_MAX:
                    continue
                touched += 1
                node[other, STAMP], node[other, STATE] = stamp, 0
            if node[other, STATE] == _SEEN:
                continue
            d, _ = segment_distance_sqr(mid_x, mid_z, p[0], p[2], q[0], q[2])
            if d > radius or tail - head >= _WAITING_MAX:
                continue
            node[other, STATE], node[other, PARENT] = _SEEN, poly
            waiting[tail] = other
            tail += 1
    if best_poly < 0:
        return 0, bx, by, bz
    return collect(table, best_poly), bx, by, bz


@kernel
def _first_wall(table: Table, length: int, sx: F32, sz: F32, end: Float32s) -> tuple[bool, F32, F32, F32]:
    """Where the line from s to `end` meets a wall of the polygons in `path`: the crossing nearest to `end`."""
    edge, corner, row, route = edges(table), corners(table), info(table), path(table)
    best = LARGEST
    hit = False
    hx = hy = hz = ZERO
    for k in range(length):
        poly = route[k]
        count = row[poly, CORNER_COUNT]
        for j in range(count):
            if edge[poly, j] >= 0:
                continue
            p, q = corner[poly, j], corner[poly, (j + 1) % count]
            crosses, s, t = crossing(p, q, sx, sz, end[0], end[2])
            if not crosses or not (t >= ZERO and t <= ONE and s >= ZERO and s <= ONE):
                continue
            x, z = p[0] + (q[0] - p[0]) * s, p[2] + (q[2] - p[2]) * s
            dx, dz = end[0] - x, end[2] - z
            if dx * dx + dz * dz < best:
                best = dx * dx + dz * dz
                hit = True
                hx, hy, hz = x, p[1] + (q[1] - p[1]) * s, z
    return hit, hx, hy, hz


@kernel
def _nudge(table: Table, poly: int, x: F32, y: F32, z: F32) -> tuple[F32, F32, F32]:
    """A tenth of a millimeter towards the middle of a polygon."""
    corner = corners(table)[poly]
    count = info(table)[poly, CORNER_COUNT]
    mx = my = mz = ZERO
    for j in range(count):
        mx += corner[j, 0]
        my += corner[j, 1]
        mz += corner[j, 2]
    share = np.float32(count)
    dx, dy, dz = mx / share - x, my / share - y, mz / share - z
    length = math.sqrt(dx * dx + dy * dy + dz * dz)
    return x + _NUDGE * (dx / length), y + _NUDGE * (dy / length), z + _NUDGE * (dz / length)


@kernel
def step(table: Table, start: Float32s, end: Float32s, sliding: bool) -> tuple[F32, F32, F32]:
    """Where a body that wants to go from `start` to `end` ends up; `start` itself if either is off the navmesh."""
    stay = (start[0], start[1], start[2])
    first, sx, sy, sz = nearest(table, start[0], start[1], start[2], ANY_ISLAND)
    if first < 0:
        return stay
    last, _, _, _ = nearest(table, end[0], end[1], end[2], ANY_ISLAND)
    row = info(table)
    if last < 0 or row[first, ISLAND] != row[last, ISLAND]:
        return stay
    length, x, y, z = slide(table, first, sx, sy, sz, end)
    if length == 0:
        return stay
    if not sliding:
        hit, hx, hy, hz = _first_wall(table, length, sx, sz, end)
        if hit:
            x, y, z = hx, hy, hz
    poly = as_index(path(table)[length - 1])
    over, height = height_on(table, poly, x, z)
    if over:
        y = height
    # Where two islands share an edge the end point can project onto the wrong one.
    landed, _, _, _ = nearest(table, x, y, z, ANY_ISLAND)
    if landed < 0 or row[landed, ISLAND] != row[first, ISLAND]:
        x, y, z = _nudge(table, poly, x, y, z)
    return x, y, z
