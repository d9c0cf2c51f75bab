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
from envs.embedded.navmesh.tiles.tile import make_tile
from envs.embedded.navmesh.tiles.tile_file import navmesh_bytes, read_navmesh
from envs.embedded.render.scene import load_scene

BODIES = ("r010_h150", "r018_h088", "r020_h150")


def scene_mesh(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Vertices in the world frame and triangles, as the simulator loads them."""
    scene = load_scene(path)
    return scene.vertices, scene.triangles


def assert_builds(scene: Path, recorded: Path) -> None:
    """The file built with the recorded settings is the recorded one, byte for byte."""
    _, settings = read_navmesh(recorded)
    mesh, detail = build_polymesh(*scene_mesh(scene), settings)
    assert navmesh_bytes(make_tile(mesh, detail, settings), settings) == recorded.read_bytes(), scene.name


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("scene", ["house_a", "simple_room", "corridor_1LXtFkjw3qL"])
def test_equals_recorded_navmesh(shared: Path, scene: str, body: str) -> None:
    """The nodes of `simple_room` turn, scale and mirror their meshes."""
    folder = shared / "goldens" / "habitat_sim" / scene
    assert_builds(next(folder.glob("*.glb")), folder / f"navmesh_{body}.navmesh")


def corridors(shared: Path) -> Iterator[Path]:
    folder = shared / "data" / "scene_datasets" / "mp3d"
    paths = sorted(folder.glob("*/*.glb"))
    if not paths:
        pytest.skip(f"no scenes in {folder}")
    yield from paths


def test_equals_every_corridor_navmesh(shared: Path) -> None:
    for path in corridors(shared):
        assert_builds(path, path.with_suffix(".navmesh"))


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
