"""Our builds against `.navmesh` files that habitat-sim built from the same scenes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.polymesh import DetailMesh, PolyMesh
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.navmesh.tiles.tile import NavMeshTile, make_tile
from envs.embedded.navmesh.tiles.tile_file import read_navmesh
from envs.embedded.render.scene import load_scene

BODIES = ("r010_h150", "r018_h088", "r020_h150")


def scene_mesh(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Vertices in the world frame and triangles, as the simulator loads them."""
    scene = load_scene(path)
    return scene.vertices, scene.triangles


def assert_same_tile(mesh: PolyMesh, detail: DetailMesh, settings: NavMeshSettings, recorded: NavMeshTile) -> None:
    ours = make_tile(mesh, detail, settings)
    for name in ("verts", "detail_verts", "detail_tris", "bmin", "bmax"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(recorded, name), err_msg=name)
    for name in ("verts", "neis", "count", "vert_count"):
        if name in recorded.polys.dtype.names:
            np.testing.assert_array_equal(ours.polys[name], recorded.polys[name], err_msg=name)
    np.testing.assert_array_equal(ours.bv_nodes, recorded.bv_nodes)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("scene", ["house_a", "corridor_1LXtFkjw3qL"])
def test_equals_recorded_navmesh(shared: Path, scene: str, body: str) -> None:
    folder = shared / "goldens" / "habitat_sim" / scene
    recorded, settings = read_navmesh(folder / f"navmesh_{body}.navmesh")
    vertices, triangles = scene_mesh(next(folder.glob("*.glb")))
    assert_same_tile(*build_polymesh(vertices, triangles, settings), settings, recorded)


@pytest.mark.parametrize("body", BODIES)
def test_equals_recorded_navmesh_of_moved_nodes(shared: Path, body: str) -> None:
    # Node transforms round differently here, so coordinates may differ by a few units in the last place.
    folder = shared / "goldens" / "habitat_sim" / "simple_room"
    recorded, settings = read_navmesh(folder / f"navmesh_{body}.navmesh")
    mesh, detail = build_polymesh(*scene_mesh(folder / "simple_room.glb"), settings)
    ours = make_tile(mesh, detail, settings)
    np.testing.assert_allclose(ours.verts, recorded.verts, atol=2e-6)
    np.testing.assert_array_equal(ours.polys["verts"], recorded.polys["verts"])
    np.testing.assert_array_equal(ours.polys["neis"], recorded.polys["neis"])
    np.testing.assert_array_equal(ours.detail_tris, recorded.detail_tris)


def corridors(shared: Path) -> Iterator[Path]:
    folder = shared / "data" / "scene_datasets" / "mp3d"
    paths = sorted(folder.glob("*/*.glb"))
    if not paths:
        pytest.skip(f"no scenes in {folder}")
    yield from paths


def test_equals_every_corridor_navmesh(shared: Path) -> None:
    for path in corridors(shared):
        recorded, settings = read_navmesh(path.with_suffix(".navmesh"))
        assert_same_tile(*build_polymesh(*scene_mesh(path), settings), settings, recorded)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("scene", ["house_a", "simple_room", "corridor_1LXtFkjw3qL"])
def test_areas_and_geodesics(shared: Path, scene: str, body: str) -> None:
    folder = shared / "goldens" / "habitat_sim" / scene
    facts = json.loads((folder / "navmesh.json").read_text("utf-8"))["bodies"][body]
    _, settings = read_navmesh(folder / f"navmesh_{body}.navmesh")
    built = build_polymesh(*scene_mesh(next(folder.glob("*.glb"))), settings)
    pathfinder = PathFinder.from_polymesh(*built, settings)
    assert pathfinder.num_islands == facts["num_islands"]
    assert pathfinder.navigable_area == pytest.approx(facts["navigable_area"], rel=1e-5)
    areas = [pathfinder.island_area(island) for island in range(pathfinder.num_islands)]
    assert areas == pytest.approx(facts["island_area"], rel=1e-4, abs=1e-5)
    with np.load(folder / f"queries_{body}.npz") as queries:
        starts, ends, distances = queries["pair_start"], queries["pair_end"], queries["pair_geodesic"]
    ours = [pathfinder.geodesic_distance(start, end) for start, end in zip(starts, ends, strict=True)]
    np.testing.assert_allclose(ours, distances, rtol=1e-5, atol=1e-5)
