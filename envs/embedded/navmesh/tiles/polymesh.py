"""What the navmesh builder hands to the tile maker: polygons on a grid and their height detail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_INDEX = 0xFFFF
"""Fills unused vertex slots of a polygon and marks an edge without neighbor."""

WALKABLE_AREA = 63
"""Area code of walkable ground, as Recast numbers it."""


@dataclass(frozen=True)
class PolyMesh:
    """Convex polygons with shared vertices on the voxel grid (the content of Recast's rcPolyMesh).

    verts: (n, 3) uint16, cells along x, cell heights along y, cells along z, counted from `bmin`.
    polys: (p, 2 * nvp) uint16; the first nvp entries are vertex indices, padded with `NO_INDEX`; the last nvp are,
    per edge (vertex j to vertex j + 1), the neighboring polygon or `NO_INDEX`.
    areas: (p,) uint8, `WALKABLE_AREA` for ground. bmin, bmax: (3,) float32, world frame, meters.
    """

    verts: NDArray[np.uint16]
    polys: NDArray[np.uint16]
    areas: NDArray[np.uint8]
    bmin: NDArray[np.float32]
    bmax: NDArray[np.float32]
    cell_size: float
    cell_height: float
    nvp: int


@dataclass(frozen=True)
class DetailMesh:
    """Height triangles of every polygon (the content of Recast's rcPolyMeshDetail).

    meshes: (p, 4) uint32 per polygon: first vertex, number of vertices, first triangle, number of triangles.
    verts: (n, 3) float32, world frame, meters; each polygon's own corners come first.
    tris: (t, 4) uint8: three vertex indices within the polygon's vertices, and edge flags.
    """

    meshes: NDArray[np.uint32]
    verts: NDArray[np.float32]
    tris: NDArray[np.uint8]
