"""Voxel grid of a navmesh build: sizes and limits derived from a mesh and its settings.

The roundings are those of habitat-sim's PathFinder (single precision throughout).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.limits import MAX_CELLS
from envs.embedded.navmesh.build.kinds import Int
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from vlnbench.errors import UsageError

MAX_SIDE = 0xFFFF - 1
"""Largest number of cells along x or z: polygon vertices are 16-bit."""

MAX_SPAN_HEIGHT = 8191
"""Largest height in cells that a span can hold (13 bits, as in Recast)."""


_STEPS_PER_CELL = 8
"""Least number of single-precision steps within a cell: clipping is unreliable below."""


class Grid(NamedTuple):
    """Placement of the voxel grid. Sizes in cells, `walkable_*` in cells or cell heights, the rest in meters."""

    width: int
    depth: int
    cell_size: np.float32
    cell_height: np.float32
    x_min: np.float32
    y_min: np.float32
    z_min: np.float32
    y_extent: np.float32
    walkable_height: int
    walkable_climb: int
    walkable_radius: int


def check_mesh(vertices: NDArray[Any], triangles: NDArray[Any]) -> None:
    """Raise UsageError unless the arrays have the types and sizes of a triangle mesh and valid indices."""
    if vertices.ndim != 2 or vertices.shape[1] != 3 or vertices.dtype != np.float32:
        raise UsageError(f"navmesh vertices: expected float32 (V, 3), found {vertices.dtype} {vertices.shape}")
    if triangles.ndim != 2 or triangles.shape[1] != 3 or triangles.dtype != np.int32:
        raise UsageError(f"navmesh triangles: expected int32 (T, 3), found {triangles.dtype} {triangles.shape}")
    if len(vertices) == 0 or len(triangles) == 0:
        raise UsageError("navmesh: the scene mesh has no triangles; nothing to build a navmesh from")
    if int(triangles.min()) < 0 or int(triangles.max()) >= len(vertices):
        raise UsageError(f"navmesh triangles: an index is outside 0..{len(vertices) - 1}; repair the scene mesh")


@kernel
def _bounds(vertices: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32], Int]:
    """Lower and upper corner, and the first vertex that is not finite (-1 for none)."""
    low = vertices[0].copy()
    high = vertices[0].copy()
    for i in range(len(vertices)):
        for c in range(3):
            value = vertices[i, c]
            if not np.isfinite(value):
                return low, high, i
            low[c] = min(low[c], value)
            high[c] = max(high[c], value)
    return low, high, -1


def mesh_bounds(vertices: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Lower and upper corner of all vertices, used or not. Raises UsageError for one that is not finite."""
    low, high, broken = _bounds(vertices)
    if broken != -1:
        raise UsageError(f"navmesh vertices: vertex {broken} is not finite; repair the scene mesh")
    return low, high


def make_grid(low: NDArray[np.float32], high: NDArray[np.float32], settings: NavMeshSettings) -> Grid:
    """Grid over bounds in meters. Raises UsageError where it would have no cell or exceed the limits above."""
    cell, cell_height = np.float32(settings.cell_size), np.float32(settings.cell_height)
    with np.errstate(over="ignore", invalid="ignore"):
        extent = high - low
        width, depth = (float(extent[axis] / cell + np.float32(0.5)) for axis in (0, 2))
        layers = float(extent[1] / cell_height)
    if not (width <= MAX_SIDE and depth <= MAX_SIDE and width * depth <= MAX_CELLS):
        raise UsageError(
            f"navmesh cell_size: a mesh of {extent[0]:.6g} x {extent[2]:.6g} m needs {width:.3g} x {depth:.3g}"
            f" cells of {cell:.4g} m, more than {MAX_CELLS} in all or {MAX_SIDE} a side;"
            " enlarge cell_size or check the units"
        )
    if width < 1 or depth < 1:
        raise UsageError(
            f"navmesh cell_size: no walkable surface: a mesh of {extent[0]:.6g} x {extent[2]:.6g} m is narrower"
            f" than half a cell of {cell:.4g} m; check the scene's up axis and units, or reduce cell_size"
        )
    if not layers <= MAX_SPAN_HEIGHT:
        raise UsageError(
            f"navmesh cell_height: a mesh {extent[1]:.6g} m high needs {layers:.3g} layers of {cell_height:.4g} m,"
            f" more than {MAX_SPAN_HEIGHT}; enlarge cell_height or check the units"
        )
    farthest = max(float(np.abs(low).max()), float(np.abs(high).max()))
    if np.spacing(np.float32(farthest)) * _STEPS_PER_CELL > min(cell, cell_height):
        raise UsageError(
            f"navmesh cell_size: coordinates up to {farthest:.6g} m are too coarse in single precision for"
            f" cells of {cell:.4g} m; move the mesh to the origin or enlarge cell_size"
        )
    return Grid(
        width=int(width),
        depth=int(depth),
        cell_size=cell,
        cell_height=cell_height,
        x_min=low[0],
        y_min=low[1],
        z_min=low[2],
        y_extent=extent[1],
        walkable_height=math.ceil(np.float32(settings.agent_height) / cell_height),
        walkable_climb=math.floor(np.float32(settings.agent_max_climb) / cell_height),
        walkable_radius=math.ceil(np.float32(settings.agent_radius) / cell),
    )
