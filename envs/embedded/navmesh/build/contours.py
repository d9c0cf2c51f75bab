"""Outlines of regions, simplified.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license). Points are rows (x, height, z) in cells. A
fourth column holds what lies beyond the edge (raw points), or the index of the raw point (simplified ones).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.build.compact import Surface
from envs.embedded.navmesh.build.filters import step_x, step_z
from envs.embedded.navmesh.build.kinds import Int, Real
from envs.embedded.navmesh.build.region_merge import MAX_CONTOUR_STEPS

_REGION = 0xFFFF
_AREA_EDGE = 1 << 17
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class Contours(NamedTuple):
    """Closed outlines. points: (n, 3) in cells. start: (c + 1,). region: (c,)."""

    points: NDArray[np.int64]
    start: NDArray[np.int32]
    region: NDArray[np.int32]


@kernel
def _border_flags(surface: Surface, region: NDArray[Any]) -> NDArray[np.uint8]:
    """Per floor, a bit for each direction in which its region ends."""
    flags = np.zeros(len(region), np.uint8)
    for i in range(len(region)):
        if region[i] == 0:
            continue
        bits = 0
        for direction in range(4):
            a = surface.neighbor[i, direction]
            if a == -1 or region[a] != region[i]:
                bits |= 1 << direction
        flags[i] = bits
    return flags


@inner_kernel
def _corner_height(surface: Surface, i: Int, direction: Int) -> Int:
    """Largest height of the floors that meet at the corner between `direction` and the next one."""
    turned = (direction + 1) & 3
    height = surface.height[i]
    a = surface.neighbor[i, direction]
    if a != -1:
        height = max(height, surface.height[a])
        b = surface.neighbor[a, turned]
        if b != -1:
            height = max(height, surface.height[b])
    a = surface.neighbor[i, turned]
    if a != -1:
        height = max(height, surface.height[a])
        b = surface.neighbor[a, direction]
        if b != -1:
            height = max(height, surface.height[b])
    return height


@inner_kernel
def _trace(
    surface: Surface, region: NDArray[Any], flags: NDArray[Any], i: Int, x: Int, z: Int, points: NDArray[Any]
) -> Int:
    """Walk round the region from floor `i`, clearing the edges passed; the number of raw points."""
    direction = 0
    while flags[i] & (1 << direction) == 0:
        direction += 1
    start, start_direction = i, direction
    count = 0
    for _ in range(MAX_CONTOUR_STEPS - 1):
        a = surface.neighbor[i, direction]
        if flags[i] & (1 << direction):
            points[count, 0] = x + (direction == 1 or direction == 2)
            points[count, 1] = _corner_height(surface, i, direction)
            points[count, 2] = z + (direction == 0 or direction == 1)
            beyond: Int = 0
            if a != -1:
                beyond = np.int64(region[a]) | (0 if surface.area[a] == surface.area[i] else _AREA_EDGE)
            points[count, 3] = beyond
            count += 1
            flags[i] &= ~(1 << direction) & 15
            direction = (direction + 1) & 3
        else:
            if a == -1:
                return count
            x += step_x(direction)
            z += step_z(direction)
            i = a
            direction = (direction + 3) & 3
        if i == start and direction == start_direction:
            break
    return count


@inner_kernel
def segment_distance(x: Int, z: Int, ax: Int, az: Int, bx: Int, bz: Int) -> Real:
    """Squared distance of a grid point from the segment ab, in cells, single precision."""
    px = np.float32(bx - ax)
    pz = np.float32(bz - az)
    dx = np.float32(x - ax)
    dz = np.float32(z - az)
    length = px * px + pz * pz
    t = px * dx + pz * dz
    if length > _ZERO:
        t /= length
    t = min(max(t, _ZERO), _ONE)
    dx = np.float32(ax) + t * px - np.float32(x)
    dz = np.float32(az) + t * pz - np.float32(z)
    return dx * dx + dz * dz


@inner_kernel
def _insert(kept: NDArray[Any], count: Int, position: Int, points: NDArray[Any], i: Int) -> None:
    """Make room in `kept` and put raw point `i` there, its index as the label."""
    for j in range(count, position, -1):
        for c in range(4):
            kept[j, c] = kept[j - 1, c]
    for c in range(3):
        kept[position, c] = points[i, c]
    kept[position, 3] = i


@inner_kernel
def _seed_points(points: NDArray[Any], count: Int, kept: NDArray[Any]) -> Int:
    """Points that stay: where what lies beyond changes, or else the two extreme corners; how many."""
    n = np.int64(0)
    portals = False
    for i in range(count):
        portals |= (points[i, 3] & _REGION) != 0
    for i in range(count):
        if portals and points[i, 3] != points[(i + 1) % count, 3]:
            _insert(kept, n, n, points, i)
            n += 1
    if n > 0:
        return n
    low: Int = np.int64(0)
    high: Int = np.int64(0)
    for i in range(count):
        x, z = points[i, 0], points[i, 2]
        if x < points[low, 0] or (x == points[low, 0] and z < points[low, 2]):
            low = i
        if x > points[high, 0] or (x == points[high, 0] and z > points[high, 2]):
            high = i
    _insert(kept, n, n, points, low)
    _insert(kept, n + 1, n + 1, points, high)
    return n + 2


@inner_kernel
def _farthest(points: NDArray[Any], count: Int, kept: NDArray[Any], i: Int, j: Int) -> tuple[Int, Real]:
    """Raw point of a wall farthest from the simplified edge i -> j, and its squared distance; -1 for none."""
    ax, az, first = kept[i, 0], kept[i, 2], kept[i, 3]
    bx, bz, end = kept[j, 0], kept[j, 2], kept[j, 3]
    step = 1
    if not (bx > ax or (bx == ax and bz > az)):
        step = count - 1
        ax, az, bx, bz = bx, bz, ax, az
        first, end = end, first
    k = (first + step) % count
    best = -1
    largest = _ZERO
    if points[k, 3] & _REGION:
        return best, largest
    while k != end:
        d = segment_distance(points[k, 0], points[k, 2], ax, az, bx, bz)
        if d > largest:
            largest = d
            best = k
        k = (k + step) % count
    return best, largest


@inner_kernel
def _split_long(points: NDArray[Any], count: Int, kept: NDArray[Any], i: Int, j: Int, max_edge: Int) -> Int:
    """Raw point that halves the wall edge i -> j where that is longer than `max_edge` cells, or -1."""
    first, end = kept[i, 3], kept[j, 3]
    if points[(first + 1) % count, 3] & _REGION:
        return -1
    dx = kept[j, 0] - kept[i, 0]
    dz = kept[j, 2] - kept[i, 2]
    if dx * dx + dz * dz <= max_edge * max_edge:
        return -1
    n = end + count - first if end < first else end - first
    if n <= 1:
        return -1
    forward = dx > 0 or (dx == 0 and dz > 0)
    return (first + (n if forward else n + 1) // 2) % count


@inner_kernel
def _simplify(points: NDArray[Any], count: Int, max_error: Real, max_edge: Int, kept: NDArray[Any]) -> Int:
    """Simplified outline of `count` raw points into `kept`; its number of points."""
    n = _seed_points(points, count, kept)
    i = np.int64(0)
    while i < n:
        best, distance = _farthest(points, count, kept, i, (i + 1) % n)
        if best != -1 and distance > max_error * max_error:
            _insert(kept, n, i + 1, points, best)
            n += 1
        else:
            i += 1
    i = np.int64(0)
    while max_edge > 0 and i < n:
        best = _split_long(points, count, kept, i, (i + 1) % n, max_edge)
        if best != -1:
            _insert(kept, n, i + 1, points, best)
            n += 1
        else:
            i += 1
    return _drop_degenerate(kept, n)


@inner_kernel
def _drop_degenerate(kept: NDArray[Any], n: Int) -> Int:
    """Remove points that coincide with the next one in the plane; the number left."""
    i = 0
    while i < n:
        j = i + 1 if i + 1 < n else 0
        if kept[i, 0] == kept[j, 0] and kept[i, 2] == kept[j, 2]:
            for k in range(i, n - 1):
                for c in range(4):
                    kept[k, c] = kept[k + 1, c]
            n -= 1
        i += 1
    return n


@inner_kernel
def _count_outlines(flags: NDArray[Any]) -> Int:
    """An upper limit of the number of outlines: each has an edge in direction 0."""
    count = 0
    for i in range(len(flags)):
        count += flags[i] & 1
    return count


@kernel
def trace_contours(surface: Surface, region: NDArray[Any], width: Int, max_error: Real, max_edge: Int) -> Contours:
    """Simplified outlines of all regions, holes included as separate outlines of opposite winding."""
    flags = _border_flags(surface, region)
    limit = _count_outlines(flags)
    raw = np.empty((MAX_CONTOUR_STEPS, 4), np.int64)
    kept = np.empty((MAX_CONTOUR_STEPS + 2, 4), np.int64)
    points = np.empty((4096, 3), np.int64)
    start = np.zeros(limit + 1, np.int32)
    owner = np.empty(limit, np.int32)
    total = 0
    used = 0
    for column in range(len(surface.start) - 1):
        for i in range(surface.start[column], surface.start[column + 1]):
            if flags[i] == 0 or flags[i] == 15:
                flags[i] = 0
                continue
            count = _trace(surface, region, flags, i, column % width, column // width, raw)
            n = _simplify(raw, count, max_error, max_edge, kept)
            if n < 3:
                continue
            if used + n > len(points):
                larger = np.empty((2 * (used + n), 3), np.int64)
                for k in range(used):
                    for c in range(3):
                        larger[k, c] = points[k, c]
                points = larger
            for k in range(n):
                for c in range(3):
                    points[used, c] = kept[k, c]
                used += 1
            owner[total] = region[i]
            total += 1
            start[total] = used
    return Contours(points[:used].copy(), start[: total + 1].copy(), owner[:total].copy())
