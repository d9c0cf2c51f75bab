"""Projection onto the navmesh: nearest polygon, nearest point, height.

Follows the algorithm of Detour (Mikko Mononen, zlib license) with the search box of habitat-sim.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.query.geometry import LARGEST, ONE, ZERO, inside, segment_distance_sqr, triangle_height
from envs.embedded.navmesh.query.surface import (
    CLIMB,
    CORNER_COUNT,
    F32,
    ISLAND,
    NODE_POLY,
    ORIGIN_X,
    ORIGIN_Z,
    QUANT,
    RIM,
    SEGMENT_BEGIN,
    SEGMENT_END,
    TILE_DEPTH,
    TILE_WIDTH,
    TILE_X,
    TILE_Y,
    TRIANGLE_BEGIN,
    TRIANGLE_END,
    WALKABLE,
    Table,
    as_index,
    boxes,
    corners,
    frame,
    info,
    segments,
    tree,
    triangles,
)

ANY_ISLAND: Any = np.int64(-1)
"""Typed, because numba compiles a function once more for a literal argument."""
_REACH: Any = np.float32(2.0)
_REACH_Y: Any = np.float32(4.0)
_SHRINK: Any = np.float32(0.999)


@kernel
def _nearest_on_segments(table: Table, poly: int, x: F32, z: F32, rim_only: bool) -> tuple[F32, F32, F32]:
    """Point of the polygon's height edges that is nearest in plan."""
    row = info(table)[poly]
    line = segments(table)
    best = LARGEST
    best_t = ZERO
    at = row[SEGMENT_BEGIN]
    for k in range(row[SEGMENT_BEGIN], row[SEGMENT_END]):
        if rim_only and line[k, RIM] == ZERO:
            continue
        d, t = segment_distance_sqr(x, z, line[k, 0], line[k, 2], line[k, 3], line[k, 5])
        if d < best:
            best = d
            best_t = t
            at = k
    s = line[at]
    return s[0] + (s[3] - s[0]) * best_t, s[1] + (s[4] - s[1]) * best_t, s[2] + (s[5] - s[2]) * best_t


@kernel
def height_on(table: Table, poly: int, x: F32, z: F32) -> tuple[bool, F32]:
    """Whether a plane point lies over a polygon, and the height of the surface there."""
    row = info(table)[poly]
    if not inside(corners(table)[poly], row[CORNER_COUNT], x, z):
        return False, ZERO
    triangle = triangles(table)
    for k in range(row[TRIANGLE_BEGIN], row[TRIANGLE_END]):
        found, height = triangle_height(x, z, triangle[k])
        if found:
            return True, height
    _, height, _ = _nearest_on_segments(table, poly, x, z, False)
    return True, height


@kernel
def _span(low: F32, high: F32, center: F32, reach: F32, quant: F32) -> tuple[int, int]:
    """Query range along one axis on the grid of the bounding-volume tree.

    As Detour makes it: the low end rounded down to an even number, the high end up to an odd one.
    """
    near = center - reach
    far = center + reach
    near = low if near < low else (high if near > high else near)
    far = low if far < low else (high if far > high else far)
    return int(quant * (near - low)) & 0xFFFE, (int(quant * (far - low) + ONE) & 0xFFFF) | 1


@kernel
def _touches_tile(table: Table, x: F32, z: F32) -> bool:
    """Whether the search box reaches the grid cell of the tile."""
    f = frame(table)
    low_x = np.floor((x - _REACH - f[ORIGIN_X]) / f[TILE_WIDTH])
    high_x = np.floor((x + _REACH - f[ORIGIN_X]) / f[TILE_WIDTH])
    low_z = np.floor((z - _REACH - f[ORIGIN_Z]) / f[TILE_DEPTH])
    high_z = np.floor((z + _REACH - f[ORIGIN_Z]) / f[TILE_DEPTH])
    return bool(low_x <= f[TILE_X] <= high_x and low_z <= f[TILE_Y] <= high_z)


@kernel
def nearest(table: Table, x: F32, y: F32, z: F32, island: int) -> tuple[int, F32, F32, F32]:
    """Nearest walkable polygon within 2 m (plan) and 4 m (height), and its nearest point.

    Polygons of other islands are left out unless `island` is -1. The polygon is -1 if there is none.
    """
    best_poly = -1
    best_x = best_y = best_z = ZERO
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)) or not _touches_tile(table, x, z):
        return best_poly, best_x, best_y, best_z
    f = frame(table)
    low_x, high_x = _span(f[0], f[3], x, _REACH, f[QUANT])
    low_y, high_y = _span(f[1], f[4], y, _REACH_Y, f[QUANT])
    low_z, high_z = _span(f[2], f[5], z, _REACH, f[QUANT])
    node = tree(table)
    row = info(table)
    box = boxes(table)
    best = LARGEST
    k = 0
    while k < len(node) and best > ZERO:
        overlap = (
            low_x <= node[k, 3]
            and high_x >= node[k, 0]
            and low_y <= node[k, 4]
            and high_y >= node[k, 1]
            and low_z <= node[k, 5]
            and high_z >= node[k, 2]
        )
        poly = as_index(node[k, NODE_POLY])
        if poly < 0:  # an inner node: minus the number of nodes to its end, itself included
            k += 1 if overlap else -poly
            continue
        k += 1
        if not overlap or row[poly, WALKABLE] == 0 or (island >= 0 and row[poly, ISLAND] != island):
            continue
        gap_x = max(box[poly, 0] - x, x - box[poly, 1], ZERO)
        gap_z = max(box[poly, 2] - z, z - box[poly, 3], ZERO)
        # No point of this polygon can be nearer than its box; the factor covers rounding.
        if (gap_x * gap_x + gap_z * gap_z) * _SHRINK > best:
            continue
        over, height = height_on(table, poly, x, z)
        if over:
            px, py, pz = x, height, z
            rise = abs(y - height) - f[CLIMB]
            d = rise * rise if rise > ZERO else ZERO
        else:
            px, py, pz = _nearest_on_segments(table, poly, x, z, True)
            dx, dy, dz = x - px, y - py, z - pz
            d = dx * dx + dy * dy + dz * dz
        if d < best:
            best = d
            best_poly = poly
            best_x, best_y, best_z = px, py, pz
    return best_poly, best_x, best_y, best_z
