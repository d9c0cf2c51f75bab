"""The one check of a tile's numbers: after it no query reads outside an array or loops without end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.embedded.limits import MAX_COORDINATE_M, MAX_NAVMESH_M
from envs.embedded.navmesh.tiles.tile import BORDER, NavMeshTile, numbers_from, poly_bits
from vlnbench.errors import UsageError

_MIN_SALT_BITS = 10


def check_tile(tile: NavMeshTile, source: str) -> NavMeshTile:
    """The tile itself, if all of its indices and numbers are usable.

    Raises UsageError naming `source` and the field.
    """
    _check_frame(tile, source)
    _check_polys(tile, source)
    _check_detail(tile, source)
    index = tile.bv_nodes["i"].astype(np.int64)
    _need(len(index) > 0, source, "bvNodeCount", "there is no bounding-volume tree")
    _need(
        index.max() < len(tile.polys) and -index.min() <= len(index), source, "bvTree", "an index is out of range"
    )
    return tile


def _need(fine: bool | np.bool_, source: str, field: str, problem: str) -> None:
    if not fine:
        raise UsageError(f"{source}: {field}: {problem}; take another copy of the navmesh or rebuild it")


def _sane(values: NDArray[np.float32]) -> bool:
    return bool((np.abs(values) <= MAX_COORDINATE_M).all())  # not so for a NaN


def _check_frame(tile: NavMeshTile, source: str) -> None:
    for field, values in (("bmin", tile.bmin), ("bmax", tile.bmax), ("orig", tile.origin)):
        _need(_sane(values), source, field, "coordinates must be finite and within 1e6 m")
    _need((tile.bmin <= tile.bmax).all(), source, "bmax", "must not be below bmin")
    side = float((tile.bmax - tile.bmin).max())
    _need(
        side <= MAX_NAVMESH_M, source, "bmax", f"spans {side:.0f} m, more than the {MAX_NAVMESH_M:.0f} m allowed"
    )
    body = np.array(tile.body, dtype=np.float32)
    _need(_sane(body) and (body >= 0).all(), source, "walkableClimb", "body sizes must be finite and not negative")
    for field, value in (
        ("bvQuantFactor", tile.quant),
        ("tileWidth", tile.extent[0]),
        ("tileHeight", tile.extent[1]),
    ):
        _need(0 < value <= MAX_COORDINATE_M, source, field, f"{value} must be positive and at most 1e6")
    bits = poly_bits(tile.max_polys)
    tile_bits = poly_bits(tile.max_tiles)
    _need(tile.max_tiles > 0, source, "maxTiles", f"{tile.max_tiles} must be positive")
    _need(tile.max_polys > 0, source, "maxPolys", f"{tile.max_polys} must be positive")
    _need(
        bits + tile_bits + _MIN_SALT_BITS <= 32, source, "maxPolys", "tile and polygon counts need too many bits"
    )
    _need(len(tile.polys) <= 1 << bits, source, "polyCount", f"{len(tile.polys)} is more than maxPolys allows")
    number = (tile.reference >> bits) & ((1 << tile_bits) - 1)
    fine = tile.reference & ((1 << bits) - 1) == 0 and number < tile.max_tiles
    _need(fine, source, "tileRef", f"{tile.reference} does not fit maxTiles and maxPolys")


def _check_polys(tile: NavMeshTile, source: str) -> None:
    polys = tile.polys
    _need(len(polys) > 0, source, "polyCount", "there are no polygons")
    _need(len(tile.verts) > 0, source, "vertCount", "there are no vertices")
    _need(_sane(tile.verts), source, "verts", "coordinates must be finite and within 1e6 m")
    count = polys["vert_count"]
    _need(((count >= 3) & (count <= 6)).all(), source, "polys.vertCount", "must be 3 to 6")
    _need((polys["area_and_type"] < 0x40).all(), source, "polys.type", "off-mesh connections are not supported")
    used = np.arange(6)[None, :] < count[:, None]
    _need((polys["verts"][used] < len(tile.verts)).all(), source, "polys.verts", "a vertex index is out of range")
    neighbors = polys["neis"][used]
    inner = neighbors[(neighbors > 0) & (neighbors < BORDER)]
    _need((inner <= len(polys)).all(), source, "polys.neis", "a neighbor index is out of range")
    _need(
        len(inner) <= tile.max_links,
        source,
        "maxLinkCount",
        f"{tile.max_links} is less than the {len(inner)} used",
    )


def _check_detail(tile: NavMeshTile, source: str) -> None:
    detail = tile.detail_meshes
    _need(len(detail) == len(tile.polys), source, "detailMeshCount", f"{len(detail)} must equal polyCount")
    _need(_sane(tile.detail_verts), source, "detailVerts", "coordinates must be finite and within 1e6 m")
    own = detail["vert_count"].astype(np.int64)
    last = detail["vert_base"].astype(np.int64) + own
    _need((last[own > 0] <= len(tile.detail_verts)).all(), source, "detailMeshes.vertBase", "out of range")
    begin, size = detail["tri_base"].astype(np.int64), detail["tri_count"].astype(np.int64)
    _need((begin + size <= len(tile.detail_tris)).all(), source, "detailMeshes.triBase", "out of range")
    owned = numbers_from(begin, size)
    _need(np.bincount(owned, minlength=1).max() <= 1, source, "detailMeshes.triBase", "polygons share triangles")
    room = np.repeat(tile.polys["vert_count"] + own, size)
    ids = tile.detail_tris[owned, :3]
    _need((ids < room[:, None]).all(), source, "detailTris", "a vertex index is out of range")
