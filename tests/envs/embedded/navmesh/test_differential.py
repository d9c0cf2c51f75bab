"""Every query on random scenes against the slow and obvious answers of `reference`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.embedded.navmesh.pathfinder import PathFinder
from tests.envs.embedded.navmesh.reference import ON_FLOOR, Reference, distances_to_segments
from tests.envs.embedded.navmesh.scenes import KINDS, random_scene
from tests.envs.embedded.navmesh.test_build import build
from vlnbench.errors import UsageError

QUERIES = 12
BOX_SLACK = 0.25
"""Meters by which the grid of the bounding-volume tree may widen or narrow the search box."""

DETOUR = 1.25
"""A* runs over the middles of shared edges: found paths are at most this much longer than the shortest in plan."""

Point = NDArray[np.float64]


class Case(NamedTuple):
    pathfinder: PathFinder
    reference: Reference
    random: np.random.Generator

    def floor_point(self) -> tuple[Point, int]:
        """A random point on the navmesh and its polygon."""
        point = self.pathfinder.get_random_navigable_point().astype(np.float64)
        return point, int(self.reference.project(point).costs.argmin())


def make_case(kind: str, seed: int) -> Case:
    random = np.random.default_rng([seed, KINDS.index(kind)])
    try:
        pathfinder = build(random_scene(kind, random))
    except UsageError:  # so full of boxes that no region of the least size is left
        return make_case(kind, seed + 1000)
    pathfinder.seed(seed)
    return Case(pathfinder, Reference(pathfinder), random)


@pytest.fixture(
    scope="module",
    params=[
        *((kind, seed) for kind in KINDS for seed in range(2)),
        *(pytest.param((kind, seed), marks=pytest.mark.slow) for kind in KINDS for seed in range(2, 12)),
    ],
    ids=lambda param: f"{param[0]}{param[1]}",
)
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(*request.param)


def test_islands_are_the_connected_components(case: Case) -> None:
    pathfinder, reference, _ = case
    roots = {reference.component[p] for p in np.flatnonzero(reference.usable)}
    assert pathfinder.num_islands == len(roots)
    island_of: dict[int, int] = {}
    for _ in range(3 * QUERIES):
        point, poly = case.floor_point()
        root = reference.component[poly]
        assert pathfinder.get_island(point) == island_of.setdefault(root, pathfinder.get_island(point))
    assert len(set(island_of.values())) == len(island_of)


def test_snapping_finds_the_nearest_point_of_all_polygons(case: Case) -> None:
    pathfinder, reference, random = case
    low, high = pathfinder.get_bounds()
    margin = np.array([2.0, 3.0, 2.0])
    for k in range(3 * QUERIES):
        near = case.floor_point()[0] + random.normal(0, 0.3, 3)
        point = np.float32(near if k % 2 else random.uniform(low - margin, high + margin))
        found = reference.project(point.astype(np.float64))
        lowest = found.costs[reference.within_reach(point, BOX_SLACK)].min(initial=np.inf)
        highest = found.costs[reference.within_reach(point, -BOX_SLACK)].min(initial=np.inf)
        snapped = pathfinder.snap_point(point)
        if np.isnan(snapped).any():
            assert highest == np.inf
            continue
        poly = int(np.nanargmin(np.abs(found.points - snapped).sum(axis=1)))
        np.testing.assert_allclose(snapped, found.points[poly], atol=1e-5)
        assert lowest - 1e-4 <= found.costs[poly] <= highest + 1e-4
        offset = np.abs(snapped - point)
        assert pathfinder.is_navigable(point) == (np.hypot(offset[0], offset[2]) <= ON_FLOOR and offset[1] <= 0.5)


def test_paths_are_connected_and_hardly_longer_than_the_shortest(case: Case) -> None:
    pathfinder, reference, _ = case
    for _ in range(QUERIES):
        (start, first), (end, last) = case.floor_point(), case.floor_point()
        points, distance = pathfinder.find_path(start, end)
        back = pathfinder.geodesic_distance(end, start)
        if reference.component[first] != reference.component[last]:
            assert (distance, back, len(points)) == (np.inf, np.inf, 0)
            continue
        assert np.isfinite(back)
        np.testing.assert_array_equal(points[[0, -1]], np.float32([start, end]))
        legs = np.diff(points.astype(np.float64), axis=0)
        assert distance == pytest.approx(np.linalg.norm(legs, axis=1).sum(), rel=1e-6, abs=1e-6)
        plan = np.hypot(legs[:, 0], legs[:, 2]).sum()
        shortest = reference.shortest(first, start, last, end)
        assert 0.99 * shortest <= plan <= DETOUR * shortest + 1e-6
        for a, leg in zip(points.astype(np.float64), legs, strict=False):
            assert max(reference.off_floor(a + share * leg, 1.0) for share in (0, 0.2, 0.4, 0.6, 0.8, 1)) < 1e-5


def test_several_goals_are_the_nearest_of_the_single_ones(case: Case) -> None:
    pathfinder = case.pathfinder
    for _ in range(QUERIES):
        start, goals = case.floor_point()[0], np.array([case.floor_point()[0] for _ in range(5)])
        single = [pathfinder.find_path(start, goal) for goal in goals]
        best = pathfinder.find_path_multi(start, goals)
        assert best.geodesic_distance == min(path.geodesic_distance for path in single)
        if np.isinf(best.geodesic_distance):
            assert best.closest_end_index == -1
            continue
        np.testing.assert_array_equal(best.points, single[best.closest_end_index].points)


def test_the_nearest_wall_is_the_nearest_of_all_walls(case: Case) -> None:
    pathfinder, reference, _ = case
    for _ in range(3 * QUERIES):
        point, poly = case.floor_point()
        for radius in (0.3, 2.0):
            expected = reference.wall_distance(poly, point, radius)
            hit = pathfinder.closest_obstacle_surface_point(point, radius)
            assert hit.hit_dist == pathfinder.distance_to_closest_obstacle(point, radius)
            assert hit.hit_dist == pytest.approx(expected, abs=1e-5)
            if expected < radius:
                assert np.hypot(*(hit.hit_pos - point)[[0, 2]]) == pytest.approx(expected, abs=1e-5)


def test_steps_end_on_the_floor_and_where_a_straight_walk_ends(case: Case) -> None:
    pathfinder, reference, random = case
    plan = [0, 2]
    for _ in range(3 * QUERIES):
        start, first = case.floor_point()
        angle, length = random.uniform(0, 2 * np.pi), random.choice([0.25, 0.5])
        end = start + length * np.array([np.cos(angle), 0, np.sin(angle)])
        slid, stopped = pathfinder.try_step(start, end), pathfinder.try_step_no_sliding(start, end)
        for point in (slid, stopped):
            assert reference.off_floor(point.astype(np.float64), 0.5) < 1e-5
        aim = reference.project(end)
        last = int(np.where(reference.within_reach(end, 0.0), aim.costs, np.inf).argmin())
        if reference.component[last] != reference.component[first]:
            continue  # a step towards another island: the tie between two of them decides whether it is done
        reached, crossed = reference.walk(first, start[plan], end[plan])
        gap = np.hypot(*(slid[plan] - end[plan]))
        assert gap <= np.hypot(*(reached - end[plan])) + 1e-5
        if np.array_equal(reached, end[plan]):
            np.testing.assert_allclose([slid[plan], stopped[plan]], [reached, reached], atol=1e-5)
        aside, _ = distances_to_segments(stopped[plan].astype(np.float64), start[plan][None], end[plan][None])
        # Walls count for a stop only along the polygons that the slide went through.
        assert aside[0] < 1e-5 or np.array_equal(slid, stopped)
        if len(crossed) == 1 and reference.inside(first, slid[plan].astype(np.float64)) > -1e-5:
            np.testing.assert_allclose(stopped[plan], reached, atol=1e-5)
            assert np.hypot(*(slid - start)[plan]) <= length + 1e-5


def test_the_map_is_navigable_where_the_floor_is(case: Case) -> None:
    pathfinder, reference, random = case
    low, _ = pathfinder.get_bounds()
    height = float(case.floor_point()[0][1])
    cells = pathfinder.get_topdown_island_view(0.07, height, 0.3)
    known, islands = 0, set[tuple[int, ...]]()
    for _ in range(6 * QUERIES):
        i, j = (int(random.integers(0, size)) for size in cells.shape)
        point = np.array([low[0] + 0.07 * j, height, low[2] + 0.07 * i], dtype=np.float64)
        found = reference.project(point)
        reach = reference.within_reach(point, 0.0)
        costs = np.where(reach, found.costs, np.inf)
        offsets = np.abs(found.points - point)
        if costs.min() == np.inf:
            assert cells[i, j] == -1
            continue
        nearest = costs <= costs.min() + 2e-3 * np.sqrt(costs.min()) + 1e-6
        aside, rise = np.hypot(offsets[nearest, 0], offsets[nearest, 2]), offsets[nearest, 1]
        if (aside > ON_FLOOR + 1e-3).all() or (rise > 0.3 + 1e-3).all():
            assert cells[i, j] == -1
        elif (aside < ON_FLOOR - 1e-3).all() and (rise < 0.3 - 1e-3).all():
            islands.add((int(cells[i, j]), *{reference.component[p] for p in np.flatnonzero(nearest)}))
        else:
            continue
        known += 1
    assert len(islands) == len({island for island, _ in islands}) == len({root for _, root in islands})
    assert -1 not in {island for island, _ in islands}
    assert known > 4 * QUERIES
