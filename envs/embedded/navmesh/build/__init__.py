"""Navmesh of a triangle mesh, as habitat-sim builds it with Recast.

The steps are those of Recast 1.6.0 (Mikko Mononen, zlib license), in single precision and in its order of
operations, so that a build equals habitat-sim's: voxels (`rasterize`), filters (`filters`), walkable surface
(`compact`), watershed regions (`regions`, `region_merge`), contours (`contours`, `holes`), convex polygons
(`polygons`) and height detail (`heights`, `delaunay`, `detail`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.limits import MAX_COVERED_CELLS, MAX_SPANS
from envs.embedded.navmesh.build.compact import Surface, build_surface, distance_field, erode
from envs.embedded.navmesh.build.contours import trace_contours
from envs.embedded.navmesh.build.detail import Sampling, build_detail
from envs.embedded.navmesh.build.filters import (
    Spans,
    filter_ledges,
    filter_low_ceilings,
    filter_low_obstacles,
    flatten,
)
from envs.embedded.navmesh.build.grid import Grid, check_mesh, make_grid, mesh_bounds
from envs.embedded.navmesh.build.holes import join_holes
from envs.embedded.navmesh.build.polygons import MAX_VERTICES, Polygons, build_polygons, link_polygons
from envs.embedded.navmesh.build.rasterize import covered_cells, mark_walkable, rasterize
from envs.embedded.navmesh.build.region_merge import (
    describe_regions,
    merge_regions,
    remove_small,
    renumber,
    stacked_pairs,
)
from envs.embedded.navmesh.build.regions import MAX_REGIONS, watershed
from envs.embedded.navmesh.tiles.polymesh import WALKABLE_AREA, DetailMesh, PolyMesh
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from vlnbench.errors import UsageError

_SMALLEST_SAMPLE_STEP = 0.9


def _voxelize(corners: NDArray[np.float32], grid: Grid, settings: NavMeshSettings) -> Spans:
    """Spans of the triangles (T, 3, 3) with their walkable ones filtered."""
    covered = covered_cells(corners, grid)
    if covered > MAX_COVERED_CELLS:
        raise UsageError(
            f"navmesh: the triangles cover {covered:.3g} cells of {grid.cell_size:.4g} m, more than"
            f" {MAX_COVERED_CELLS}; check the units, remove repeated triangles or enlarge cell_size"
        )
    slope = np.float32(settings.agent_max_slope) / np.float32(180.0) * np.float32(math.pi)
    areas = mark_walkable(corners, np.float32(math.cos(float(slope))))
    head, table, fitted = rasterize(corners, areas, grid, MAX_SPANS)
    if not fitted:
        raise UsageError(f"navmesh: the mesh fills more than {MAX_SPANS} voxel spans; enlarge cell_size")
    spans = flatten(head, table)
    if settings.filter_low_hanging_obstacles:
        filter_low_obstacles(spans, grid.walkable_climb)
    if settings.filter_ledge_spans:
        filter_ledges(spans, grid)
    if settings.filter_walkable_low_height_spans:
        filter_low_ceilings(spans, grid.walkable_height)
    return spans


def _partition(surface: Surface, settings: NavMeshSettings) -> tuple[NDArray[np.uint16], int]:
    """Region of every floor, small ones removed or merged, and how many regions there are."""
    distance, largest = distance_field(surface)
    region, total = watershed(surface, distance, largest)
    if total > MAX_REGIONS:
        raise UsageError(f"navmesh: more than {MAX_REGIONS} regions; enlarge cell_size")
    regions, pool = describe_regions(surface, region, np.unique(stacked_pairs(surface, region)), total)
    remove_small(regions, pool, int(np.float32(settings.region_min_size) ** 2))
    merge_regions(regions, pool, int(np.float32(settings.region_merge_size) ** 2))
    return region, renumber(regions, region)


def _polygons(
    surface: Surface, region: NDArray[Any], count: int, grid: Grid, settings: NavMeshSettings
) -> Polygons:
    """Linked convex polygons of all regions."""
    max_edge = int(np.float32(settings.edge_max_len) / grid.cell_size)
    contours = join_holes(
        trace_contours(surface, region, grid.width, np.float32(settings.edge_max_error), max_edge), count
    )
    if len(contours.points) > MAX_VERTICES:
        raise UsageError(
            f"navmesh: {len(contours.points)} contour points, more than the {MAX_VERTICES} a navmesh can hold;"
            " enlarge cell_size or edge_max_error"
        )
    polygons = build_polygons(contours, int(settings.verts_per_poly))
    link_polygons(polygons)
    return polygons


def build_polymesh(
    vertices: NDArray[np.float32], triangles: NDArray[np.int32], settings: NavMeshSettings
) -> tuple[PolyMesh, DetailMesh]:
    """Walkable polygons of a scene for the body in `settings`, and their height detail.

    vertices: (V, 3) float32, world frame (y up), meters. triangles: (T, 3) int32, counter-clockwise seen from the
    walkable side. The grid spans all vertices, used or not. The same input gives the same arrays.

    Raises UsageError where the mesh is empty or broken, where its size exceeds the limits in `grid`, or where no
    walkable polygon is left.
    """
    check_mesh(vertices, triangles)
    vertices = np.array(vertices, order="C")
    low, high = mesh_bounds(vertices)
    grid = make_grid(low, high, settings)
    corners = vertices.take(triangles.ravel(), axis=0, mode="clip").reshape(-1, 3, 3)
    surface = build_surface(_voxelize(corners, grid, settings), grid)
    erode(surface, grid.walkable_radius)
    region, count = _partition(surface, settings)
    polygons = _polygons(surface, region, count, grid, settings)
    if len(polygons.polys) == 0:
        raise UsageError(
            f"navmesh: no walkable surface for a body of radius {settings.agent_radius:g} m and height"
            f" {settings.agent_height:g} m; check the scene's up axis, triangle winding and units, or the body"
        )
    step = settings.detail_sample_dist
    sampling = Sampling(
        distance=grid.cell_size * np.float32(step) if step >= _SMALLEST_SAMPLE_STEP else np.float32(0.0),
        max_error=grid.cell_height * np.float32(settings.detail_sample_max_error),
        search=max(1, math.ceil(np.float32(settings.edge_max_error))),
    )
    meshes, verts, tris = build_detail(surface, region, polygons, grid, sampling)
    high[1] += np.float32(grid.walkable_height) * grid.cell_height
    polymesh = PolyMesh(
        verts=polygons.verts,
        polys=polygons.polys,
        areas=np.full(len(polygons.polys), WALKABLE_AREA, np.uint8),
        bmin=low,
        bmax=high,
        cell_size=settings.cell_size,
        cell_height=settings.cell_height,
        nvp=int(settings.verts_per_poly),
    )
    return polymesh, DetailMesh(meshes=meshes, verts=verts, tris=tris)


def warm_up() -> Iterator[str]:
    """Compile the builder on a small floor; yields a label before each step."""
    yield "navmesh builder"
    corners = np.array([[0, 0, 0], [0, 0, 4], [4, 0, 4], [4, 0, 0]], np.float32)
    build_polymesh(corners, np.array([[0, 1, 2], [0, 2, 3]], np.int32), NavMeshSettings())
