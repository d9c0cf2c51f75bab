"""One navmesh tile in the layout of Detour, and how to make it from a polygon mesh.

Follows the data layout and algorithms of Detour (Mikko Mononen, zlib license). habitat-sim stores one tile per
navmesh, without off-mesh connections; nothing else is supported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.tiles.polymesh import NO_INDEX, WALKABLE_AREA, DetailMesh, PolyMesh
from envs.embedded.navmesh.tiles.settings import NavMeshSettings

WALK, DOOR, DISABLED = 1, 2, 4
"""Flags of a polygon, as habitat-sim sets them. Polygons without WALK are never used by a query."""

BORDER = 0x8000
"""Marks a polygon edge on the border of a tile; with a single tile that is a wall."""

POLY = np.dtype(
    [
        ("first_link", "<u4"),
        ("verts", "<u2", 6),
        ("neis", "<u2", 6),
        ("flags", "<u2"),
        ("vert_count", "u1"),
        ("area_and_type", "u1"),
    ]
)
LINK = np.dtype([("ref", "<u4"), ("next", "<u4"), ("edge", "u1"), ("side", "u1"), ("bmin", "u1"), ("bmax", "u1")])
DETAIL = np.dtype(
    [("vert_base", "<u4"), ("tri_base", "<u4"), ("vert_count", "u1"), ("tri_count", "u1"), ("padding", "<u2")]
)
NODE = np.dtype([("bmin", "<u2", 3), ("bmax", "<u2", 3), ("i", "<i4")])
NO_LINK = 0xFFFFFFFF
_SIDES = np.array([BORDER | 4, BORDER | 2, BORDER, BORDER | 6, *[0] * 12], dtype=np.uint16)
"""Detour's code for an edge on the border of a tile, by Recast's direction."""


class Corners(NamedTuple):
    """Corners of the polygons for kernels: how many, (p,), their indices, (p, 6), and all vertices, (n, 3)."""

    sizes: NDArray[np.uint8]
    indices: NDArray[np.uint16]
    verts: NDArray[np.float32]


@kernel
def _triangle_points(
    corners: Corners,
    extra: tuple[NDArray[np.uint32], NDArray[np.float32]],
    begin: NDArray[np.uint32],
    size: NDArray[np.uint8],
    ids: NDArray[np.uint8],
) -> NDArray[np.float32]:
    """Corners of the height triangles, (t, 3, 3). extra: first further vertex of each polygon, and all of them."""
    first, verts = extra
    points = np.zeros((len(ids), 3, 3), np.float32)
    for poly in range(len(begin)):
        count = np.int64(corners.sizes[poly])
        for t in range(np.int64(begin[poly]), np.int64(begin[poly]) + size[poly]):
            for j in range(3):
                k = np.int64(ids[t, j])
                for c in range(3):
                    if k < count:
                        points[t, j, c] = corners.verts[corners.indices[poly, k], c]
                    else:
                        points[t, j, c] = verts[np.int64(first[poly]) + k - count, c]
    return points


@dataclass(frozen=True)
class NavMeshTile:
    """A navmesh as Detour keeps it: structured arrays with the dtypes of this module.

    verts, detail_verts: (n, 3) float32, meters, world frame. polys, detail_meshes: one row per polygon; `neis`
    holds the neighbor's index plus one, 0 for a wall. detail_tris: (t, 4) uint8. bv_nodes: bounding-volume tree
    on a grid of 1 / `quant` meters. `max_links`: room for links in a file. body: height, radius, climb in meters.
    origin, extent, max_tiles, max_polys, reference and place: where a set of tiles would put this one.
    """

    verts: NDArray[np.float32]
    polys: NDArray[Any]
    detail_meshes: NDArray[Any]
    detail_verts: NDArray[np.float32]
    detail_tris: NDArray[np.uint8]
    bv_nodes: NDArray[Any]
    bmin: NDArray[np.float32]
    bmax: NDArray[np.float32]
    quant: float
    body: tuple[float, float, float]
    max_links: int
    origin: NDArray[np.float32]
    extent: tuple[float, float]
    max_tiles: int
    max_polys: int
    reference: int
    place: tuple[int, int]
    layer: int = 0
    user_id: int = 0

    @property
    def climb(self) -> float:
        """Height in meters within which a point over a polygon counts as on it."""
        return self.body[2]

    def triangle_points(self) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Corners of the height triangles, (t, 3, 3), and their indices within the polygon, (t, 3).

        A triangle that no polygon owns is all zero.
        """
        ids = self.detail_tris[:, :3]
        polys, detail = self.polys, self.detail_meshes
        corners = Corners(polys["vert_count"], polys["verts"], self.verts)
        extra = (detail["vert_base"], self.detail_verts)
        return _triangle_points(corners, extra, detail["tri_base"], detail["tri_count"], ids), ids

    def linked(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """What a file holds: the polygons with their first link, and the links between neighbors."""
        polys = self.polys.copy()
        links = np.zeros(self.max_links, dtype=LINK)
        links["next"] = np.arange(1, self.max_links + 1)
        links["next"][-1:] = NO_LINK
        size = 0
        counts, neighbors = self.polys["vert_count"].tolist(), self.polys["neis"].tolist()
        for poly, (count, neis) in enumerate(zip(counts, neighbors, strict=True)):
            following = NO_LINK
            for edge in range(count - 1, -1, -1):
                if 0 < neis[edge] < BORDER:
                    links[size] = (self.reference | (neis[edge] - 1), following, edge, 0xFF, 0, 0)
                    following = size
                    size += 1
            polys["first_link"][poly] = following
        return polys, links


def poly_bits(max_polys: int) -> int:
    """Bits of a polygon reference that number the polygon."""
    return max(max_polys - 1, 0).bit_length()


def numbers_from(begin: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """The `size[k]` whole numbers from `begin[k]` on, one k after another."""
    return np.arange(int(size.sum())) + np.repeat(begin - np.cumsum(size) + size, size)


def make_tile(mesh: PolyMesh, detail: DetailMesh, settings: NavMeshSettings) -> NavMeshTile:
    """Turn a polygon mesh into a tile, as habitat-sim does through dtCreateNavMeshData."""
    size, nvp = len(mesh.polys), mesh.nvp
    cell = np.array([mesh.cell_size, mesh.cell_height, mesh.cell_size], dtype=np.float32)
    verts = mesh.bmin.astype(np.float32) + mesh.verts.astype(np.float32) * cell
    used = mesh.polys[:, :nvp] != NO_INDEX
    counts = np.where(used.all(axis=1), nvp, np.argmin(used, axis=1)).astype(np.uint8)
    neighbors = mesh.polys[:, nvp:]
    outside = _SIDES[neighbors & 0xF]
    polys = np.zeros(size, dtype=POLY)
    within = np.arange(nvp)[None, :] < counts[:, None]
    polys["verts"][:, :nvp] = np.where(within, mesh.polys[:, :nvp], 0)
    polys["neis"][:, :nvp] = np.where(within, np.where(neighbors & BORDER, outside, neighbors + 1), 0)
    polys["vert_count"] = counts
    walkable = mesh.areas == WALKABLE_AREA
    polys["flags"] = np.where(walkable | (mesh.areas == 0), WALK, np.where(mesh.areas == 1, WALK | DOOR, 0))
    polys["area_and_type"] = np.where(walkable, 0, mesh.areas & 0x3F)
    detail_meshes, detail_verts = _pack_detail(detail, counts)
    quant = np.float32(1.0) / np.float32(mesh.cell_size)
    low, high = _node_bounds(detail, mesh.bmin.astype(np.float32), quant)
    nodes = np.zeros(2 * size, dtype=NODE)
    _build_tree(np.concatenate([low, high], axis=1), nodes["bmin"], nodes["bmax"], nodes["i"])
    bmin, bmax = mesh.bmin.astype(np.float32), mesh.bmax.astype(np.float32)
    return NavMeshTile(
        verts=verts.astype(np.float32),
        polys=polys,
        detail_meshes=detail_meshes,
        detail_verts=detail_verts,
        detail_tris=detail.tris.astype(np.uint8),
        bv_nodes=nodes,
        bmin=bmin,
        bmax=bmax,
        quant=float(quant),
        body=(settings.agent_height, settings.agent_radius, settings.agent_max_climb),
        max_links=int(
            within.sum() + 2 * np.count_nonzero(within & (neighbors & BORDER > 0) & (neighbors & 0xF < 0xF))
        ),
        origin=bmin,
        extent=(float(bmax[0] - bmin[0]), float(bmax[2] - bmin[2])),
        max_tiles=1,
        max_polys=size,
        reference=1 << poly_bits(size),
        place=(0, 0),
    )


def _pack_detail(detail: DetailMesh, counts: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Detail meshes without the polygons' own corners, and the remaining vertices."""
    rows = np.zeros(len(counts), dtype=DETAIL)
    extra = detail.meshes[:, 1].astype(np.int64) - counts
    rows["vert_base"] = np.concatenate([[0], np.cumsum(extra)[:-1]]) & 0xFFFF
    rows["vert_count"] = extra
    rows["tri_base"] = detail.meshes[:, 2]
    rows["tri_count"] = detail.meshes[:, 3]
    first = detail.meshes[:, 0].astype(np.int64) + counts
    return rows, detail.verts[numbers_from(first, extra)].astype(np.float32)


def _node_bounds(
    detail: DetailMesh, bmin: NDArray[np.float32], quant: np.float32
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Boxes of the polygons' height meshes on the grid of the bounding-volume tree."""
    begin, size = detail.meshes[:, 0].astype(np.int64), detail.meshes[:, 1].astype(np.int64)
    own = detail.verts[numbers_from(begin, size)].astype(np.float32)
    starts = np.cumsum(size) - size
    low, high = np.minimum.reduceat(own, starts), np.maximum.reduceat(own, starts)
    return (
        np.clip(((low - bmin) * quant).astype(np.int64), 0, 0xFFFF),
        np.clip(((high - bmin) * quant).astype(np.int64), 0, 0xFFFF),
    )


@kernel
def _build_tree(
    boxes: NDArray[np.int64], low: NDArray[np.uint16], high: NDArray[np.uint16], index: NDArray[np.int32]
) -> None:
    """Fill the nodes of a bounding-volume tree over `boxes` (n, 6): halves along the longest axis, depth first."""
    items = np.arange(len(boxes))
    begins, ends = np.zeros(64, np.int64), np.zeros(64, np.int64)
    ends[0] = len(boxes)
    depth, node = 1, 0
    while depth > 0:
        depth -= 1
        begin, end = begins[depth], ends[depth]
        for axis in range(3):
            smallest, largest = boxes[items[begin], axis], boxes[items[begin], axis + 3]
            for k in range(begin + 1, end):
                smallest = min(smallest, boxes[items[k], axis])
                largest = max(largest, boxes[items[k], axis + 3])
            low[node, axis], high[node, axis] = smallest, largest
        if end - begin == 1:
            index[node] = items[begin]
            node += 1
            continue
        axis = 0
        for other in range(1, 3):
            if high[node, other] - low[node, other] > high[node, axis] - low[node, axis]:
                axis = other
        for k in range(begin + 1, end):
            item = items[k]
            place = k
            while place > begin and boxes[items[place - 1], axis] > boxes[item, axis]:
                items[place] = items[place - 1]
                place -= 1
            items[place] = item
        middle = begin + (end - begin) // 2
        # A subtree over n polygons has 2 n - 1 nodes: the distance to the node after it.
        index[node] = -(2 * (end - begin) - 1)
        node += 1
        begins[depth], ends[depth] = middle, end
        begins[depth + 1], ends[depth + 1] = begin, middle
        depth += 2
