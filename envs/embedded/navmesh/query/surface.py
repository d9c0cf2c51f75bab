"""The navmesh as flat arrays for compiled kernels, reached through one table of addresses.

Unpacking an array argument costs a compiled call about 100 ns, so kernels take a single int64 table that holds the
sizes and the addresses of all arrays and open the ones they use. Indices are checked once, when a tile is made
(`tile_check.check_tile`); kernels do not check again. The arrays must outlive the table: both live in `Surface`.
Before you change anything here, read docs/how-to/maintenance.md.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.tiles.tile import WALK, NavMeshTile

Table = NDArray[np.int64]
_ZERO = np.float32(0.0)
F32 = Any
"""A float32 scalar inside a kernel. All arithmetic stays in float32, in the order in which Detour does it."""

_numba: Any = numba
carray, types = _numba.carray, _numba.types
as_index: Any = np.int64
"""Polygon numbers are int64 everywhere, since numba compiles a function once more for every integer type."""

MAX_CORNERS = 6
MAX_NODES = 2048
"""Search nodes of a path query; a search that needs more fails, as in habitat-sim."""
MAX_PATH = 256
"""Polygons, and corner points, of a path; a longer path counts as not found, as in habitat-sim."""

# Columns of `info`, one row per polygon.
CORNER_COUNT, WALKABLE, ISLAND, TRIANGLE_BEGIN, TRIANGLE_END, SEGMENT_BEGIN, SEGMENT_END = range(7)
# Columns of `segments`: two points and whether the segment lies on the polygon's rim.
RIM = 6
# Columns of `nodes`: box of a bounding-volume node and its polygon (or minus the number of nodes to skip).
NODE_POLY = 6
# Entries of `frame`.
QUANT, CLIMB, ORIGIN_X, ORIGIN_Z, TILE_WIDTH, TILE_DEPTH, TILE_X, TILE_Y = range(6, 14)
# Columns of `search` (int32, one row per polygon) and of `costs` (float32).
STAMP, STATE, PARENT = range(3)
COST, TOTAL = range(2)
# Rows of `scratch`.
PROJECTED_START, PROJECTED_END, APEX, LEFT, RIGHT, NEXT_LEFT, NEXT_RIGHT, GOAL, TARGET = range(9)
# Entries of the table: sizes first, then addresses.
POLYS, NODES = range(2)
(
    CORNERS,
    EDGES,
    INFO,
    BOXES,
    TRIANGLES,
    SEGMENTS,
    TREE,
    FRAME,
    SEARCH,
    COSTS,
    PLACES,
    HEAP,
    PATH,
    POINTS,
    SCRATCH,
    STATUS,
) = range(2, 18)
_TABLE_SIZE = 18


def _pointer_type(element: Any) -> Any:
    """A function for kernels that turns an address into a pointer to `element`."""

    def pointer(_context: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate

    return intrinsic(pointer)


_float_pointer = _pointer_type(types.float32)
_int_pointer = _pointer_type(types.int32)


@kernel
def corners(table: Table) -> Any:
    """(polygons, 6, 3) corner positions."""
    return carray(_float_pointer(table[CORNERS]), (table[POLYS], 6, 3))


@kernel
def edges(table: Table) -> Any:
    """(polygons, 6) polygon beyond the edge from corner j to the next, -1 for a wall."""
    return carray(_int_pointer(table[EDGES]), (table[POLYS], 6))


@kernel
def info(table: Table) -> Any:
    """(polygons, 8) counts, switches and ranges of a polygon, see the column names."""
    return carray(_int_pointer(table[INFO]), (table[POLYS], 8))


@kernel
def boxes(table: Table) -> Any:
    """(polygons, 4) lowest x, highest x, lowest z, highest z."""
    return carray(_float_pointer(table[BOXES]), (table[POLYS], 4))


@kernel
def triangles(table: Table) -> Any:
    """(height triangles, 9) three points each."""
    return carray(_float_pointer(table[TRIANGLES]), (table[POLYS], 9))


@kernel
def segments(table: Table) -> Any:
    """(edges of height triangles, 7) two points each and the rim switch."""
    return carray(_float_pointer(table[SEGMENTS]), (table[POLYS], 7))


@kernel
def tree(table: Table) -> Any:
    """(nodes, 7) bounding-volume tree."""
    return carray(_int_pointer(table[TREE]), (table[NODES], 7))


@kernel
def frame(table: Table) -> Any:
    """(14,) lowest and highest corner of the tile, then the values named above."""
    return carray(_float_pointer(table[FRAME]), (14,))


@kernel
def search(table: Table) -> Any:
    """(polygons, 3) work: stamp of the search that touched the polygon, its state, its parent."""
    return carray(_int_pointer(table[SEARCH]), (table[POLYS], 3))


@kernel
def costs(table: Table) -> Any:
    """(polygons, 2) work: cost so far and estimated total."""
    return carray(_float_pointer(table[COSTS]), (table[POLYS], 2))


@kernel
def places(table: Table) -> Any:
    """(polygons, 3) work: where the search entered the polygon."""
    return carray(_float_pointer(table[PLACES]), (table[POLYS], 3))


@kernel
def heap(table: Table) -> Any:
    """(polygons + 1,) work: open polygons, cheapest first."""
    return carray(_int_pointer(table[HEAP]), (table[POLYS] + 1,))


@kernel
def path(table: Table) -> Any:
    """(256,) work and result: polygons of a path, or those a step visited."""
    return carray(_int_pointer(table[PATH]), (MAX_PATH,))


@kernel
def points(table: Table) -> Any:
    """(256, 3) result: corner points of a path."""
    return carray(_float_pointer(table[POINTS]), (MAX_PATH, 3))


@kernel
def scratch(table: Table) -> Any:
    """(16, 3) work: points of the query that runs, one row per use (see the names of rows)."""
    return carray(_float_pointer(table[SCRATCH]), (16, 3))


@kernel
def new_stamp(table: Table) -> int:
    """Number of a new search; rows of `search` with another stamp are unvisited."""
    status = carray(_int_pointer(table[STATUS]), (1,))
    if status[0] == 2147483647:
        visited = search(table)
        for poly in range(len(visited)):
            visited[poly, STAMP] = 0
        status[0] = 0
    status[0] += 1
    return int(status[0])


class Surface:
    """Arrays of one navmesh and the table that kernels take. Not for use from two threads at once.

    `islands` gives the connected component of every polygon.
    """

    def __init__(self, tile: NavMeshTile, islands: NDArray[np.int32]) -> None:
        polys = tile.polys
        count = polys["vert_count"].astype(np.int32)
        size = len(polys)
        used = np.arange(MAX_CORNERS)[None, :] < count[:, None]
        corner_points = tile.verts[np.where(used, polys["verts"], polys["verts"][:, :1])]
        neighbors = polys["neis"].astype(np.int32)
        inner = used & (neighbors > 0) & (neighbors < 0x8000)
        triangle_points, corner_ids = tile.triangle_points()
        begin = tile.detail_meshes["tri_base"].astype(np.int32)
        end = begin + tile.detail_meshes["tri_count"].astype(np.int32)
        lines, line_begin, line_end = _segments(triangle_points, corner_ids, tile.detail_tris[:, 3], begin, end)
        facts = np.zeros((size, 8), dtype=np.int32)
        facts[:, CORNER_COUNT] = count
        facts[:, WALKABLE] = polys["flags"] & WALK
        facts[:, ISLAND] = islands
        facts[:, TRIANGLE_BEGIN], facts[:, TRIANGLE_END] = begin, end
        facts[:, SEGMENT_BEGIN], facts[:, SEGMENT_END] = line_begin, line_end
        self.arrays: list[NDArray[Any]] = [
            corner_points,
            np.where(inner, neighbors - 1, -1).astype(np.int32),
            facts,
            _boxes(corner_points, lines, line_begin, line_end),
            triangle_points.reshape(-1, 9),
            lines,
            np.concatenate(
                [tile.bv_nodes["bmin"], tile.bv_nodes["bmax"], tile.bv_nodes["i"][:, None]], axis=1, dtype=np.int32
            ),
            np.array(
                [
                    *tile.bmin,
                    *tile.bmax,
                    tile.quant,
                    tile.climb,
                    tile.origin[0],
                    tile.origin[2],
                    *tile.extent,
                    *tile.place,
                ],
                dtype=np.float32,
            ),
            np.zeros((size, 3), dtype=np.int32),
            np.zeros((size, 2), dtype=np.float32),
            np.zeros((size, 3), dtype=np.float32),
            np.zeros(size + 1, dtype=np.int32),
            np.zeros(MAX_PATH, dtype=np.int32),
            np.zeros((MAX_PATH, 3), dtype=np.float32),
            np.zeros((16, 3), dtype=np.float32),
            np.zeros(1, dtype=np.int32),
        ]
        self.arrays = [
            np.ascontiguousarray(array, dtype=np.float32 if array.dtype.kind == "f" else np.int32)
            for array in self.arrays
        ]
        self.io = np.zeros(16, dtype=np.float32)
        self.table: Table = np.zeros(_TABLE_SIZE, dtype=np.int64)
        self.table[POLYS], self.table[NODES] = size, len(tile.bv_nodes)
        self.table[CORNERS:] = [array.ctypes.data for array in self.arrays]


def _segments(
    points_of: NDArray[np.float32],
    ids: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    begin: NDArray[np.int32],
    end: NDArray[np.int32],
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]:
    """Edges of the height triangles, each once: (rows of `segments`, first row and end row per polygon)."""
    order = np.array([2, 0, 1])
    starts, ends = points_of[:, order], points_of
    rim = np.stack([(flags >> (2 * int(j))) & 1 for j in order], axis=1).astype(bool)
    kept = rim | (ids[:, order] >= ids)
    rows = np.concatenate([starts, ends, rim[:, :, None].astype(np.float32)], axis=2)[kept]
    before = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int32)
    return np.ascontiguousarray(rows, dtype=np.float32), before[begin], before[end]


@kernel
def _boxes(
    corner_points: NDArray[np.float32],
    lines: NDArray[np.float32],
    begin: NDArray[np.int32],
    end: NDArray[np.int32],
) -> NDArray[np.float32]:
    """Plan boxes of the polygons and their height edges, grown so that rounding never puts a point outside."""
    box = np.empty((len(begin), 4), np.float32)
    largest = _ZERO
    for poly in range(len(begin)):
        for axis in range(2):
            low = high = corner_points[poly, 0, 2 * axis]
            for corner in range(1, MAX_CORNERS):
                low = min(low, corner_points[poly, corner, 2 * axis])
                high = max(high, corner_points[poly, corner, 2 * axis])
            largest = max(largest, max(-low, high))
            for line in range(begin[poly], end[poly]):
                low = min(low, min(lines[line, 2 * axis], lines[line, 3 + 2 * axis]))
                high = max(high, max(lines[line, 2 * axis], lines[line, 3 + 2 * axis]))
            box[poly, 2 * axis], box[poly, 2 * axis + 1] = low, high
    slack = np.float32(1e-3 + 1e-5 * largest)
    for poly in range(len(begin)):
        for axis in range(2):
            box[poly, 2 * axis] -= slack
            box[poly, 2 * axis + 1] += slack
    return box
