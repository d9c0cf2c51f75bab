"""The navmesh of a scene and the questions habitat-sim's PathFinder answers, with equal results."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envs.embedded.limits import MAX_MAP_CELLS
from envs.embedded.navmesh.query import entry as query_entry
from envs.embedded.navmesh.query.surface import MAX_PATH, Surface
from envs.embedded.navmesh.query.topdown import fill_grid
from envs.embedded.navmesh.tiles.islands import prepare
from envs.embedded.navmesh.tiles.polymesh import DetailMesh, PolyMesh
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.navmesh.tiles.tile import WALK, NavMeshTile, make_tile
from envs.embedded.navmesh.tiles.tile_check import check_tile
from envs.embedded.navmesh.tiles.tile_file import read_navmesh, write_navmesh
from vlnbench.errors import UsageError

Float32s = NDArray[np.float32]


class ShortestPath(NamedTuple):
    """points: (n, 3) float32 corners, empty without a path. geodesic_distance in meters, inf without a path."""

    points: Float32s
    geodesic_distance: float


class MultiGoalPath(NamedTuple):
    """Path to the nearest of several goals. closest_end_index is -1 without a path."""

    geodesic_distance: float
    closest_end_index: int
    points: Float32s


class ObstacleHit(NamedTuple):
    """Nearest wall: position, unit normal in plan towards the query point, distance in meters."""

    hit_pos: Float32s
    hit_normal: Float32s
    hit_dist: float


class PathFinder:
    """Queries on one navmesh. World frame, y up, meters; points in are array-likes of 3, points out (3,) float32.

    Semantics are those of habitat-sim: points are projected to the nearest walkable polygon within 2 m in plan and
    4 m in height (the lowest floor from any depth: the search box is squeezed into the navmesh's); a path that
    leaves its island, or needs more than 256 polygons or 2048 search nodes, does not exist. Work arrays are reused
    between calls, so one object must not be used from two threads at once.
    """

    def __init__(self, tile: NavMeshTile, settings: NavMeshSettings) -> None:
        self.settings = settings
        self.tile, self._islands = prepare(tile)
        self.surface = Surface(self.tile, self._islands.of_poly)
        self._table = self.surface.table
        self._io = self.surface.io
        self._start, self._end, self._out = self._io[0:3], self._io[3:6], self._io[6:9]
        self._starts, self._goal = self._start.reshape(1, 3), self._end.reshape(1, 3)
        self._length = np.zeros(1, dtype=np.float32)
        self._line = np.zeros((MAX_PATH, 3), dtype=np.float32)
        self._random = np.random.default_rng(0)
        self._fans: dict[int, tuple[NDArray[np.float64], NDArray[np.int64], Float32s]] = {}

    @classmethod
    def load(cls, path: str | Path) -> PathFinder:
        """Read a `.navmesh` file. Raises UsageError naming file and field if it is unusable."""
        return cls(*read_navmesh(path))

    @classmethod
    def from_polymesh(cls, mesh: PolyMesh, detail: DetailMesh, settings: NavMeshSettings) -> PathFinder:
        """Use what the navmesh builder made. Raises UsageError if there is no walkable ground."""
        if len(mesh.polys) == 0:
            raise UsageError(
                "navmesh: no walkable ground for this body; check the scene, its up axis and the body size"
            )
        return cls(check_tile(make_tile(mesh, detail, settings), "navmesh"), settings)

    def save(self, path: str | Path) -> None:
        """Write a version 2 `.navmesh` file that habitat-sim reads, all of it or nothing."""
        write_navmesh(path, self.tile, self.settings)

    def get_bounds(self) -> tuple[Float32s, Float32s]:
        """Lowest and highest corner of the navmesh's box."""
        return self.tile.bmin.copy(), self.tile.bmax.copy()

    @property
    def navigable_area(self) -> float:
        """Walkable surface of all islands in square meters."""
        return float(np.cumsum(self._islands.area, dtype=np.float32)[-1])

    @property
    def num_islands(self) -> int:
        """Number of connected parts."""
        return len(self._islands.radius)

    def island_area(self, island: int) -> float:
        """Walkable surface of one island in square meters."""
        return float(self._islands.area[self._check_island(island)])

    def island_radius(self, island: int) -> float:
        """Largest distance of an island's vertices from their mean, in meters."""
        return float(self._islands.radius[self._check_island(island)])

    def get_island(self, point: ArrayLike) -> int:
        """Island of the polygon nearest to a point, -1 if none is in reach."""
        _fill(self._start, point)
        poly = query_entry.snap(self._table, self._io, -1)
        return int(self._islands.of_poly[poly]) if poly >= 0 else -1

    def snap_point(self, point: ArrayLike, island: int = -1) -> Float32s:
        """Nearest point on the navmesh, or on one island of it; NaN if none is in reach."""
        _fill(self._start, point)
        if island != -1:
            self._check_island(island)
        query_entry.snap(self._table, self._io, int(island))
        return self._out.copy()

    def is_navigable(self, point: ArrayLike, max_y_delta: float = 0.5) -> bool:
        """Whether a point is on the navmesh: within 1 cm in plan and `max_y_delta` meters in height."""
        _fill(self._start, point)
        self._io[9] = max_y_delta
        return bool(query_entry.stands(self._table, self._io))

    def find_path(self, start: ArrayLike, end: ArrayLike) -> ShortestPath:
        """Shortest path between two points."""
        _fill(self._start, start)
        _fill(self._end, end)
        size, _ = query_entry.route(self._table, self._starts, self._goal, self._line, self._length)
        return ShortestPath(self._line[:size].copy(), self._length.item())

    def find_path_multi(self, start: ArrayLike, ends: ArrayLike) -> MultiGoalPath:
        """Shortest path to the nearest of `ends` (m, 3)."""
        _fill(self._start, start)
        size, goal = query_entry.route(self._table, self._starts, _rows(ends), self._line, self._length)
        return MultiGoalPath(self._length.item(), goal, self._line[:size].copy())

    def geodesic_distance(self, start: ArrayLike, ends: ArrayLike) -> float:
        """Path length in meters to a goal (3,), or to the nearest of several (m, 3); inf without a path."""
        _fill(self._start, start)
        query_entry.route(self._table, self._starts, _rows(ends), self._line, self._length)
        return self._length.item()

    def geodesic_distances(self, starts: ArrayLike, ends: ArrayLike) -> Float32s:
        """Path lengths (n,) from every row of `starts` (n, 3) to the nearest of `ends` (m, 3)."""
        rows = _rows(starts)
        lengths = np.empty(len(rows), dtype=np.float32)
        query_entry.route(self._table, rows, _rows(ends), self._line, lengths)
        return lengths

    def try_step(self, start: ArrayLike, end: ArrayLike) -> Float32s:
        """Where a body that moves from `start` to `end` arrives, sliding along walls."""
        _fill(self._start, start)
        _fill(self._end, end)
        query_entry.move(self._table, self._io, True)
        return self._out.copy()

    def try_step_no_sliding(self, start: ArrayLike, end: ArrayLike) -> Float32s:
        """Where a body that moves from `start` to `end` arrives, stopping at the first wall."""
        _fill(self._start, start)
        _fill(self._end, end)
        query_entry.move(self._table, self._io, False)
        return self._out.copy()

    def distance_to_closest_obstacle(self, point: ArrayLike, max_radius: float = 2.0) -> float:
        """Distance in meters to the nearest wall, `max_radius` if it is further, inf off the navmesh."""
        _fill(self._start, point)
        self._io[9] = max_radius
        return float(query_entry.wall(self._table, self._io))

    def closest_obstacle_surface_point(self, point: ArrayLike, max_radius: float = 2.0) -> ObstacleHit:
        """Nearest wall within `max_radius`; without one the position is zero and the normal has no meaning."""
        distance = self.distance_to_closest_obstacle(point, max_radius)
        return ObstacleHit(self._io[10:13].copy(), self._io[13:16].copy(), distance)

    def seed(self, seed: int) -> None:
        """Restart the random numbers of this object."""
        self._random = np.random.default_rng(seed)

    def get_random_navigable_point(self, island: int = -1) -> Float32s:
        """A point spread evenly over the plan area of the navmesh, or of one island.

        Raises UsageError if there is nothing to walk on.
        """
        areas, owner, corners = self._fan(island)
        if len(areas) == 0 or areas[-1] <= 0:
            raise UsageError("navmesh: nothing to walk on; check the navmesh and the island")
        pick, u, v = self._random.random(3)
        chosen = int(np.searchsorted(areas, pick * areas[-1], side="right"))
        a, b, c = corners[min(chosen, len(areas) - 1)].astype(np.float64)
        root = np.sqrt(v)
        self._start[:] = (1.0 - root) * a + (1.0 - u) * root * b + u * root * c
        query_entry.settle(self._table, self._io, owner[min(chosen, len(areas) - 1)])
        return self._out.copy()

    def get_topdown_view(self, meters_per_pixel: float, height: float, eps: float = 0.5) -> NDArray[np.bool_]:
        """Which cells are navigable at `height`, give or take `eps`: rows along z, columns along x."""
        return self.get_topdown_island_view(meters_per_pixel, height, eps) >= 0

    def get_topdown_island_view(
        self, meters_per_pixel: float, height: float, eps: float = 0.5
    ) -> NDArray[np.int16]:
        """Island of every cell at `height`, -1 where nothing is navigable: rows along z, columns along x.

        Raises UsageError for a map of more than `MAX_MAP_CELLS`.
        """
        pixel = np.float32(meters_per_pixel)
        if not pixel > 0:
            raise ValueError(f"meters_per_pixel must be positive, not {meters_per_pixel}")
        span = self.tile.bmax - self.tile.bmin
        rows, columns = int(span[2] / pixel), int(span[0] / pixel)  # in float32, with every NumPy
        if rows * columns > MAX_MAP_CELLS:
            raise UsageError(
                f"top-down map: {span[0]:.0f} x {span[2]:.0f} m at {meters_per_pixel:g} m a pixel are"
                f" {rows * columns} cells, more than {MAX_MAP_CELLS}; check the navmesh, or enlarge the pixels"
            )
        grid = np.empty((rows, columns), dtype=np.int16)
        origin = np.array([self.tile.bmin[0], height, self.tile.bmin[2]], dtype=np.float32)
        fill_grid(self._table, origin, pixel, np.float32(eps), grid)
        return grid

    def build_navmesh_vertices(self, island: int = -1) -> Float32s:
        """(n, 3) corners of the height triangles, three per triangle, of the whole navmesh or one island."""
        points, _ = self.tile.triangle_points()
        detail = self.tile.detail_meshes
        chosen = (
            np.arange(len(detail))
            if island == -1
            else np.flatnonzero(self._islands.of_poly == self._check_island(island))
        )
        begin, size = detail["tri_base"].astype(np.int64), detail["tri_count"].astype(np.int64)
        rows = [np.zeros(0, dtype=np.int64), *(np.arange(begin[k], begin[k] + size[k]) for k in chosen)]
        return np.asarray(points[np.concatenate(rows)].reshape(-1, 3), dtype=np.float32)

    def _check_island(self, island: int) -> int:
        if not 0 <= island < self.num_islands:
            raise ValueError(
                f"island {island} does not exist; this navmesh has islands 0 to {self.num_islands - 1}"
            )
        return island

    def _fan(self, island: int) -> tuple[NDArray[np.float64], NDArray[np.int64], Float32s]:
        """Triangles of the walkable polygons for sampling: running sum of plan areas, polygons, corners."""
        if island != -1:
            self._check_island(island)
        if island not in self._fans:
            polys = self.tile.polys
            usable = (polys["flags"] & WALK) != 0
            if island != -1:
                usable &= self._islands.of_poly == island
            rows = [
                (poly, polys["verts"][poly][[0, k - 1, k]])
                for poly in np.flatnonzero(usable)
                for k in range(2, polys["vert_count"][poly])
            ]
            owner = np.array([poly for poly, _ in rows], dtype=np.int64)
            corners = self.tile.verts[np.array([ids for _, ids in rows], dtype=np.int64).reshape(-1, 3)]
            flat = corners.astype(np.float64)[:, :, [0, 2]]
            a, b = flat[:, 1] - flat[:, 0], flat[:, 2] - flat[:, 0]
            areas = np.maximum(0.5 * (b[:, 0] * a[:, 1] - a[:, 0] * b[:, 1]), 0.0)
            self._fans[island] = (np.cumsum(areas), owner, corners)
        return self._fans[island]


def _fill(slot: Float32s, point: ArrayLike) -> None:
    """Copy a point into a work array: kernels then see one array type whatever the caller passes."""
    if len(point) != 3:  # type: ignore[arg-type]
        raise ValueError(f"a position has 3 coordinates, not {len(point)}")  # type: ignore[arg-type]
    slot[:] = point


def _rows(points: ArrayLike) -> Float32s:
    """Points as a new (m, 3) float32 array."""
    rows = np.array(points, dtype=np.float32, order="C", ndmin=2)
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise ValueError(f"positions have the shape (m, 3), not {rows.shape}")
    return rows
