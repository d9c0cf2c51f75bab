"""Triangles to a span heightfield, conservatively: every column a triangle touches gets a span.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib licence), in single precision and in its order of
operations, because rises that fall on a voxel boundary come out differently otherwise. A column is a linked list
of spans ordered by height; overlapping spans merge as they are added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.jit import kernel
from envs.embedded.navmesh.build.grid import MAX_SPAN_HEIGHT, Grid
from envs.embedded.navmesh.build.kinds import Int, Real
from envs.embedded.navmesh.polymesh import WALKABLE_AREA

LOW, HIGH, AREA, NEXT = 0, 1, 2, 3
"""Columns of the span table: bottom and top in cell heights, area code, next span of the column (0 none)."""

MAX_SPANS = 1 << 26
_USED, _FREE = 0, 1
_NONE = np.uint32(0)
_STEP = np.uint32(1)
_SLOT = 7 * 3
_ROW = 2 * _SLOT
_BIG = np.float32(3.4028234663852886e38)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


@kernel
def mark_walkable(corners: NDArray[Any], threshold: Real) -> NDArray[np.uint8]:
    """Area code of each triangle (T, 3, 3): walkable where the y of the unit normal exceeds `threshold`."""
    areas = np.zeros(len(corners), np.uint8)
    for t in range(len(corners)):
        ux = corners[t, 1, 0] - corners[t, 0, 0]
        uy = corners[t, 1, 1] - corners[t, 0, 1]
        uz = corners[t, 1, 2] - corners[t, 0, 2]
        vx = corners[t, 2, 0] - corners[t, 0, 0]
        vy = corners[t, 2, 1] - corners[t, 0, 1]
        vz = corners[t, 2, 2] - corners[t, 0, 2]
        nx = uy * vz - uz * vy
        ny = uz * vx - ux * vz
        nz = ux * vy - uy * vx
        scale = _ONE / np.sqrt(nx * nx + ny * ny + nz * nz)
        if ny * scale > threshold:
            areas[t] = WALKABLE_AREA
    return areas


@kernel
def _cut_row(buffer: NDArray[Any], source: Int, far: Int, count: Int, edge: Real) -> tuple[Int, Int]:
    """Cut a polygon (x, y, z) at z = `edge`; sizes of the parts before and beyond it.

    The part before the edge goes to slot `_ROW` as (x, y): its z is not needed any more.
    """
    near = _ROW
    n_near = 0
    n_far = 0
    b = source + 3 * (count - 1)
    side_b = edge - buffer[b + 2] if count > 0 else _ZERO
    for a in range(source, source + 3 * count, 3):
        side_a = edge - buffer[a + 2]
        crossing = (side_a >= _ZERO) != (side_b >= _ZERO)
        if crossing:
            s = side_b / (side_b - side_a)
            x = buffer[b] + (buffer[a] - buffer[b]) * s
            y = buffer[b + 1] + (buffer[a + 1] - buffer[b + 1]) * s
            buffer[near + 2 * n_near] = x
            buffer[near + 2 * n_near + 1] = y
            n_near += 1
            buffer[far + 3 * n_far] = x
            buffer[far + 3 * n_far + 1] = y
            buffer[far + 3 * n_far + 2] = buffer[b + 2] + (buffer[a + 2] - buffer[b + 2]) * s
            n_far += 1
        if side_a > _ZERO or (side_a == _ZERO and not crossing):
            buffer[near + 2 * n_near] = buffer[a]
            buffer[near + 2 * n_near + 1] = buffer[a + 1]
            n_near += 1
        if side_a < _ZERO or (side_a == _ZERO and not crossing):
            buffer[far + 3 * n_far] = buffer[a]
            buffer[far + 3 * n_far + 1] = buffer[a + 1]
            buffer[far + 3 * n_far + 2] = buffer[a + 2]
            n_far += 1
        b = a
        side_b = side_a
    return n_near, n_far


@kernel
def _cut_cell(buffer: NDArray[Any], source: Int, count: Int, far: Int, edge: Real) -> tuple[Int, Int, Real, Real]:
    """Cut a polygon (x, y) at x = `edge`: sizes of both parts and the y range of the part before the edge.

    Only the part beyond the edge is stored.
    """
    n_near = 0
    n_far = 0
    low = _BIG
    high = -_BIG
    x_b = buffer[source + 2 * count - 2]
    y_b = buffer[source + 2 * count - 1]
    side_b = edge - x_b
    for a in range(source, source + 2 * count, 2):
        x_a = buffer[a]
        y_a = buffer[a + 1]
        side_a = edge - x_a
        on_line = side_a == _ZERO
        if (side_a >= _ZERO) != (side_b >= _ZERO):
            s = side_b / (side_b - side_a)
            y = y_b + (y_a - y_b) * s
            low = min(low, y)
            high = max(high, y)
            n_near += 1
            buffer[far + 2 * n_far] = x_b + (x_a - x_b) * s
            buffer[far + 2 * n_far + 1] = y
            n_far += 1
            on_line = False
        is_near = on_line or side_a > _ZERO
        low = min(low, y_a if is_near else _BIG)
        high = max(high, y_a if is_near else -_BIG)
        n_near += is_near
        buffer[far + 2 * n_far] = x_a
        buffer[far + 2 * n_far + 1] = y_a
        n_far += on_line or side_a < _ZERO
        x_b = x_a
        y_b = y_a
        side_b = side_a
    return n_near, n_far, low, high


@kernel
def _y_range(buffer: NDArray[Any], source: Int, count: Int) -> tuple[Int, Real, Real]:
    """Size and y range of a polygon (x, y) that needs no cutting."""
    low = _BIG
    high = -_BIG
    for a in range(source + 1, source + 2 * count, 2):
        low = min(low, buffer[a])
        high = max(high, buffer[a])
    return count, low, high


@kernel
def _add_span(
    head: NDArray[Any],
    spans: NDArray[Any],
    pool: NDArray[Any],
    column: Int,
    low: Int,
    high: Int,
    area: Int,
    climb: Int,
) -> None:
    """Insert a span into a column, merging with what it touches. The pool must hold one more span."""
    previous: Int = _NONE
    current: Int = head[column]
    while current != _NONE and spans[current, HIGH] < low:
        previous = current
        current = spans[current, NEXT]
    if current != _NONE and spans[current, LOW] <= high:
        merged = current
        while current != _NONE and spans[current, LOW] <= high:
            low = min(low, spans[current, LOW])
            high = max(high, spans[current, HIGH])
            if high - spans[current, HIGH] <= climb:
                area = max(area, spans[current, AREA])
            following = spans[current, NEXT]
            if current != merged:
                spans[current, NEXT] = pool[_FREE]
                pool[_FREE] = current
            current = following
        spans[merged, LOW] = low
        spans[merged, HIGH] = high
        spans[merged, AREA] = area
        spans[merged, NEXT] = current
        return
    new = pool[_FREE]
    if new == _NONE:
        new = pool[_USED]
        pool[_USED] += _STEP
    else:
        pool[_FREE] = spans[new, NEXT]
    spans[new, LOW] = low
    spans[new, HIGH] = high
    spans[new, AREA] = area
    spans[new, NEXT] = current
    if previous == _NONE:
        head[column] = new
    else:
        spans[previous, NEXT] = new


@kernel
def _clip_row(buffer: NDArray[Any], count: Int, row: Int, grid: Grid, fragments: NDArray[Any]) -> Int:
    """Cut the part of a triangle within one row of cells into `fragments` (column, low, high); their number."""
    source, far = np.int64(_ROW), np.int64(_ROW + _SLOT)
    inverse = _ONE / grid.cell_size
    inverse_height = _ONE / grid.cell_height
    left = buffer[source]
    right = left
    for k in range(source, source + 2 * count, 2):
        left = min(left, buffer[k])
        right = max(right, buffer[k])
    first = int((left - grid.x_min) * inverse)
    last = int((right - grid.x_min) * inverse)
    if last < 0 or first >= grid.width:
        return 0
    first = max(first, -1)
    last = min(last, grid.width - 1)
    found = 0
    for x_cell in range(first, last + 1):
        if count == 0:
            break
        edge = grid.x_min + np.float32(x_cell) * grid.cell_size + grid.cell_size
        if x_cell == last and right <= edge:
            n_near, low, high = _y_range(buffer, source, count)
        else:
            n_near, count, low, high = _cut_cell(buffer, source, count, far, edge)
        source, far = far, source
        if n_near < 3 or x_cell < 0:
            continue
        low -= grid.y_min
        high -= grid.y_min
        if high < _ZERO or low > grid.y_extent:
            continue
        bottom = min(int(np.floor(max(low, _ZERO) * inverse_height)), MAX_SPAN_HEIGHT)
        top = int(np.ceil(min(high, grid.y_extent) * inverse_height))
        fragments[found, 0] = x_cell + row * grid.width
        fragments[found, 1] = bottom
        fragments[found, 2] = min(max(top, bottom + 1), MAX_SPAN_HEIGHT)
        found += 1
    return found


@kernel
def rasterize(
    corners: NDArray[Any], areas: NDArray[Any], grid: Grid
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], Int]:
    """All triangles to spans: first span of each column, the span table, and whether it fitted (1) or not (0).

    corners: (T, 3, 3) float32, triangle by triangle.
    """
    head = np.zeros(grid.width * grid.depth, np.uint32)
    spans = np.empty((max(1024, grid.width * grid.depth), 4), np.uint32)
    pool = np.array([1, 0], np.uint32)
    fragments = np.empty((grid.width + 1, 3), np.uint32)
    buffer = np.empty(4 * _SLOT, np.float32)
    inverse = _ONE / grid.cell_size
    for t in range(len(corners)):
        source, far = np.int64(0), np.int64(_SLOT)
        for k in range(3):
            for j in range(3):
                buffer[3 * k + j] = corners[t, k, j]
        z_low = min(min(buffer[2], buffer[5]), buffer[8])
        z_high = max(max(buffer[2], buffer[5]), buffer[8])
        first = min(int((z_low - grid.z_min) * inverse), grid.depth - 1)
        last = min(int((z_high - grid.z_min) * inverse), grid.depth - 1)
        count = np.int64(3)
        for z_cell in range(first, last + 1):
            edge = grid.z_min + np.float32(z_cell) * grid.cell_size + grid.cell_size
            n_row, count = _cut_row(buffer, source, far, count, edge)
            source, far = far, source
            if n_row < 3:
                continue
            found = _clip_row(buffer, n_row, z_cell, grid, fragments)
            if pool[_USED] + found > len(spans):
                if len(spans) >= MAX_SPANS:
                    return head, spans, 0
                larger = np.empty((2 * len(spans) + found, 4), np.uint32)
                larger[: pool[_USED]] = spans[: pool[_USED]]
                spans = larger
            for k in range(found):
                column, low, high = fragments[k, 0], fragments[k, 1], fragments[k, 2]
                _add_span(head, spans, pool, column, low, high, areas[t], grid.walkable_climb)
    return head, spans, 1
