"""Reading and writing `.navmesh` files of habitat-sim: version 1 (without settings) and version 2.

Little-endian. A set header (magic, version, number of tiles, placement parameters), from version 2 the settings,
then a reference and a size, then a Detour tile (layout of Detour, Mikko Mononen, zlib license).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.navmesh.tiles.tile import DETAIL, LINK, NODE, POLY, NavMeshTile
from envs.embedded.navmesh.tiles.tile_check import check_tile
from vlnbench.errors import UsageError
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.limits import regular

_SET_MAGIC, _TILE_MAGIC = 0x4D534554, 0x444E4156
_NEWEST, _TILE_VERSION = 2, 7
_SET_HEADER = struct.Struct("<iii3fffii")
_SETTINGS = struct.Struct("<13f4?")
_TILE_PREFIX = struct.Struct("<Ii")
_TILE_HEADER = struct.Struct("<5iI9i3f3f3ff")
_COUNTS = (
    "polyCount",
    "vertCount",
    "maxLinkCount",
    "detailMeshCount",
    "detailVertCount",
    "detailTriCount",
    "bvNodeCount",
)
_SECTIONS: tuple[tuple[str, Any], ...] = (
    ("vertCount", np.dtype(("<f4", 3))),
    ("polyCount", POLY),
    ("maxLinkCount", LINK),
    ("detailMeshCount", DETAIL),
    ("detailVertCount", np.dtype(("<f4", 3))),
    ("detailTriCount", np.dtype(("u1", 4))),
    ("bvNodeCount", NODE),
)


class _Bytes:
    """The content of a file, taken from front to back."""

    def __init__(self, source: Path) -> None:
        self.source = source
        try:
            self.data = regular(source).read_bytes()
        except OSError as error:
            raise UsageError(f"{source}: cannot read the navmesh: {error.strerror}; check the path") from error
        self.at = 0

    def fail(self, field: str, problem: str) -> UsageError:
        return UsageError(f"{self.source}: {field}: {problem}; take another copy of the navmesh or rebuild it")

    def take(self, layout: struct.Struct, field: str) -> tuple[Any, ...]:
        if self.at + layout.size > len(self.data):
            raise self.fail(field, f"the file ends after {len(self.data)} bytes, in the middle of this part")
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return values

    def array(self, dtype: Any, count: int) -> NDArray[Any]:
        dtype, shape = (dtype.subdtype[0], dtype.subdtype[1]) if dtype.subdtype else (dtype, ())
        number = count * int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(self.data, dtype, number, self.at).reshape(count, *shape).copy()
        self.at += values.nbytes
        return values


def read_navmesh(source: str | Path) -> tuple[NavMeshTile, NavMeshSettings]:
    """Read a `.navmesh` file; version 1 files get the default settings, as habitat-sim assumes.

    Raises UsageError naming the file and the field if it cannot be read, is cut off, is not a navmesh of one tile
    or holds an impossible number.
    """
    data = _Bytes(Path(source))
    magic, version, tiles, *placement = data.take(_SET_HEADER, "set header")
    if magic != _SET_MAGIC:
        raise data.fail("magic", f"{magic:#x} is not a navmesh set ({_SET_MAGIC:#x})")
    if not 1 <= version <= _NEWEST:
        raise data.fail("version", f"{version} is not one of 1 and 2")
    if tiles != 1:
        raise data.fail(
            "numTiles", f"{tiles} tiles; only navmeshes of one tile, as habitat-sim writes them, are read"
        )
    settings = NavMeshSettings() if version == 1 else _read_settings(data)
    reference, size = data.take(_TILE_PREFIX, "tile header")
    if size != len(data.data) - data.at:
        raise data.fail("dataSize", f"{size} bytes announced, {len(data.data) - data.at} follow")
    return check_tile(_read_tile(data, placement, reference), str(source)), settings


def _read_settings(data: _Bytes) -> NavMeshSettings:
    values = data.take(_SETTINGS, "settings")
    try:
        return NavMeshSettings(*values)
    except UsageError as error:
        raise data.fail("settings", str(error)) from error


def _read_tile(data: _Bytes, placement: list[Any], reference: int) -> NavMeshTile:
    begin = data.at
    header = data.take(_TILE_HEADER, "tile")
    magic, version, x, y, layer, user_id = header[:6]
    counts = dict(zip(_COUNTS, header[6:13], strict=True))
    off_mesh, floats = header[13], header[15:]
    if magic != _TILE_MAGIC:
        raise data.fail("tile magic", f"{magic:#x} is not a Detour tile ({_TILE_MAGIC:#x})")
    if version != _TILE_VERSION:
        raise data.fail("tile version", f"{version} is not {_TILE_VERSION}")
    if off_mesh != 0:
        raise data.fail("offMeshConCount", f"{off_mesh}; off-mesh connections are not supported")
    for field, count in counts.items():
        if count < 0:
            raise data.fail(field, f"{count} is negative")
    needed = _TILE_HEADER.size + sum(counts[field] * dtype.itemsize for field, dtype in _SECTIONS)
    if needed != len(data.data) - begin:
        raise data.fail("tile counts", f"they need {needed} bytes, the tile has {len(data.data) - begin}")
    sections = [data.array(dtype, counts[field]) for field, dtype in _SECTIONS]
    verts, polys, _, detail_meshes, detail_verts, detail_tris, nodes = sections
    return NavMeshTile(
        verts=verts,
        polys=polys,
        detail_meshes=detail_meshes,
        detail_verts=detail_verts,
        detail_tris=detail_tris,
        bv_nodes=nodes,
        bmin=np.array(floats[3:6], dtype=np.float32),
        bmax=np.array(floats[6:9], dtype=np.float32),
        quant=floats[9],
        body=floats[0:3],
        max_links=counts["maxLinkCount"],
        origin=np.array(placement[:3], dtype=np.float32),
        extent=(placement[3], placement[4]),
        max_tiles=placement[5],
        max_polys=placement[6],
        reference=reference,
        place=(x, y),
        layer=layer,
        user_id=user_id,
    )


def navmesh_bytes(tile: NavMeshTile, settings: NavMeshSettings) -> bytes:
    """Content of a version 2 file, byte for byte what habitat-sim saves for this tile."""
    polys, links = tile.linked()
    sections: tuple[NDArray[Any], ...] = (
        tile.verts,
        polys,
        links,
        tile.detail_meshes,
        tile.detail_verts,
        tile.detail_tris,
        tile.bv_nodes,
    )
    sizes = {field: len(section) for (field, _), section in zip(_SECTIONS, sections, strict=True)}
    header = _TILE_HEADER.pack(
        _TILE_MAGIC,
        _TILE_VERSION,
        *tile.place,
        tile.layer,
        tile.user_id,
        *(sizes[field] for field in _COUNTS),
        0,
        len(tile.polys),
        *tile.body,
        *tile.bmin,
        *tile.bmax,
        tile.quant,
    )
    body = header + b"".join(section.tobytes() for section in sections)
    numbers = [getattr(settings, name) for name in (*settings.number_names(), *settings.flag_names())]
    return b"".join(
        (
            _SET_HEADER.pack(_SET_MAGIC, _NEWEST, 1, *tile.origin, *tile.extent, tile.max_tiles, tile.max_polys),
            _SETTINGS.pack(*numbers),
            _TILE_PREFIX.pack(tile.reference, len(body)),
            body,
        )
    )


def write_navmesh(target: str | Path, tile: NavMeshTile, settings: NavMeshSettings) -> None:
    """Write a version 2 file, all of it or nothing.

    Raises UsageError if the folder is missing or not writable.
    """
    target = Path(target)
    content = navmesh_bytes(tile, settings)
    try:
        write_bytes(target, content)
    except OSError as error:
        raise UsageError(f"{target}: cannot write the navmesh: {error.strerror}; check the folder") from error
