"""The navmesh builder on small meshes whose answer is known, and on broken ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from envs.embedded.navmesh.build import build_polymesh, warm_up
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.polymesh import NO_INDEX, PolyMesh
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from vlnbench.errors import UsageError

Mesh = tuple[NDArray[np.float32], NDArray[np.int32]]
BODY = NavMeshSettings()
_BOX_FACES = ((0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3))


def join(*meshes: Mesh) -> Mesh:
    offsets = np.cumsum([0, *(len(vertices) for vertices, _ in meshes)])
    vertices = np.concatenate([vertices for vertices, _ in meshes])
    triangles = [faces + np.int32(offset) for (_, faces), offset in zip(meshes, offsets, strict=False)]
    return vertices, np.concatenate(triangles)


def quad(*corners: tuple[float, float, float]) -> Mesh:
    """A quadrilateral, counter-clockwise seen from its front."""
    return np.array(corners, np.float32), np.array([[0, 1, 2], [0, 2, 3]], np.int32)


def floor(x0: float, z0: float, x1: float, z1: float, y: float = 0.0) -> Mesh:
    return quad((x0, y, z0), (x0, y, z1), (x1, y, z1), (x1, y, z0))


def box(x0: float, y0: float, z0: float, x1: float, y1: float, z1: float) -> Mesh:
    """A closed box with its faces outwards."""
    corners = [(x, y, z) for y in (y0, y1) for z in (z0, z1) for x in (x0, x1)]
    faces = [triangle for a, b, c, d in _BOX_FACES for triangle in ((a, b, c), (a, c, d))]
    return np.array(corners, np.float32), np.array(faces, np.int32)


def room(width: float, depth: float, *obstacles: Mesh) -> Mesh:
    """A floor with walls 2 m high around it."""
    t = 0.2
    walls = [
        box(-t, 0, -t, 0, 2, depth + t),
        box(width, 0, -t, width + t, 2, depth + t),
        box(0, 0, -t, width, 2, 0),
        box(0, 0, depth, width, 2, depth + t),
    ]
    return join(floor(0, 0, width, depth), *walls, *obstacles)


def build(mesh: Mesh, body: NavMeshSettings = BODY) -> PathFinder:
    return PathFinder.from_polymesh(*build_polymesh(*mesh, body), body)


def test_flat_square_loses_a_border_of_the_radius() -> None:
    # The outermost cells are ledges; erosion then takes the radius, two cells, all round.
    pathfinder = build(floor(0, 0, 4, 4))
    assert pathfinder.num_islands == 1
    assert pathfinder.navigable_area == pytest.approx((4 - 2 * (0.05 + 0.1)) ** 2, rel=1e-5)


@pytest.mark.parametrize(("rise", "islands"), [(0.15, 1), (0.18, 1), (0.45, 2), (0.6, 2)])
def test_steps_up_to_the_climb_join(rise: float, islands: int) -> None:
    platform = box(3, 0, -0.5, 6, rise, 3.5)
    assert build(join(floor(0, 0, 3, 3), platform)).num_islands == islands


def stairs(rise: float, steps: int = 8, run: float = 0.3) -> Mesh:
    """Two floors and a flight between them, closed at its sides by walls."""
    flight = [box(3 + i * run, 0, 0, 3 + (i + 1) * run, (i + 1) * rise, 1.5) for i in range(steps)]
    end, height = 3 + steps * run, steps * rise
    upper = box(end, 0, 0, end + 3, height, 1.5)
    sides = [box(0, 0, z, end + 3, height + 2, z + 0.2) for z in (-0.2, 1.5)]
    return join(floor(0, 0, 3, 1.5), *flight, upper, *sides)


@pytest.mark.parametrize("rise", [0.15, 0.16, 0.18])
def test_stairs_are_climbed(rise: float) -> None:
    pathfinder = build(stairs(rise))
    distance = pathfinder.geodesic_distance((1.0, 0.0, 0.75), [(7.0, 8 * rise, 0.75)])
    assert 6.0 < distance < 6.8


def test_stairs_with_high_rises_are_not_climbed() -> None:
    assert build(stairs(0.3)).geodesic_distance((1.0, 0.0, 0.75), [(7.0, 2.4, 0.75)]) == np.inf


@pytest.mark.parametrize(("clearance", "passable"), [(1.2, False), (2.0, True)])
def test_low_ceilings_are_excluded(clearance: float, passable: bool) -> None:
    ceiling = box(2, clearance, 0, 4, clearance + 0.2, 3)
    pathfinder = build(room(6, 3, ceiling))
    distance = pathfinder.geodesic_distance((1.0, 0.0, 1.5), [(5.0, 0.0, 1.5)])
    assert np.isfinite(distance) == passable


@pytest.mark.parametrize(("degrees", "walkable"), [(20, True), (50, False)])
def test_slope_limit(degrees: float, walkable: bool) -> None:
    rise = 3 * np.tan(np.radians(degrees))
    slope = quad((0, 0, 0), (0, 0, 3), (3, rise, 3), (3, rise, 0))
    body = replace(BODY, cell_height=0.05)
    if walkable:
        assert build(slope, body).navigable_area > 6
    else:
        with pytest.raises(UsageError, match="no walkable surface"):
            build_polymesh(*slope, body)


def test_filters_can_be_switched_off() -> None:
    body = replace(BODY, filter_ledge_spans=False)
    raised = join(floor(0, 0, 6, 6), box(2, 0, 2, 4, 1, 4))
    assert build(raised, body).navigable_area > build(raised).navigable_area


def test_small_regions_are_removed() -> None:
    islands = join(floor(0, 0, 4, 4), floor(6, 0, 6.8, 0.8))
    assert build(islands).num_islands == 1
    assert build(islands, replace(BODY, region_min_size=5.0)).num_islands == 2


def test_holes_are_cut_out() -> None:
    pillars = [box(x, 0, z, x + 0.5, 2, z + 0.5) for x in (2.0, 5.0) for z in (2.0, 5.0)]
    pathfinder = build(room(8, 8, *pillars))
    assert pathfinder.num_islands == 1
    assert pathfinder.navigable_area == pytest.approx(7.8**2 - 4 * 0.7**2, abs=1.0)
    assert not pathfinder.is_navigable((2.25, 0.0, 2.25))


@pytest.mark.parametrize("sides", [3, 6])
def test_polygon_size_and_plain_detail(sides: int) -> None:
    body = replace(BODY, verts_per_poly=float(sides), detail_sample_dist=0.0, edge_max_len=1.0)
    mesh, detail = build_polymesh(*room(4, 4), body)
    assert mesh.polys.shape[1] == 2 * sides
    counts = (mesh.polys[:, :sides] != NO_INDEX).sum(axis=1)
    np.testing.assert_array_equal(detail.meshes[:, 1], counts)
    np.testing.assert_array_equal(detail.meshes[:, 3], counts - 2)


def test_detail_follows_a_ramp() -> None:
    ramp = quad((2, 0, 0), (2, 0, 3), (5, 1.2, 3), (5, 1.2, 0))
    bump = join(floor(0, 0, 2, 3), ramp, floor(5, 0, 8, 3, y=1.2))
    pathfinder = build(bump, replace(BODY, cell_height=0.05, detail_sample_max_error=0.5))
    for x in (2.5, 3.5, 4.5):
        assert abs(pathfinder.snap_point((x, 0.4 * (x - 2), 1.5))[1] - 0.4 * (x - 2)) < 0.15


def rooms() -> st.SearchStrategy[tuple[float, float, list[tuple[float, float, float, float]]]]:
    side = st.floats(2.0, 6.0, width=32)
    unit = st.floats(0.0, 1.0, width=32)
    return st.tuples(side, side, st.lists(st.tuples(unit, unit, unit, unit), max_size=4))


def furnished(width: float, depth: float, items: list[tuple[float, float, float, float]]) -> Mesh:
    boxes = []
    for u, v, du, dv in items:
        x, z = u * (width - 0.3), v * (depth - 0.3)
        boxes.append(box(x, 0, z, min(width, x + 0.2 + du), 1.5, min(depth, z + 0.2 + dv)))
    return room(width, depth, *boxes)


def edges_turn_left(mesh: PolyMesh, polygon: NDArray[Any]) -> bool:
    corners = mesh.verts[polygon[polygon != NO_INDEX]].astype(np.int64)[:, [0, 2]]
    a = np.roll(corners, -1, axis=0) - corners
    b = np.roll(a, -1, axis=0)
    return bool((a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0] <= 0).all())


def assert_consistent(mesh: PolyMesh) -> None:
    """Vertices inside the grid, polygons convex, neighbors mutual across the same two vertices."""
    assert mesh.polys[:, : mesh.nvp][mesh.polys[:, : mesh.nvp] != NO_INDEX].max() < len(mesh.verts)
    for p, row in enumerate(mesh.polys):
        corners, neighbors = row[: mesh.nvp], row[mesh.nvp :]
        count = int((corners != NO_INDEX).sum())
        assert count >= 3
        assert edges_turn_left(mesh, corners)
        assert (neighbors[count:] == NO_INDEX).all()
        for j in range(count):
            if neighbors[j] == NO_INDEX:
                continue
            other = mesh.polys[neighbors[j]]
            edge = {int(corners[j]), int(corners[(j + 1) % count])}
            size = int((other[: mesh.nvp] != NO_INDEX).sum())
            back = [{int(other[k]), int(other[(k + 1) % size])} for k in range(size) if other[mesh.nvp + k] == p]
            assert edge in back


@settings(max_examples=40, deadline=None)
@given(rooms())
def test_random_rooms(shape: tuple[float, float, list[tuple[float, float, float, float]]]) -> None:
    width, depth, items = shape
    try:
        mesh, detail = build_polymesh(*furnished(width, depth, items), BODY)
    except UsageError:
        assert items, "an empty room has a walkable floor"  # a full one may leave no region of the least size
        return
    assert_consistent(mesh)
    pathfinder = PathFinder.from_polymesh(mesh, detail, BODY)
    assert 0 < pathfinder.navigable_area < width * depth
    if not items:
        assert pathfinder.num_islands == 1
        assert pathfinder.navigable_area > 0.75 * (width - 0.2) * (depth - 0.2)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_random_triangles(seed: int, count: int) -> None:
    # A triangle soup has overlapping surfaces, slivers and zero areas: any result, but finite and repeatable.
    random = np.random.default_rng(seed)
    vertices = random.uniform(0, 6, (3 * count, 3)).astype(np.float32) * np.float32([1, 0.3, 1])
    triangles = random.integers(0, 3 * count, (count, 3)).astype(np.int32)
    body = replace(BODY, region_min_size=2.0)
    try:
        first = build_polymesh(vertices, triangles, body)
    except UsageError:
        return
    second = build_polymesh(vertices.copy(), triangles.copy(), body)
    np.testing.assert_array_equal(first[0].verts, second[0].verts)
    np.testing.assert_array_equal(first[0].polys, second[0].polys)
    for name in ("meshes", "verts", "tris"):
        np.testing.assert_array_equal(getattr(first[1], name), getattr(second[1], name))
    assert np.isfinite(first[1].verts).all()


def test_reads_only_and_strided_arrays() -> None:
    vertices, triangles = floor(0, 0, 4, 4)
    expected = build_polymesh(vertices, triangles, BODY)[0]
    frozen = np.asfortranarray(vertices)
    frozen.setflags(write=False)
    found = build_polymesh(frozen, np.repeat(triangles, 2, axis=0)[::2], BODY)[0]
    np.testing.assert_array_equal(found.verts, expected.verts)


def broken(name: str) -> Mesh:
    vertices, triangles = floor(0, 0, 4, 4)
    if name == "nan":
        vertices[2, 1] = np.nan
    elif name == "infinite":
        vertices[1, 0] = np.inf
    elif name == "index":
        triangles[1, 2] = 4
    elif name == "negative":
        triangles[0, 0] = -1
    elif name == "empty":
        triangles = triangles[:0]
    elif name == "no vertices":
        vertices = vertices[:0]
    elif name == "double":
        return vertices.astype(np.float64), triangles  # type: ignore[return-value]
    elif name == "flat":
        return vertices, triangles.ravel()
    elif name == "kilometers":
        vertices *= 1000
    elif name == "beyond float32":
        vertices[0], vertices[2] = -3e38, 3e38
    elif name == "far away":
        vertices += 1e6
    elif name == "tower":
        vertices[2, 1] = 5000
    elif name == "zero area":
        triangles = np.zeros((2, 3), np.int32)
    elif name == "upside down":
        triangles = np.ascontiguousarray(triangles[:, ::-1])
    elif name == "one small triangle":
        vertices *= 0.001
    return vertices, triangles


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "vertex 2 is not finite"),
        ("infinite", "vertex 1 is not finite"),
        ("index", "outside 0..3"),
        ("negative", "outside 0..3"),
        ("empty", "no triangles"),
        ("no vertices", "no triangles"),
        ("double", "float32"),
        ("flat", r"\(T, 3\)"),
        ("kilometers", "cell_size"),
        ("beyond float32", "cell_size"),
        ("far away", "move the mesh to the origin"),
        ("tower", "cell_height"),
        ("zero area", "no walkable surface"),
        ("upside down", "no walkable surface"),
        ("one small triangle", "no walkable surface"),
    ],
)
def test_broken_meshes(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build_polymesh(*broken(name), BODY)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", [{"agent_radius": 2.5}, {"agent_radius": 1e6}, {"agent_height": 1e6}])
def test_body_that_fits_nowhere(body: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="no walkable surface"):
        build_polymesh(*join(room(4, 4), floor(-1, -1, 5, 5, y=2.5)), replace(BODY, **body))


def test_warm_up_names_its_steps() -> None:
    assert list(warm_up())
