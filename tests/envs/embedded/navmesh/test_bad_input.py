"""Meshes and settings that no navmesh comes from: one clear line, or a navmesh whose queries answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.embedded.assets import SceneAssets
from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from tests.envs.embedded.navmesh.test_build import BODY, Mesh, box, floor, room
from tests.envs.embedded.render.glb_writer import GlbWriter
from vlnbench.errors import UsageError

ROOM = room(4, 3, box(1, 0, 1, 2, 1, 2))


def answers_or_refuses(mesh: Mesh, body: NavMeshSettings) -> None:
    """Build and ask; anything but a UsageError of one line, or a place outside the box, fails."""
    try:
        pathfinder = PathFinder.from_polymesh(*build_polymesh(*mesh, body), body)
    except UsageError as error:
        if "\n" in str(error):
            raise
        return
    low, high = pathfinder.get_bounds()
    slack = np.array([1e-3, body.cell_height, 1e-3])  # heights are rounded to whole cells, upwards
    a, b = low + 0.3 * (high - low), low + 0.8 * (high - low)
    assert pathfinder.find_path(a, b).geodesic_distance >= 0
    assert pathfinder.distance_to_closest_obstacle(a) >= 0
    for point in (pathfinder.snap_point(a), pathfinder.try_step(a, b), pathfinder.try_step_no_sliding(a, b)):
        assert np.isnan(point).all() or ((point >= low - slack) & (point <= high + slack)).all()
    pathfinder.is_navigable(b)


def number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.one_of(st.floats(low, high), st.sampled_from([0.0, 1e-30, 1e6, -1.0, float("nan"), float("inf")]))


odd_settings = st.fixed_dictionaries(
    {},
    optional={
        "cell_size": number(0.04, 5),
        "cell_height": number(0.02, 5),
        "agent_height": number(0.01, 4),
        "agent_radius": number(0, 3),
        "agent_max_climb": number(0, 4),
        "agent_max_slope": number(0, 90),
        "region_min_size": number(0, 100),
        "region_merge_size": number(0, 100),
        "edge_max_len": number(0, 100),
        "edge_max_error": number(0, 50),
        "verts_per_poly": number(3, 6),
        "detail_sample_dist": number(0, 50),
        "detail_sample_max_error": number(0, 50),
        "filter_low_hanging_obstacles": st.booleans(),
        "filter_ledge_spans": st.booleans(),
        "filter_walkable_low_height_spans": st.booleans(),
    },
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(odd_settings)
def test_any_settings_build_or_are_refused(fields: dict[str, float]) -> None:
    try:
        body = NavMeshSettings(**fields)  # type: ignore[arg-type]
    except UsageError as error:
        if not str(error).startswith("navmesh setting "):
            raise
        return
    answers_or_refuses(ROOM, body)


coordinates = st.one_of(
    st.floats(-3, 3, width=32),
    st.sampled_from([0.0, 1.0, 1.0, -1.0, 1e-30, 40.0, 1e4, 1e6, -3e38, float("nan"), float("inf")]).map(
        np.float32
    ),
)
ordinary = st.one_of(st.floats(-3, 3, width=32), st.sampled_from([0.0, 1.0]))


@pytest.mark.parametrize("values", [coordinates, ordinary], ids=["extreme", "ordinary"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_mesh_builds_or_is_refused(values: st.SearchStrategy[float], data: st.DataObject) -> None:
    points = data.draw(st.lists(st.tuples(values, values, values), min_size=1, max_size=12))
    corner = st.integers(0, len(points) - 1)
    triangles = data.draw(st.lists(st.tuples(corner, corner, corner), min_size=1, max_size=12))
    body = replace(BODY, cell_size=0.1, region_min_size=2.0)
    answers_or_refuses((np.array(points, np.float32), np.array(triangles, np.int32)), body)


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("across", [0.0, 0.02])
def test_walls_alone_have_no_floor(axis: int, across: float) -> None:
    # Thinner than half a cell: the grid has no column at all.
    vertices, triangles = box(0, 0, 0, 3, 2, 3)
    vertices[:, axis] *= across / 3
    with pytest.raises(UsageError, match="narrower than half a cell"):
        build_polymesh(vertices, triangles, BODY)


def test_cells_larger_than_the_scene_are_refused() -> None:
    with pytest.raises(UsageError, match="reduce cell_size"):
        build_polymesh(*ROOM, replace(BODY, cell_size=1000.0))


def test_a_grid_of_a_thousand_million_cells_is_refused() -> None:
    with pytest.raises(UsageError, match=r"needs 3\.2e\+04 x 3\.2e\+04 cells"):
        build_polymesh(*floor(0, 0, 1600, 1600), BODY)


def test_a_scene_without_floor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLNBENCH_CACHE", str(tmp_path / "cache"))
    writer = GlbWriter()
    for x, y in ((3, 0), (0, 3)):  # a bare file is z up: two walls
        writer.mesh([[0, 0, 0], [x, y, 0], [x, y, 2]])
    scene = writer.save(tmp_path / "walls.glb")
    with pytest.raises(UsageError, match=r"walls\.glb: navmesh: no walkable surface") as error:
        SceneAssets(scene).pathfinder(BODY)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cache" / "navmeshes").exists()
