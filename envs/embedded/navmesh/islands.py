"""Islands: connected parts of a navmesh, their area and radius, and polygons too small to stand on.

Follows the rules of habitat-sim's PathFinder (MIT licence).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from envs.embedded.navmesh.tile import BORDER, DISABLED, WALK, NavMeshTile

_TINY_AREA = np.float32(1e-5)


@dataclass(frozen=True)
class Islands:
    """of_poly: (p,) island of every polygon. radius and area: (islands,) float32, metres and square metres."""

    of_poly: NDArray[np.int32]
    radius: NDArray[np.float32]
    area: NDArray[np.float32]


def prepare(tile: NavMeshTile) -> tuple[NavMeshTile, Islands]:
    """Find islands, then disable polygons with an area below 1e-5 m2: (tile to use, its islands).

    Islands are found with the flags as they were given, so a tiny polygon that was disabled before (as in a saved
    navmesh) may form an island of its own.
    """
    of_poly, radius = _components(tile)
    poly_area = _poly_areas(tile)
    polys = tile.polys.copy()
    polys["flags"] = np.where(poly_area < _TINY_AREA, DISABLED, polys["flags"])
    area = np.zeros(len(radius), dtype=np.float32)
    usable = (polys["flags"] & WALK) != 0
    np.add.at(area, of_poly[usable], poly_area[usable])
    return replace(tile, polys=polys), Islands(of_poly, radius, area)


def _components(tile: NavMeshTile) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Island of every polygon and the radius of every island, in the order of habitat-sim."""
    counts = tile.polys["vert_count"].tolist()
    neighbours = tile.polys["neis"].tolist()
    vertices = tile.polys["verts"].tolist()
    walkable = ((tile.polys["flags"] & WALK) != 0).tolist()
    island = [-1] * len(counts)
    radii: list[np.float32] = []
    for seed in range(len(counts)):
        if island[seed] >= 0:
            continue
        island[seed] = len(radii)
        used: list[int] = []
        stack = [seed]
        while stack:
            poly = stack.pop()
            used += vertices[poly][: counts[poly]]
            for code in neighbours[poly][: counts[poly]]:
                other = code - 1
                if 0 < code < BORDER and island[other] < 0 and walkable[other]:
                    island[other] = len(radii)
                    stack.append(other)
        points = tile.verts[used]
        # A running sum, not numpy's pairwise one: the centroid then rounds as in habitat-sim.
        center = np.cumsum(points, axis=0, dtype=np.float32)[-1] / np.float32(len(points))
        away = points - center
        squares = away * away
        radii.append(np.sqrt(squares[:, 0] + squares[:, 1] + squares[:, 2]).max())
    return np.array(island, dtype=np.int32), np.array(radii, dtype=np.float32)


def _poly_areas(tile: NavMeshTile) -> NDArray[np.float32]:
    """Surface area of every polygon from its height triangles."""
    points, _ = tile.triangle_points()
    a, b = points[:, 1] - points[:, 0], points[:, 2] - points[:, 1]
    cross = a[:, [1, 2, 0]] * b[:, [2, 0, 1]] - a[:, [2, 0, 1]] * b[:, [1, 2, 0]]
    squares = cross * cross
    area = np.float32(0.5) * np.sqrt(squares[:, 0] + squares[:, 1] + squares[:, 2])
    begin = tile.detail_meshes["tri_base"].astype(np.int64)
    end = begin + tile.detail_meshes["tri_count"]
    total = np.zeros(len(begin), dtype=np.float32)
    for poly, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        if last > first:
            total[poly] = np.cumsum(area[first:last], dtype=np.float32)[-1]
    return total
