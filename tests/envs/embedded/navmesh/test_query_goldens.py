"""Every recorded query of habitat-sim, asked again. Equality is to the bit up to a rounding slack of 1e-6."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.embedded.navmesh.pathfinder import PathFinder

SCENES = ("house_a", "simple_room", "corridor_1LXtFkjw3qL")
BODIES = ("r010_h150", "r018_h088", "r020_h150")
SLACK = 1e-6


class Recorded(NamedTuple):
    pathfinder: PathFinder
    queries: dict[str, NDArray[Any]]
    facts: dict[str, Any]


@pytest.fixture(scope="module", params=[(scene, body) for scene in SCENES for body in BODIES], ids="-".join)
def recorded(request: pytest.FixtureRequest, shared: Path) -> Recorded:
    scene, body = request.param
    folder = shared / "goldens" / "habitat_sim" / scene
    with np.load(folder / f"queries_{body}.npz") as file:
        queries = dict(file)
    facts = json.loads((folder / "navmesh.json").read_text())["bodies"][body]
    return Recorded(PathFinder.load(folder / f"navmesh_{body}.navmesh"), queries, facts)


def assert_points(ours: list[NDArray[np.float32]], theirs: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(np.array(ours), theirs, rtol=0, atol=SLACK)


def test_paths(recorded: Recorded) -> None:
    pathfinder, q, _ = recorded
    paths = [pathfinder.find_path(a, b) for a, b in zip(q["pair_start"], q["pair_end"], strict=True)]
    distances = [path.geodesic_distance for path in paths]
    np.testing.assert_array_equal(np.isfinite(distances), q["pair_found"])
    np.testing.assert_allclose(distances, q["pair_geodesic"], rtol=SLACK)
    assert [len(path.points) for path in paths] == q["pair_npoints"].tolist()
    offsets = q["path_offsets"]
    first = [path.points for path in paths[: len(offsets) - 1]]
    assert_points(list(np.concatenate(first)), q["path_points"])


def test_distances_equal_paths(recorded: Recorded) -> None:
    pathfinder, q, _ = recorded
    distances = [pathfinder.geodesic_distance(a, b) for a, b in zip(q["pair_start"], q["pair_end"], strict=True)]
    np.testing.assert_allclose(distances, q["pair_geodesic"], rtol=SLACK)
    for start, ends, distance in zip(q["multi_start"], q["multi_ends"], q["multi_geodesic"], strict=True):
        batch = pathfinder.geodesic_distances([start, start], ends)
        np.testing.assert_allclose(batch, [distance, distance], rtol=SLACK)


def test_several_goals(recorded: Recorded) -> None:
    pathfinder, q, _ = recorded
    paths = [pathfinder.find_path_multi(a, b) for a, b in zip(q["multi_start"], q["multi_ends"], strict=True)]
    np.testing.assert_allclose([path.geodesic_distance for path in paths], q["multi_geodesic"], rtol=SLACK)
    assert [path.closest_end_index for path in paths] == q["multi_index"].tolist()


def test_snapping_and_islands(recorded: Recorded) -> None:
    pathfinder, q, _ = recorded
    island = int(q["snap_island_index"])
    assert_points([pathfinder.snap_point(p) for p in q["snap_in"]], q["snap_out"])
    assert_points([pathfinder.snap_point(p, island) for p in q["snap_in"]], q["snap_out_island"])
    islands = [pathfinder.get_island(p) for p in q["snap_out"]]
    assert islands == q["snap_get_island"].tolist()


def test_steps(recorded: Recorded) -> None:
    pathfinder, q, _ = recorded
    moves = list(zip(q["step_start"], q["step_end"], strict=True))
    assert_points([pathfinder.try_step(a, b) for a, b in moves], q["step_out"])
    assert_points([pathfinder.try_step_no_sliding(a, b) for a, b in moves], q["step_out_no_sliding"])


def test_obstacles(recorded: Recorded) -> None:
    pathfinder, q, _ = recorded
    hits = [pathfinder.closest_obstacle_surface_point(p, 2.0) for p in q["obstacle_in"]]
    distances = [pathfinder.distance_to_closest_obstacle(p, 2.0) for p in q["obstacle_in"]]
    np.testing.assert_allclose(distances, q["obstacle_distance"], rtol=SLACK)
    np.testing.assert_allclose([hit.hit_dist for hit in hits], q["obstacle_hit_dist"], rtol=SLACK)
    assert_points([hit.hit_pos for hit in hits], q["obstacle_hit_pos"])
    real = (q["obstacle_hit_dist"] > 0) & (q["obstacle_hit_dist"] < 2)
    normals = np.array([hit.hit_normal for hit in hits])
    assert_points(list(normals[real]), q["obstacle_hit_normal"][real])


def test_navigability(recorded: Recorded) -> None:
    pathfinder, q, _ = recorded
    assert [pathfinder.is_navigable(p) for p in q["nav_in"]] == q["nav_out"].tolist()
    assert [pathfinder.is_navigable(p, 0.1) for p in q["nav_in"]] == q["nav_out_dy01"].tolist()


def test_top_down_views(recorded: Recorded) -> None:
    pathfinder, q, _ = recorded
    levels = [k for k in range(3) if f"topdown{k}_height" in q]
    assert levels
    for k in levels:
        height, shape = float(q[f"topdown{k}_height"]), tuple(q[f"topdown{k}_shape"])
        cells = np.unpackbits(q[f"topdown{k}_bits"])[: shape[0] * shape[1]].reshape(shape).astype(bool)
        np.testing.assert_array_equal(pathfinder.get_topdown_view(0.05, height), cells)
        islands = pathfinder.get_topdown_island_view(0.05, height)
        np.testing.assert_array_equal(islands, q[f"topdown{k}_islands"])


def test_navmesh_facts(recorded: Recorded) -> None:
    pathfinder, q, facts = recorded
    np.testing.assert_array_equal(pathfinder.build_navmesh_vertices(), q["nav_vertices"])
    np.testing.assert_array_equal(pathfinder.get_bounds(), q["bounds"])
    assert pathfinder.num_islands == facts["num_islands"]
    islands = range(pathfinder.num_islands)
    np.testing.assert_allclose([pathfinder.island_area(k) for k in islands], facts["island_area"], rtol=SLACK)
    np.testing.assert_allclose([pathfinder.island_radius(k) for k in islands], facts["island_radius"], rtol=SLACK)
    assert pathfinder.navigable_area == pytest.approx(facts["navigable_area"], rel=SLACK)
    parts = sum(len(pathfinder.build_navmesh_vertices(k)) for k in islands)
    assert parts == len(q["nav_vertices"])
    for name, value in facts["settings"].items():
        assert getattr(pathfinder.settings, name) == value
