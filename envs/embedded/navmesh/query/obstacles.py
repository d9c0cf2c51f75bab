"""Distance to the nearest wall of the navmesh.

Follows the algorithm of Detour (Mikko Mononen, zlib license).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.query.geometry import ONE, ZERO, distance, segment_distance_sqr
from envs.embedded.navmesh.query.nearest import ANY_ISLAND, nearest
from envs.embedded.navmesh.query.path import CLOSED, OPEN, enter, pop, put
from envs.embedded.navmesh.query.surface import (
    CORNER_COUNT,
    F32,
    MAX_NODES,
    PARENT,
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
    places,
    search,
)

Float32s = NDArray[np.float32]


@kernel
def _nearest_wall(table: Table, poly: int, x: F32, z: F32, radius: F32, hit: Float32s) -> F32:
    """Squared distance to the nearest wall of one polygon within the squared `radius`, its point in `hit`."""
    row, edge, corner = info(table), edges(table), corners(table)
    count = row[poly, CORNER_COUNT]
    j = count - 1
    for i in range(count):
        p, q = corner[poly, j], corner[poly, i]
        other = edge[poly, j]
        j = i
        if other >= 0 and row[other, WALKABLE] != 0:
            continue
        d, t = segment_distance_sqr(x, z, p[0], p[2], q[0], q[2])
        if d > radius:
            continue
        radius = d
        for axis in range(3):
            hit[axis] = p[axis] + (q[axis] - p[axis]) * t
    return radius


@kernel
def closest_wall(table: Table, point: Float32s, max_radius: F32, hit: Float32s) -> F32:
    """Distance to the nearest wall: `hit` receives its point and the normal towards the projected point.

    `max_radius` when nothing is that close (`hit` then starts with zeros), inf when the point is off the navmesh.
    """
    for k in range(6):
        hit[k] = ZERO
    first, x, y, z = nearest(table, point[0], point[1], point[2], ANY_ISLAND)
    if first < 0:
        return np.float32(np.inf)
    row, edge, corner, node = info(table), edges(table), corners(table), search(table)
    cost, place, queue = costs(table), places(table), heap(table)
    radius = max_radius * max_radius
    stamp = new_stamp(table)
    node[first, STAMP], node[first, STATE], node[first, PARENT] = stamp, OPEN, -1
    cost[first, TOTAL] = ZERO
    place[first, 0], place[first, 1], place[first, 2] = x, y, z
    queue[0] = first
    size = 1
    touched = 1
    while size > 0:
        poly = pop(queue, cost, size)
        size -= 1
        node[poly, STATE] = CLOSED
        radius = _nearest_wall(table, poly, x, z, radius, hit)
        count = row[poly, CORNER_COUNT]
        for j in range(count):
            other = as_index(edge[poly, j])
            if other < 0 or other == node[poly, PARENT]:
                continue
            p, q = corner[poly, j], corner[poly, (j + 1) % count]
            d, _ = segment_distance_sqr(x, z, p[0], p[2], q[0], q[2])
            if d > radius or row[other, WALKABLE] == 0:
                continue
            if node[other, STAMP] != stamp:
                if touched == MAX_NODES:
                    continue
                touched += 1
                node[other, STAMP], node[other, STATE] = stamp, 0
            if node[other, STATE] == CLOSED:
                continue
            if node[other, STATE] == 0:
                enter(table, poly, other)
            total = cost[poly, TOTAL] + distance(
                place[poly, 0], place[poly, 1], place[poly, 2], place[other, 0], place[other, 1], place[other, 2]
            )
            if node[other, STATE] == OPEN and total >= cost[other, TOTAL]:
                continue
            node[other, PARENT] = poly
            cost[other, TOTAL] = total
            size = put(queue, cost, size, other, node[other, STATE] == OPEN)
            node[other, STATE] = OPEN
    dx, dy, dz = x - hit[0], y - hit[1], z - hit[2]
    scale = ONE / math.sqrt(dx * dx + dy * dy + dz * dz)
    hit[3], hit[4], hit[5] = dx * scale, dy * scale, dz * scale
    return math.sqrt(radius)
