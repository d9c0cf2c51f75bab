"""Triangles to a span heightfield, conservatively: every column a triangle touches gets a span.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license), in single precision and in its order of
operations, because rises that fall on a voxel boundary come out differently otherwise. A column is a linked list
of spans ordered by height; overlapping spans merge as they are added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.build.grid import MAX_SPAN_HEIGHT, Grid
from envs.embedded.navmesh.build.kinds import Int, Real
from envs.embedded.navmesh.tiles.polymesh import WALKABLE_AREA

LOW, HIGH, AREA, NEXT = 0, 1, 2, 3
"""Columns of the span table: bottom and top in cell heights, area code, next span of the column (0 none)."""

at: Any = np.uint64
"""Makes an index, never negative, unsigned: numba then leaves out its test for counting from the end."""
_USED, _FREE = 0, 1
_NONE = np.uint32(0)
_STEP = np.uint32(1)
_SLOT = 10 * 3
_ROW = 2 * _SLOT
_CUT = 3 * _SLOT
_STRIDE = 3
_MARGIN = 3
_BIG = np.float32(3.4028234663852886e38)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class Cells(NamedTuple):
    """Parts of one polygon within the cells of a row: their y range and number of corners.

    edge: x of the line beyond each cell. of_corner: scratch, the cell of each corner of the polygon.
    """

    edge: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    corners: NDArray[np.int32]
    of_corner: NDArray[np.int64]
    buffer: NDArray[np.float32]


class Heights(NamedTuple):
    """Spans while they are added: first of each column, span table, and its next unused and first freed row."""

    head: NDArray[np.uint32]
    spans: NDArray[np.uint32]
    pool: NDArray[np.uint32]


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


@inner_kernel
def _cut_row(buffer: NDArray[Any], source: Int, far: Int, count: Int, edge: Real) -> tuple[Int, Int]:
    """Cut a polygon (x, y, z) at z = `edge`; sizes of the parts before and beyond it.

    The part before the edge goes to slot `_ROW` without its z, which is not needed any more.
    """
    near = _ROW
    beyond = far
    b = source + _STRIDE * (count - 1)
    side_b = edge - buffer[at(b + 2)] if count > 0 else _ZERO
    for a in range(source, source + _STRIDE * count, _STRIDE):
        side_a = edge - buffer[at(a + 2)]
        crossing = (side_a >= _ZERO) != (side_b >= _ZERO)
        if crossing:
            s = side_b / (side_b - side_a)
            x = buffer[at(b)] + (buffer[at(a)] - buffer[at(b)]) * s
            y = buffer[at(b + 1)] + (buffer[at(a + 1)] - buffer[at(b + 1)]) * s
            buffer[at(near)] = x
            buffer[at(near + 1)] = y
            near += _STRIDE
            buffer[at(beyond)] = x
            buffer[at(beyond + 1)] = y
            buffer[at(beyond + 2)] = buffer[at(b + 2)] + (buffer[at(a + 2)] - buffer[at(b + 2)]) * s
            beyond += _STRIDE
        if side_a > _ZERO or (side_a == _ZERO and not crossing):
            buffer[at(near)] = buffer[at(a)]
            buffer[at(near + 1)] = buffer[at(a + 1)]
            near += _STRIDE
        if side_a < _ZERO or (side_a == _ZERO and not crossing):
            buffer[at(beyond)] = buffer[at(a)]
            buffer[at(beyond + 1)] = buffer[at(a + 1)]
            buffer[at(beyond + 2)] = buffer[at(a + 2)]
            beyond += _STRIDE
        b = a
        side_b = side_a
    return (near - _ROW) // _STRIDE, (beyond - far) // _STRIDE


@inner_kernel
def _note(low: NDArray[Any], high: NDArray[Any], corners: NDArray[Any], cell: Int, y: Real) -> None:
    """Count a corner of the part of a polygon within a cell."""
    low[at(cell)] = min(low[at(cell)], y)
    high[at(cell)] = max(high[at(cell)], y)
    corners[at(cell)] += 1


@inner_kernel
def _cross_columns(source: Int, count: Int, cells: Cells) -> None:
    """Note the corners of all parts of a polygon cut at the lines between cells, none of its own being on one.

    Cutting the part beyond one line at the next shortens each edge that crosses both, independent of the others.
    """
    buffer = cells.buffer
    b = source + _STRIDE * (count - 1)
    x_b, y_b = buffer[at(b)], buffer[at(b + 1)]
    cell_b = cells.of_corner[at(count - 1)]
    for k in range(count):
        x_a, y_a = buffer[at(source + _STRIDE * k)], buffer[at(source + _STRIDE * k + 1)]
        cell_a = cells.of_corner[at(k)]
        x, y = x_a, y_a
        rising = cell_b < cell_a
        for cell in range(min(cell_a, cell_b), max(cell_a, cell_b)):
            side_b = cells.edge[at(cell)] - x_b
            s = side_b / (side_b - (cells.edge[at(cell)] - x))
            x_cut = x_b + (x - x_b) * s
            y_cut = y_b + (y - y_b) * s
            _note(cells.low, cells.high, cells.corners, cell, y_cut)
            _note(cells.low, cells.high, cells.corners, cell + 1, y_cut)
            if rising:
                x_b, y_b = x_cut, y_cut
            else:
                x, y = x_cut, y_cut
        _note(cells.low, cells.high, cells.corners, cell_a, y_a)
        x_b, y_b, cell_b = x_a, y_a, cell_a


@inner_kernel
def _cut_cell(buffer: NDArray[Any], source: Int, count: Int, far: Int, cell: Int, cells: Cells) -> Int:
    """Cut a polygon (x, y) at the line beyond a cell, noting the corners of the part before it.

    The part beyond the line is stored; its size.
    """
    edge = cells.edge[at(cell)]
    beyond = far
    b = source + _STRIDE * (count - 1)
    side_b = edge - buffer[at(b)] if count > 0 else _ZERO
    for a in range(source, source + _STRIDE * count, _STRIDE):
        side_a = edge - buffer[at(a)]
        crossing = (side_a >= _ZERO) != (side_b >= _ZERO)
        if crossing:
            s = side_b / (side_b - side_a)
            y = buffer[at(b + 1)] + (buffer[at(a + 1)] - buffer[at(b + 1)]) * s
            _note(cells.low, cells.high, cells.corners, cell, y)
            buffer[at(beyond)] = buffer[at(b)] + (buffer[at(a)] - buffer[at(b)]) * s
            buffer[at(beyond + 1)] = y
            beyond += _STRIDE
        if side_a > _ZERO or (side_a == _ZERO and not crossing):
            _note(cells.low, cells.high, cells.corners, cell, buffer[at(a + 1)])
        if side_a < _ZERO or (side_a == _ZERO and not crossing):
            buffer[at(beyond)] = buffer[at(a)]
            buffer[at(beyond + 1)] = buffer[at(a + 1)]
            beyond += _STRIDE
        b = a
        side_b = side_a
    return (beyond - far) // _STRIDE


@inner_kernel
def _cut_columns(source: Int, count: Int, cells: Cells, grid: Grid) -> tuple[Int, Int]:
    """Note the corners of the parts of a polygon (x, y) within each cell of a row; first and last cell."""
    buffer = cells.buffer
    inverse = _ONE / grid.cell_size
    first: Int = np.int64(grid.width)
    last: Int = np.int64(0)
    between_lines = True
    for k in range(count):
        x = buffer[at(source + _STRIDE * k)]
        cell = int((x - grid.x_min) * inverse)
        between_lines = between_lines and cells.edge[at(cell)] > x and (cell == 0 or cells.edge[at(cell - 1)] < x)
        cells.of_corner[at(k)] = cell
        first = min(first, cell)
        last = max(last, cell)
    if between_lines and last < grid.width:
        _cross_columns(source, count, cells)
        return first, last
    last = min(last, grid.width - 1)
    right = -_BIG
    for k in range(source, source + _STRIDE * count, _STRIDE):
        right = max(right, buffer[at(k)])
    far, spare = np.int64(_CUT), np.int64(_CUT + _SLOT)
    for cell in range(first, last + 1):
        if cell == last and right <= cells.edge[at(cell)]:
            for k in range(source, source + _STRIDE * count, _STRIDE):
                _note(cells.low, cells.high, cells.corners, cell, buffer[at(k + 1)])
        else:
            count = _cut_cell(buffer, source, count, far, cell, cells)
            source, far, spare = far, spare, far
    return first, last


@inner_kernel
def _add_span(heights: Heights, column: Int, low: Int, high: Int, area: Int, climb: Int) -> None:
    """Insert a span into a column, merging with what it touches. The table must have room for one more."""
    head, spans, pool = heights.head, heights.spans, heights.pool
    previous: Int = _NONE
    current: Int = head[at(column)]
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
        head[at(column)] = new
    else:
        spans[previous, NEXT] = new


@inner_kernel
def _add_row(heights: Heights, cells: Cells, first: Int, last: Int, column: Int, area: Int, grid: Grid) -> None:
    """Add the spans of the cells first..last of a row and make those cells ready for the next polygon.

    column: of the first cell of the row.
    """
    inverse = _ONE / grid.cell_height
    for cell in range(first, last + 1):
        low = cells.low[at(cell)] - grid.y_min
        high = cells.high[at(cell)] - grid.y_min
        corners = cells.corners[at(cell)]
        cells.low[at(cell)] = _BIG
        cells.high[at(cell)] = -_BIG
        cells.corners[at(cell)] = 0
        if corners < 3 or high < _ZERO or low > grid.y_extent:
            continue
        bottom = np.uint32(min(int(max(low, _ZERO) * inverse), MAX_SPAN_HEIGHT))
        top = np.uint32(min(int(np.ceil(min(high, grid.y_extent) * inverse)), MAX_SPAN_HEIGHT))
        if top <= bottom:
            top = np.uint32(min(bottom + 1, MAX_SPAN_HEIGHT))
        _add_span(heights, column + cell, bottom, top, area, grid.walkable_climb)


@kernel
def covered_cells(corners: NDArray[Any], grid: Grid) -> float:
    """Cells in the plan boxes of all triangles, counted once for every triangle: the work of `rasterize`.

    corners: (T, 3, 3) float32.
    """
    inverse = _ONE / grid.cell_size
    total = 0.0
    for t in range(len(corners)):
        x_low = min(min(corners[t, 0, 0], corners[t, 1, 0]), corners[t, 2, 0])
        x_high = max(max(corners[t, 0, 0], corners[t, 1, 0]), corners[t, 2, 0])
        z_low = min(min(corners[t, 0, 2], corners[t, 1, 2]), corners[t, 2, 2])
        z_high = max(max(corners[t, 0, 2], corners[t, 1, 2]), corners[t, 2, 2])
        total += ((x_high - x_low) * inverse + _ONE) * ((z_high - z_low) * inverse + _ONE)
    return total


@kernel
def _make_cells(grid: Grid) -> Cells:
    """Cells without corners, two more than a row has: a mesh may reach half a cell beyond its grid."""
    size = grid.width + 2
    edge = np.empty(size, np.float32)
    for cell in range(size):
        edge[cell] = grid.x_min + np.float32(cell) * grid.cell_size + grid.cell_size
    low = np.full(size, _BIG, np.float32)
    high = np.full(size, -_BIG, np.float32)
    return Cells(
        edge, low, high, np.zeros(size, np.int32), np.empty(_SLOT, np.int64), np.empty(5 * _SLOT, np.float32)
    )


@inner_kernel
def _add_triangles(
    corners: NDArray[Any], areas: NDArray[Any], begin: Int, grid: Grid, heights: Heights, cells: Cells
) -> Int:
    """Add the spans of the triangles from `begin` on; the first triangle that there may be no room for."""
    inverse = _ONE / grid.cell_size
    buffer = cells.buffer
    for t in range(begin, len(corners)):
        source, far = np.int64(0), np.int64(_SLOT)
        for k in range(3):
            for j in range(3):
                buffer[3 * k + j] = corners[t, k, j]
        x_low = min(min(buffer[0], buffer[3]), buffer[6])
        x_high = max(max(buffer[0], buffer[3]), buffer[6])
        z_low = min(min(buffer[2], buffer[5]), buffer[8])
        z_high = max(max(buffer[2], buffer[5]), buffer[8])
        first = min(int((z_low - grid.z_min) * inverse), grid.depth - 1)
        last = min(int((z_high - grid.z_min) * inverse), grid.depth - 1)
        most = (last + 1 - first) * (int((x_high - x_low) * inverse) + _MARGIN)
        if np.int64(heights.pool[_USED]) + most > len(heights.spans):
            return t
        count = np.int64(3)
        for row in range(first, last + 1):
            edge = grid.z_min + np.float32(row) * grid.cell_size + grid.cell_size
            near, n_row = np.int64(_ROW), np.int64(0)
            if row == last and z_high <= edge:
                near, n_row = source, count
            else:
                n_row, count = _cut_row(buffer, source, far, count, edge)
                source, far = far, source
            if n_row >= 3:
                x_first, x_last = _cut_columns(near, n_row, cells, grid)
                _add_row(heights, cells, x_first, x_last, row * grid.width, areas[t], grid)
    return len(corners)


@kernel
def rasterize(
    corners: NDArray[Any], areas: NDArray[Any], grid: Grid, max_spans: Int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], Int]:
    """All triangles to spans: first span of each column, the span table, and whether it fitted (1) or not (0).

    corners: (T, 3, 3) float32, triangle by triangle. max_spans: an argument, since a constant of another package
    would stay compiled into the kernel after it has changed.
    """
    head = np.zeros(grid.width * grid.depth, np.uint32)
    spans = np.empty((max(1024, grid.width * grid.depth), 4), np.uint32)
    pool = np.zeros(2, np.uint32)
    pool[_USED] = 1
    cells = _make_cells(grid)
    t = _add_triangles(corners, areas, np.int64(0), grid, Heights(head, spans, pool), cells)
    while t < len(corners):
        if len(spans) >= max_spans:
            return head, spans, 0
        larger = np.empty((2 * len(spans), 4), np.uint32)
        for i in range(pool[_USED]):
            for c in range(4):
                larger[i, c] = spans[i, c]
        spans = larger
        t = _add_triangles(corners, areas, t, grid, Heights(head, spans, pool), cells)
    return head, spans, 1
