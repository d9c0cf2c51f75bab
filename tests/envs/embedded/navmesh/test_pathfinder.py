"""The PathFinder's own promises, on a square room and on a recorded house."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from envs.embedded.navmesh import warm_up
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.sample import square_room
from envs.embedded.navmesh.tiles.polymesh import DetailMesh, PolyMesh
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from vlnbench.errors import UsageError

ROOM = PathFinder.from_polymesh(*square_room())
inside = st.floats(0.0625, 1.9375, width=32)


def two_rooms() -> PathFinder:
    """Two square rooms side by side without a door, one meter apart."""
    mesh, detail, config = square_room()
    polys = np.concatenate([mesh.polys, mesh.polys])
    polys[2:, :3] += 4
    polys[2, 6 + 2], polys[3, 6 + 0] = 3, 2
    shift = np.array([60, 0, 0])
    verts = np.concatenate([mesh.verts, mesh.verts + shift]).astype(np.uint16)
    extra = detail.meshes + np.array([6, 0, 2, 0])
    doubled = PolyMesh(
        verts,
        polys,
        np.concatenate([mesh.areas, mesh.areas]),
        mesh.bmin,
        np.array([5.0, 1.6, 2.0], dtype=np.float32),
        mesh.cell_size,
        mesh.cell_height,
        mesh.nvp,
    )
    heights = DetailMesh(
        np.concatenate([detail.meshes, extra]).astype(np.uint32),
        np.concatenate([detail.verts, detail.verts + shift * np.float32(0.05)]).astype(np.float32),
        np.concatenate([detail.tris, detail.tris]),
    )
    return PathFinder.from_polymesh(doubled, heights, config)


def test_islands() -> None:
    rooms = two_rooms()
    left, right = (1.0, 0.0, 1.0), (4.0, 0.0, 1.0)
    assert rooms.num_islands == 2
    assert (rooms.get_island(left), rooms.get_island(right)) == (0, 1)
    assert rooms.island_area(0) == pytest.approx(4.0)
    assert rooms.navigable_area == pytest.approx(8.0)
    # The two triangles count their corners one by one, so the mean is the middle and a corner is furthest.
    assert rooms.island_radius(1) == pytest.approx(2.0**0.5, rel=1e-5)
    assert rooms.find_path(left, right).geodesic_distance == np.inf
    np.testing.assert_array_equal(rooms.try_step(left, right), np.float32(left))
    np.testing.assert_allclose(rooms.snap_point(left, 1), (3.0, 0.0, 1.0), atol=1e-6)
    assert len(rooms.build_navmesh_vertices(1)) == 6
    view = rooms.get_topdown_island_view(0.5, 0.0)
    assert view.shape == (4, 10)
    assert set(view.ravel().tolist()) == {-1, 0, 1}


def corridor(length: int) -> PathFinder:
    """A straight corridor of `length` square polygons, a quarter of a meter each."""
    _, _, config = square_room()
    near = np.stack([np.arange(length + 1) * 5, np.zeros(length + 1), np.zeros(length + 1)], axis=1)
    verts = np.stack([near, near + np.array([0, 0, 5])], axis=1).reshape(-1, 3).astype(np.uint16)
    polys = np.full((length, 12), 0xFFFF, dtype=np.uint16)
    first = 2 * np.arange(length)
    polys[:, :4] = np.stack([first, first + 1, first + 3, first + 2], axis=1)
    polys[1:, 6] = np.arange(length - 1)
    polys[:-1, 8] = np.arange(1, length)
    mesh = PolyMesh(
        verts,
        polys,
        np.full(length, 63, dtype=np.uint8),
        np.zeros(3, dtype=np.float32),
        np.array([length * 0.25, 1.6, 0.25], dtype=np.float32),
        config.cell_size,
        config.cell_height,
        6,
    )
    corners = verts[polys[:, :4]].reshape(-1, 3).astype(np.float32) * np.float32([0.05, 0.2, 0.05])
    meshes = np.stack([first * 2, np.full(length, 4), first, np.full(length, 2)], axis=1).astype(np.uint32)
    tris = np.tile(np.array([[0, 1, 2, 0b000101], [0, 2, 3, 0b010100]], dtype=np.uint8), (length, 1))
    return PathFinder.from_polymesh(mesh, DetailMesh(meshes, corners, tris), config)


def test_long_paths_and_steps_end_where_detour_gives_up() -> None:
    hall = corridor(300)
    start, last_found = (0.1, 0.0, 0.1), (255 * 0.25 + 0.1, 0.0, 0.1)
    found = hall.find_path(start, last_found)
    assert found.geodesic_distance == pytest.approx(255 * 0.25, rel=1e-5)
    np.testing.assert_allclose(found.points, [start, last_found], rtol=1e-6)
    one_further = (256 * 0.25 + 0.1, 0.0, 0.1)
    assert hall.geodesic_distance(start, one_further) == np.inf
    # A step looks at 64 polygons; beyond them it ends at the wall point nearest to where it was heading.
    assert hall.try_step(start, (15.0, 0.0, 0.1))[0] == pytest.approx(15.0)
    assert hall.try_step(start, (40.0, 0.0, 0.1))[0] == pytest.approx(16.0)


def test_nearest_of_several_goals() -> None:
    rooms = two_rooms()
    start, near, far, apart = (0.2, 0.0, 1.0), (0.7, 0.0, 1.0), (1.9, 0.0, 1.0), (3.1, 0.0, 1.0)
    best = rooms.find_path_multi(start, [apart, far, near])
    assert best.closest_end_index == 2
    assert best.geodesic_distance == pytest.approx(0.5, abs=1e-5)
    np.testing.assert_allclose(best.points, [start, near], atol=1e-6)
    assert rooms.geodesic_distance(start, [far, near]) == best.geodesic_distance
    assert rooms.geodesic_distances([start, apart], [far, near]).tolist() == [best.geodesic_distance, np.inf]
    nothing = rooms.find_path_multi(start, [apart, (np.nan, 0.0, 0.0)])
    assert (nothing.geodesic_distance, nothing.closest_end_index, len(nothing.points)) == (np.inf, -1, 0)
    reached = rooms.find_path_multi(start, [(np.nan, 0.0, 0.0), (np.inf, 0.0, 0.0), near])
    assert reached.closest_end_index == 2


@pytest.mark.parametrize("point", [(50.0, 0.0, 0.0), (1e30, 0.0, 1.0), (np.nan, 0.0, 1.0), (1.0, -np.inf, 1.0)])
def test_points_out_of_reach(point: tuple[float, float, float]) -> None:
    here = (1.0, 0.0, 1.0)
    assert np.isnan(ROOM.snap_point(point)).all()
    assert ROOM.get_island(point) == -1
    assert not ROOM.is_navigable(point)
    assert ROOM.find_path(point, here).geodesic_distance == np.inf
    assert ROOM.geodesic_distance(here, point) == np.inf
    np.testing.assert_array_equal(ROOM.try_step(here, point), here)
    assert ROOM.distance_to_closest_obstacle(point) == np.inf


@settings(max_examples=100, deadline=None)
@given(inside, inside, inside, inside)
def test_an_empty_room_has_straight_paths(ax: float, az: float, bx: float, bz: float) -> None:
    # Detour may place a point of a shared edge in neither polygon; a step then ends at a wall.
    assume(abs(ax - az) > 1e-4 and abs(bx - bz) > 1e-4)
    a, b = np.array([ax, 0.0, az]), np.array([bx, 0.0, bz])
    path = ROOM.find_path(a, b)
    assert path.geodesic_distance == pytest.approx(float(np.linalg.norm(a - b)), abs=3e-4)
    np.testing.assert_allclose(ROOM.try_step(a, b), b, atol=1e-6)
    np.testing.assert_allclose(ROOM.try_step_no_sliding(a, b), b, atol=1e-6)
    wall = min(ax, az, 2 - ax, 2 - az)
    assert ROOM.distance_to_closest_obstacle(a) == pytest.approx(wall, abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(st.tuples(*[st.floats(-1.5, 3.5, width=32)] * 3))
def test_snapping_ends_on_the_floor(point: tuple[float, float, float]) -> None:
    snapped = ROOM.snap_point(point)
    expected = (min(max(point[0], 0.0), 2.0), 0.0, min(max(point[2], 0.0), 2.0))
    # Squared distances tie in float32 when two candidates lie within about a millimeter of each other.
    np.testing.assert_allclose(snapped, expected, atol=2e-3)
    np.testing.assert_allclose(ROOM.snap_point(snapped), snapped, atol=1e-5)


def test_hits_have_normals_towards_the_point() -> None:
    hit = ROOM.closest_obstacle_surface_point((0.25, 0.0, 1.0))
    np.testing.assert_allclose(hit.hit_pos, (0.0, 0.0, 1.0), atol=1e-6)
    np.testing.assert_allclose(hit.hit_normal, (1.0, 0.0, 0.0), atol=1e-6)
    nothing = ROOM.closest_obstacle_surface_point((1.0, 0.0, 1.0), 0.5)
    assert nothing.hit_dist == 0.5
    np.testing.assert_array_equal(nothing.hit_pos, 0.0)


def random_points(pathfinder: PathFinder, number: int, island: int = -1) -> NDArray[np.float32]:
    return np.array([pathfinder.get_random_navigable_point(island) for _ in range(number)])


def test_random_points_are_spread_evenly() -> None:
    ROOM.seed(7)
    points = random_points(ROOM, 4000)
    cells, _, _ = np.histogram2d(points[:, 0], points[:, 2], bins=4, range=[[0, 2], [0, 2]])
    # Chi-square with 15 degrees of freedom: 37.7 is exceeded once in a thousand seeds.
    assert ((cells - 250.0) ** 2 / 250.0).sum() < 37.7
    ROOM.seed(7)
    np.testing.assert_array_equal(random_points(ROOM, 10), points[:10])


def test_random_points_follow_area_and_island(shared: Path) -> None:
    house = PathFinder.load(shared / "goldens" / "habitat_sim" / "house_a" / "navmesh_r010_h150.navmesh")
    points = random_points(house, 2000)
    islands = np.array([house.get_island(point) for point in points])
    assert all(house.is_navigable(point, 0.01) for point in points)
    share = np.array([house.island_area(k) for k in range(house.num_islands)]) / house.navigable_area
    counts = np.bincount(islands, minlength=house.num_islands)
    deviation = np.sqrt(2000 * share * (1 - share))
    assert (np.abs(counts - 2000 * share) < 4 * deviation).all()
    assert all(house.get_island(point) == 1 for point in random_points(house, 20, island=1))


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="3 coordinates"):
        ROOM.snap_point((1.0, 2.0))
    with pytest.raises(ValueError, match=r"\(m, 3\)"):
        ROOM.geodesic_distance((1.0, 0.0, 1.0), [(1.0, 2.0)])
    with pytest.raises(ValueError, match="island 4 does not exist"):
        ROOM.snap_point((1.0, 0.0, 1.0), 4)
    with pytest.raises(ValueError, match="meters_per_pixel"):
        ROOM.get_topdown_view(0.0, 0.0)


def test_inputs_of_every_kind_give_equal_answers() -> None:
    expected = ROOM.snap_point((0.5, 0.25, 1.5))
    strided = np.array([[0.5, 0.0], [0.25, 0.0], [1.5, 0.0]])[:, 0]
    for point in ([0.5, 0.25, 1.5], strided, strided.astype(np.float32), strided.astype(np.float64)):
        np.testing.assert_array_equal(ROOM.snap_point(point), expected)
    kept = expected.copy()
    ROOM.snap_point((1.0, 0.0, 1.0))
    np.testing.assert_array_equal(expected, kept)


def test_no_walkable_ground_is_a_usage_error() -> None:
    mesh, detail, config = square_room()
    empty = PolyMesh(
        mesh.verts, mesh.polys[:0], mesh.areas[:0], mesh.bmin, mesh.bmax, mesh.cell_size, mesh.cell_height, 6
    )
    with pytest.raises(UsageError, match="no walkable ground"):
        PathFinder.from_polymesh(empty, detail, config)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cell_size", 0.0),
        ("cell_height", float("nan")),
        ("agent_radius", -0.1),
        ("verts_per_poly", 7.0),
        ("verts_per_poly", 2.0),
        ("agent_max_slope", 91.0),
        ("region_min_size", float("inf")),
        ("filter_ledge_spans", 1),
        ("agent_height", "tall"),
    ],
)
def test_absurd_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"navmesh setting {field}: "):
        NavMeshSettings(**{field: value})  # type: ignore[arg-type]


def test_settings_match_within_tolerance() -> None:
    assert NavMeshSettings().matches(NavMeshSettings(cell_size=float(np.float32(0.05))))
    assert not NavMeshSettings().matches(NavMeshSettings(region_merge_size=21.0))
    assert not NavMeshSettings().matches(NavMeshSettings(filter_ledge_spans=False))


@pytest.mark.slow
def test_warm_up_leaves_nothing_to_compile() -> None:
    labels = list(warm_up())
    assert len(labels) == len(set(labels)) > 3
    check = (
        "import numba.core.event as e\n"
        "from envs.embedded.navmesh import warm_up\n"
        "list(warm_up())\n"
        "from envs.embedded.navmesh.pathfinder import PathFinder\n"
        "from envs.embedded.navmesh.motion import advance\n"
        "from envs.embedded.navmesh.sample import square_room\n"
        "r = e.RecordingListener()\n"
        "a, b = [0.5, 0, 0.5], (1.5, 0.0, 1.0)\n"
        "with e.install_listener('numba:compile', r):\n"
        "    p = PathFinder.from_polymesh(*square_room())\n"
        "    p.find_path(a, b), p.find_path_multi(a, [b, a]), p.geodesic_distances([a], [b]), p.get_island(a)\n"
        "    p.try_step(a, b), p.try_step_no_sliding(a, b), p.snap_point(a, 0), p.is_navigable(a, 1)\n"
        "    p.closest_obstacle_surface_point(a, 1), p.get_topdown_view(1, 0), p.get_random_navigable_point()\n"
        "    for k in (1, 2, 3):\n"
        "        advance(p, a, (0, 0, 0, 1), k, 1, 30, False)\n"
        "assert not r.buffer, r.buffer\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)
