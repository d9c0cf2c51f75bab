"""A navmesh small enough to read: a square floor of two triangles."""

from __future__ import annotations

import numpy as np

from envs.embedded.navmesh.tiles.polymesh import NO_INDEX, WALKABLE_AREA, DetailMesh, PolyMesh
from envs.embedded.navmesh.tiles.settings import NavMeshSettings


def square_room() -> tuple[PolyMesh, DetailMesh, NavMeshSettings]:
    """A flat floor of 2 m by 2 m at height 0, with its lowest corner in the origin."""
    settings = NavMeshSettings()
    verts = np.array([[0, 0, 0], [0, 0, 40], [40, 0, 40], [40, 0, 0]], dtype=np.uint16)
    polys = np.full((2, 12), NO_INDEX, dtype=np.uint16)
    polys[0, :3], polys[1, :3] = (0, 1, 2), (0, 2, 3)
    polys[0, 6 + 2], polys[1, 6 + 0] = 1, 0
    mesh = PolyMesh(
        verts=verts,
        polys=polys,
        areas=np.full(2, WALKABLE_AREA, dtype=np.uint8),
        bmin=np.zeros(3, dtype=np.float32),
        bmax=np.array([2.0, 1.6, 2.0], dtype=np.float32),
        cell_size=settings.cell_size,
        cell_height=settings.cell_height,
        nvp=6,
    )
    corners = verts.astype(np.float32) * np.array([0.05, 0.2, 0.05], dtype=np.float32)
    detail = DetailMesh(
        meshes=np.array([[0, 3, 0, 1], [3, 3, 1, 1]], dtype=np.uint32),
        verts=corners[[0, 1, 2, 0, 2, 3]],
        tris=np.array([[0, 1, 2, 0b010101], [0, 1, 2, 0b010101]], dtype=np.uint8),
    )
    return mesh, detail, settings
