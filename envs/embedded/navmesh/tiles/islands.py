"""Islands: connected parts of a navmesh, their area and radius, and polygons too small to stand on.

Follows the rules of habitat-sim's PathFinder (MIT license).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.tiles.tile import BORDER, DISABLED, WALK, Corners, NavMeshTile

_TINY_AREA = np.float32(1e-5)
_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)


@dataclass(frozen=True)
class Islands:
    """of_poly: (p,) island of every polygon. radius and area: (islands,) float32, meters and square meters."""

    of_poly: NDArray[np.int32]
    radius: NDArray[np.float32]
    area: NDArray[np.float32]


def prepare(tile: NavMeshTile) -> tuple[NavMeshTile, Islands]:
    """Find islands, then disable polygons with an area below 1e-5 m2: (tile to use, its islands).

    Islands are found with the flags as they were given, so a tiny polygon that was disabled before (as in a saved
    navmesh) may form an island of its own.
    """
    given, detail = tile.polys, tile.detail_meshes
    corners = Corners(given["vert_count"], given["verts"], tile.verts)
    of_poly, radius = _components(corners, given["neis"], (given["flags"] & WALK) != 0)
    poly_area = _areas(tile.triangle_points()[0], detail["tri_base"], detail["tri_count"])
    polys = tile.polys.copy()
    polys["flags"] = np.where(poly_area < _TINY_AREA, DISABLED, polys["flags"])
    area = np.zeros(len(radius), dtype=np.float32)
    usable = (polys["flags"] & WALK) != 0
    np.add.at(area, of_poly[usable], poly_area[usable])
    return replace(tile, polys=polys), Islands(of_poly, radius, area)


@kernel
def _components(
    corners: Corners, neighbors: NDArray[np.uint16], walkable: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Island of every polygon and the radius of every island, in the order of habitat-sim."""
    size = len(corners.sizes)
    island = np.full(size, -1, np.int32)
    radius = np.zeros(size, np.float32)
    stack = np.empty(size, np.int64)
    members = np.empty(size, np.int64)
    islands = 0
    for seed in range(size):
        if island[seed] >= 0:
            continue
        island[seed] = islands
        stack[0] = seed
        waiting, found = 1, 0
        while waiting > 0:
            waiting -= 1
            poly = stack[waiting]
            members[found] = poly
            found += 1
            for edge in range(corners.sizes[poly]):
                code = np.int64(neighbors[poly, edge])
                if 0 < code < BORDER and island[code - 1] < 0 and walkable[code - 1]:
                    island[code - 1] = islands
                    stack[waiting] = code - 1
                    waiting += 1
        radius[islands] = _radius(corners, members, found)
        islands += 1
    return island, radius[:islands].copy()


@inner_kernel
def _radius(corners: Corners, members: NDArray[np.int64], size: int) -> Any:
    """Largest distance of the corners of the first `size` members from their mean, summed in their order."""
    x = y = z = furthest = _ZERO
    count = 0
    for member in members[:size]:
        for j in range(corners.sizes[member]):
            vertex = corners.verts[corners.indices[member, j]]
            x, y, z = x + vertex[0], y + vertex[1], z + vertex[2]
            count += 1
    number = np.float32(count)
    x, y, z = x / number, y / number, z / number
    for member in members[:size]:
        for j in range(corners.sizes[member]):
            vertex = corners.verts[corners.indices[member, j]]
            dx, dy, dz = vertex[0] - x, vertex[1] - y, vertex[2] - z
            furthest = max(furthest, dx * dx + dy * dy + dz * dz)
    return np.sqrt(furthest)


@kernel
def _areas(points: NDArray[np.float32], begin: NDArray[np.uint32], size: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Surface area of every polygon, the running sum of its height triangles (t, 3, 3)."""
    total = np.zeros(len(begin), np.float32)
    for poly in range(len(begin)):
        for t in range(np.int64(begin[poly]), np.int64(begin[poly]) + size[poly]):
            ax, bx = points[t, 1, 0] - points[t, 0, 0], points[t, 2, 0] - points[t, 1, 0]
            ay, by = points[t, 1, 1] - points[t, 0, 1], points[t, 2, 1] - points[t, 1, 1]
            az, bz = points[t, 1, 2] - points[t, 0, 2], points[t, 2, 2] - points[t, 1, 2]
            x, y, z = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
            total[poly] += _HALF * np.sqrt(x * x + y * y + z * z)
    return total
