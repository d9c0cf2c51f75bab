"""Tiles and `.navmesh` files: same bytes as habitat-sim, and no broken file gets through."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.sample import square_room
from envs.embedded.navmesh.tiles.islands import prepare
from envs.embedded.navmesh.tiles.polymesh import NO_INDEX, WALKABLE_AREA, DetailMesh, PolyMesh
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.navmesh.tiles.tile import DISABLED, NavMeshTile, make_tile
from envs.embedded.navmesh.tiles.tile_check import check_tile
from envs.embedded.navmesh.tiles.tile_file import navmesh_bytes, read_navmesh, write_navmesh
from vlnbench.errors import UsageError

ROOM = make_tile(*square_room())
FILE = navmesh_bytes(ROOM, NavMeshSettings())
TILE_AT = 40 + 56 + 8


def recorded_files(shared: Path) -> list[Path]:
    files = sorted((shared / "goldens" / "habitat_sim").glob("*/*.navmesh"))
    assert len(files) == 9
    return files


def polymesh_of(tile: NavMeshTile, config: NavMeshSettings) -> tuple[PolyMesh, DetailMesh]:
    """The polygon and detail mesh from which Recast made a tile."""
    cell = np.array([config.cell_size, config.cell_height, config.cell_size], dtype=np.float32)
    verts = np.rint((tile.verts - tile.bmin) / cell).astype(np.uint16)
    used = np.arange(6)[None, :] < tile.polys["vert_count"][:, None]
    polys = np.full((len(tile.polys), 12), NO_INDEX, dtype=np.uint16)
    neighbors = tile.polys["neis"].astype(np.int64)
    polys[:, :6][used] = tile.polys["verts"][used]
    polys[:, 6:][used] = np.where(neighbors == 0, NO_INDEX, neighbors - 1)[used]
    lift = tile.bmin + np.array([0.0, cell[1], 0.0], dtype=np.float32)
    points: list[NDArray[Any]] = []
    meshes = []
    for poly, detail in zip(tile.polys, tile.detail_meshes, strict=True):
        corners = verts[poly["verts"][: poly["vert_count"]]].astype(np.float32) * cell + lift
        extra = tile.detail_verts[detail["vert_base"] :][: detail["vert_count"]]
        meshes.append((len(points), len(corners) + len(extra), detail["tri_base"], detail["tri_count"]))
        points += [*corners, *extra]
    areas = np.full(len(polys), WALKABLE_AREA, dtype=np.uint8)
    mesh = PolyMesh(verts, polys, areas, tile.bmin, tile.bmax, config.cell_size, config.cell_height, 6)
    return mesh, DetailMesh(np.array(meshes, np.uint32), np.array(points, np.float32), tile.detail_tris)


def test_recorded_files_survive_a_round_trip(shared: Path, tmp_path: Path) -> None:
    for file in recorded_files(shared):
        PathFinder.load(file).save(tmp_path / "copy.navmesh")
        assert (tmp_path / "copy.navmesh").read_bytes() == file.read_bytes()


def test_tiles_made_from_polygons_equal_the_recorded_ones(shared: Path) -> None:
    for file in recorded_files(shared):
        tile, config = read_navmesh(file)
        made, _ = prepare(make_tile(*polymesh_of(tile, config), config))
        assert navmesh_bytes(made, config) == file.read_bytes()


def test_version_1_files_have_no_settings(tmp_path: Path) -> None:
    old = tmp_path / "old.navmesh"
    old.write_bytes(FILE[:4] + struct.pack("<i", 1) + FILE[8:40] + FILE[96:])
    tile, config = read_navmesh(old)
    assert config == NavMeshSettings()
    assert navmesh_bytes(tile, config) == FILE


def test_settings_are_kept(tmp_path: Path) -> None:
    config = NavMeshSettings(agent_radius=0.25, filter_ledge_spans=False, include_static_objects=True)
    write_navmesh(tmp_path / "room.navmesh", ROOM, config)
    assert read_navmesh(tmp_path / "room.navmesh")[1].matches(config)


def test_tiny_polygons_are_disabled() -> None:
    flat = replace(ROOM, verts=ROOM.verts * np.array([1.0, 1.0, 1e-6], dtype=np.float32))
    tile, islands = prepare(flat)
    assert tile.polys["flags"].tolist() == [DISABLED, DISABLED]
    assert islands.area.tolist() == [0.0]
    assert ROOM.polys["flags"].tolist() == [1, 1]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "gone" / "room.navmesh"
    with pytest.raises(UsageError, match=r"gone/room\.navmesh: cannot write"):
        write_navmesh(target, ROOM, NavMeshSettings())
    kept = tmp_path / "folder.navmesh"
    kept.mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        write_navmesh(kept, ROOM, NavMeshSettings())
    assert [path.name for path in tmp_path.iterdir()] == ["folder.navmesh"]


@pytest.mark.parametrize(
    ("at", "value", "field"),
    [
        (0, "<i", "magic"),
        (4, "<i", "version"),
        (8, "<i", "numTiles"),
        (32, "<i", "maxTiles"),
        (36, "<i", "maxPolys"),
        (40, "<f", "settings"),
        (96, "<i", "tileRef"),
        (100, "<i", "dataSize"),
        (TILE_AT, "<i", "tile magic"),
        (TILE_AT + 4, "<i", "tile version"),
        (TILE_AT + 24, "<i", "polyCount"),
        (TILE_AT + 32, "<i", "maxLinkCount"),
        (TILE_AT + 52, "<i", "offMeshConCount"),
        (TILE_AT + 72, "<f", "bmin"),
        (TILE_AT + 96, "<f", "bvQuantFactor"),
        (TILE_AT + 100, "<f", "verts"),
        (TILE_AT + 148 + 4, "<H", "polys.verts"),
        (TILE_AT + 148 + 16, "<H", "polys.neis"),
        (TILE_AT + 148 + 30, "<B", "polys.vertCount"),
        (TILE_AT + 148 + 31, "<B", "polys.type"),
    ],
)
def test_impossible_values_name_file_and_field(tmp_path: Path, at: int, value: str, field: str) -> None:
    broken = tmp_path / "broken.navmesh"
    extreme = {"<i": -5, "<f": float("nan"), "<H": 0x7FFE, "<B": 200}[value]
    content = bytearray(FILE)
    struct.pack_into(value, content, at, extreme)
    broken.write_bytes(content)
    with pytest.raises(UsageError, match=rf"broken\.navmesh: {field}: ") as error:
        PathFinder.load(broken)
    assert "\n" not in str(error.value)


def test_indices_out_of_range_are_found() -> None:
    def broken(section: str, field: str | None, index: int, value: int) -> NavMeshTile:
        values = getattr(ROOM, section).copy()
        (values if field is None else values[field])[index] = value
        return replace(ROOM, **{section: values})

    cases = (
        (broken("detail_meshes", "tri_base", 1, 2), "detailMeshes.triBase"),
        (broken("detail_meshes", "tri_base", 1, 0), "detailMeshes.triBase"),
        (broken("detail_meshes", "vert_count", 0, 1), "detailMeshes.vertBase"),
        (broken("detail_tris", None, 1, 3), "detailTris"),
        (broken("bv_nodes", "i", 1, 2), "bvTree"),
        (broken("bv_nodes", "i", 0, -5), "bvTree"),
        (replace(ROOM, bv_nodes=ROOM.bv_nodes[:0]), "bvNodeCount"),
        (replace(ROOM, max_links=1), "maxLinkCount"),
        (replace(ROOM, detail_meshes=ROOM.detail_meshes[:1]), "detailMeshCount"),
        (replace(ROOM, extent=(0.0, 1.0)), "tileWidth"),
    )
    assert check_tile(ROOM, "room") is ROOM
    for tile, field in cases:
        with pytest.raises(UsageError, match=f"room: {field}: "):
            check_tile(tile, "room")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.navmesh: cannot read"):
        PathFinder.load(tmp_path / "none.navmesh")
