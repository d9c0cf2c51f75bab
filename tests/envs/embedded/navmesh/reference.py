"""Answers of a navmesh found the slow and obvious way, in float64: every polygon is looked at for every question.

Only the polygons, their corners and their height triangles are taken from the navmesh; neighbors, components,
nearest points, walls and paths are found again from those.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra

from envs.embedded.navmesh.pathfinder import PathFinder

Floats = NDArray[np.float64]
REACH = np.array([2.0, 4.0, 2.0])
"""Half the box, in meters, within which a point is projected onto the navmesh."""

PORTAL_SAMPLES = 24
CORNER = -1
ON_FLOOR = 0.01


class Projections(NamedTuple):
    """Nearest point of every polygon to a point: (p, 3), and its cost (p,): squared meters, 0 on the floor."""

    points: Floats
    costs: Floats


def distances_to_segments(point: Floats, a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Plan distances (n,) of a point (2,) to the segments a-b (n, 2), and the place on each, 0 to 1."""
    along = b - a
    square = np.maximum((along**2).sum(axis=-1), 1e-30)
    t = np.clip(((point - a) * along).sum(axis=-1) / square, 0.0, 1.0)
    return np.hypot(*np.moveaxis(a + t[..., None] * along - point, -1, 0)), t


class Reference:
    """Polygons of one navmesh and the questions a PathFinder answers."""

    def __init__(self, pathfinder: PathFinder) -> None:
        tile = pathfinder.tile
        self.climb = tile.climb
        self.bounds = np.array([tile.bmin, tile.bmax], dtype=np.float64)
        self.usable: NDArray[np.bool_] = (tile.polys["flags"] & 1) != 0
        self.ids = [list(map(int, p["verts"][: p["vert_count"]])) for p in tile.polys]
        self.verts = tile.verts.astype(np.float64)
        self.corners = [self.verts[ids] for ids in self.ids]
        points = tile.triangle_points()[0].astype(np.float64)
        begin, size = tile.detail_meshes["tri_base"].astype(int), tile.detail_meshes["tri_count"].astype(int)
        self.triangles = [points[b : b + n] for b, n in zip(begin, size, strict=True)]
        self.lines = [np.concatenate([t, np.roll(t, -1, axis=1)], axis=2).reshape(-1, 6) for t in self.triangles]
        self.boxes = np.array([(c.min(axis=0), c.max(axis=0)) for c in self.corners])
        heights = [(t[..., 1].min(), t[..., 1].max()) for t in self.triangles]
        self.boxes[:, :, 1] = heights
        self.neighbors, self.walls = self._edges()
        self.component = self._components()

    def _edges(self) -> tuple[list[dict[int, tuple[int, int]]], list[tuple[int, int, int]]]:
        """Neighbors of each polygon with the shared edge, and the walls: (polygon, vertex, vertex)."""
        owners: dict[frozenset[int], list[int]] = defaultdict(list)
        for p, ids in enumerate(self.ids):
            for k, v in enumerate(ids):
                owners[frozenset((v, ids[(k + 1) % len(ids)]))].append(p)
        neighbors: list[dict[int, tuple[int, int]]] = [{} for _ in self.ids]
        walls = []
        for edge, polys in owners.items():
            u, v = sorted(edge)
            open_polys = [p for p in polys if self.usable[p]]
            if len(open_polys) == 2:
                neighbors[open_polys[0]][open_polys[1]] = (u, v)
                neighbors[open_polys[1]][open_polys[0]] = (u, v)
            else:
                walls += [(p, u, v) for p in open_polys]
        return neighbors, walls

    def _components(self) -> list[int]:
        """Smallest polygon of the connected part of every polygon, by union and find."""
        parent = list(range(len(self.ids)))

        def root(p: int) -> int:
            while parent[p] != p:
                p = parent[p]
            return p

        for p, others in enumerate(self.neighbors):
            for q in others:
                a, b = sorted((root(p), root(q)))
                parent[b] = a
        return [root(p) for p in range(len(parent))]

    def inside(self, p: int, plan: Floats) -> float:
        """Depth of a plan point (2,) inside a polygon in meters, negative outside of it."""
        a = self.corners[p][:, [0, 2]]
        along = np.roll(a, -1, axis=0) - a
        away = plan - a
        cross = along[:, 1] * away[:, 0] - along[:, 0] * away[:, 1]
        return float((cross / np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-12)).min())

    def height(self, p: int, plan: Floats) -> float:
        """Height of the floor of polygon p at a plan point (2,) over it."""
        a, u, v = self.triangles[p][:, 0], *np.moveaxis(np.diff(self.triangles[p], axis=1), 1, 0)
        w = u + v
        area = u[:, 0] * w[:, 2] - u[:, 2] * w[:, 0]
        x, z = (plan - a[:, [0, 2]]).T
        solid = np.where(np.abs(area) > 1e-9, area, np.nan)
        s, t = (x * w[:, 2] - z * w[:, 0]) / solid, (u[:, 0] * z - u[:, 2] * x) / solid
        k = int(np.nanargmax(np.minimum(np.minimum(s, t), 1 - s - t)))
        return float(a[k, 1] + s[k] * u[k, 1] + t[k] * w[k, 1])

    def project(self, point: Floats) -> Projections:
        """Nearest point of every polygon.

        Over a polygon: the floor below or above, which costs what its height differs by more than the climb.
        Beside it: the nearest point in plan on its rim, which costs its distance.
        """
        plan = point[[0, 2]]
        points, costs = np.full((len(self.ids), 3), np.nan), np.full(len(self.ids), np.inf)
        for p in np.flatnonzero(self.usable):
            if self.inside(p, plan) >= 0:
                points[p] = plan[0], self.height(p, plan), plan[1]
                costs[p] = max(abs(point[1] - points[p, 1]) - self.climb, 0.0) ** 2
                continue
            lines = self.lines[p]
            distance, t = distances_to_segments(plan, lines[:, [0, 2]], lines[:, [3, 5]])
            k = int(distance.argmin())
            points[p] = lines[k, :3] + t[k] * (lines[k, 3:] - lines[k, :3])
            costs[p] = ((points[p] - point) ** 2).sum()
        return Projections(points, costs)

    def within_reach(self, point: Floats, slack: float) -> NDArray[np.bool_]:
        """Polygons whose box meets the search box around a point, grown by `slack` meters.

        The box must meet that of the navmesh in plan, and is then squeezed into it: the lowest floor is within
        reach from any depth.
        """
        low, high = point - REACH - slack, point + REACH + slack
        if (low > self.bounds[1])[[0, 2]].any() or (high < self.bounds[0])[[0, 2]].any():
            return np.zeros(len(self.ids), dtype=bool)
        low, high = np.clip(low, *self.bounds), np.clip(high, *self.bounds)
        fits: NDArray[np.bool_] = ((self.boxes[:, 0] <= high + slack) & (self.boxes[:, 1] >= low - slack)).all(
            axis=1
        )
        # Detour's bounding-volume tree ends with an empty node, which stands for polygon 0 in the lowest corner.
        fits[0] |= slack >= 0 and (low <= self.bounds[0] + slack).all()
        return fits & self.usable

    def off_floor(self, point: Floats, rise: float) -> float:
        """Plan distance in meters of a point to the nearest polygon whose floor is within `rise` of its height."""
        found = self.project(point)
        near = self.usable & (np.abs(found.points[:, 1] - point[1]) <= rise)
        gaps = np.hypot(*(found.points[near] - point)[:, [0, 2]].T)
        return float(gaps.min(initial=np.inf))

    @cached_property
    def _graph(self) -> tuple[list[tuple[int, int, int]], list[list[int]], Floats, Floats]:
        """Points on the shared edges: edge and place on it, those of each polygon, plan points, distances."""
        keys: dict[tuple[int, int, int], int] = {}
        of_poly = []
        for others in self.neighbors:
            found = set()
            for u, v in others.values():
                for k in range(PORTAL_SAMPLES + 1):
                    key = (u, v, k) if 0 < k < PORTAL_SAMPLES else (CORNER, CORNER, v if k else u)
                    found.add(keys.setdefault(key, len(keys)))
            of_poly.append(sorted(found))
        plan = self.verts[:, [0, 2]]
        points = np.array(
            [plan[k] if u == CORNER else plan[u] + k / PORTAL_SAMPLES * (plan[v] - plan[u]) for u, v, k in keys]
        ).reshape(-1, 2)
        lengths = np.zeros((len(keys) + 2, len(keys) + 2))
        for found in of_poly:
            lengths[np.ix_(found, found)] = np.hypot(*(points[found][:, None] - points[found][None]).T)
        return list(keys), of_poly, points, lengths

    def shortest(self, first: int, start: Floats, last: int, end: Floats) -> float:
        """Plan length in meters of the shortest path through points spread on the shared edges; inf without one.

        Within a polygon every two of them see each other. A path bends at corners only, which are among them; in
        between it is pulled tight.
        """
        keys, of_poly, points, lengths = self._graph
        ends = np.array([start, end])[:, [0, 2]]
        size, lengths, points = len(keys), lengths.copy(), np.concatenate([points, ends])
        for k, p in enumerate((first, last)):
            lengths[size + k, of_poly[p]] = np.maximum(np.hypot(*(points[of_poly[p]] - ends[k]).T), 1e-12)
        lengths[size:, size:] = np.inf if first != last else np.hypot(*(ends[1] - ends[0]))
        lengths[:, size + 1] = lengths[size + 1]
        total, before = dijkstra(lengths, indices=size, return_predecessors=True)
        if not np.isfinite(total[size + 1]):
            return float("inf")
        line = [size + 1]
        while line[-1] != size:
            line.append(int(before[line[-1]]))
        named = [*keys, (CORNER, CORNER, 0), (CORNER, CORNER, 0)]
        return self._tightened([named[k] for k in line], list(points[line]))

    def _tightened(self, keys: list[tuple[int, int, int]], points: list[Floats]) -> float:
        """Length of a path once every point between the ends of a shared edge has slid to its best place there."""
        for _ in range(200):
            moved = 0.0
            for k in range(1, len(keys) - 1):
                if keys[k][0] == CORNER:
                    continue
                u, v = self.verts[list(keys[k][:2])][:, [0, 2]]
                line, along = points[k + 1] - points[k - 1], v - u
                area = along[0] * line[1] - along[1] * line[0]
                if abs(area) < 1e-12:
                    continue
                away = points[k - 1] - u
                best = u + np.clip((away[0] * line[1] - away[1] * line[0]) / area, 0, 1) * along
                moved = max(moved, float(np.abs(best - points[k]).max()))
                points[k] = best
            if moved < 1e-6:
                break
        return float(np.hypot(*np.diff(points, axis=0).T).sum())

    def walk(self, first: int, start: Floats, end: Floats) -> tuple[Floats, list[int]]:
        """Where a plan move from `start` (2,) in polygon `first` meets a wall or ends; the polygons crossed."""
        crossed = [first]
        along = end - start
        while True:
            p = crossed[-1]
            a = self.corners[p][:, [0, 2]]
            sides = np.roll(a, -1, axis=0) - a
            speed = sides[:, 1] * along[0] - sides[:, 0] * along[1]  # how fast the move leaves across each side
            depth = sides[:, 1] * (start - a)[:, 0] - sides[:, 0] * (start - a)[:, 1]
            share = np.where(speed < 0, depth / np.where(speed < 0, -speed, 1), np.inf)
            k = int(share.argmin())
            if share[k] >= 1:
                return end, crossed
            edge = {self.ids[p][k], self.ids[p][(k + 1) % len(a)]}
            beyond = [q for q, shared in self.neighbors[p].items() if set(shared) == edge]
            if not beyond or beyond[0] in crossed:
                return start + share[k] * along, crossed
            crossed.append(beyond[0])

    def wall_distance(self, first: int, point: Floats, radius: float) -> float:
        """Plan distance to the nearest wall among the polygons that a growing circle reaches, or `radius`."""
        plan = point[[0, 2]]
        while True:
            reached, waiting = {first}, [first]
            while waiting:
                for q, (u, v) in self.neighbors[waiting.pop()].items():
                    edge = self.verts[[u, v]][:, [0, 2]]
                    gap, _ = distances_to_segments(plan, edge[:1], edge[1:])
                    if q not in reached and gap[0] <= radius:
                        reached.add(q)
                        waiting.append(q)
            edges = self.verts[np.array([(u, v) for p, u, v in self.walls if p in reached] or [(0, 0)])][
                :, :, [0, 2]
            ]
            gaps, _ = distances_to_segments(plan, edges[:, 0], edges[:, 1])
            nearest = float(gaps.min()) if any(p in reached for p, _, _ in self.walls) else np.inf
            if nearest >= radius:
                return radius
            radius = nearest
