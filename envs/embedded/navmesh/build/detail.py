"""Height detail of polygons: samples along their edges and inside them, where the surface departs from the plane.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.build.compact import Surface
from envs.embedded.navmesh.build.delaunay import delaunay, triangulate_hull
from envs.embedded.navmesh.build.grid import Grid
from envs.embedded.navmesh.build.heights import Patch, fill_patch, patch_bounds, patch_height
from envs.embedded.navmesh.build.kinds import Int, Real
from envs.embedded.navmesh.build.polygons import Polygons

MAX_VERTICES = 127
"""Most vertices of the detail of one polygon."""

MAX_TRIANGLES = 255
_MAX_EDGE = 32
_BIG = np.float32(3.4028234663852886e38)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_SAME_X = np.float32(1e-6)
_INSIDE = np.float32(1e-4)
_JITTER = np.float32(0.1)
_JITTER_STEPS = np.float32(65535.0)
_ON_EDGE = np.float32(0.001) * np.float32(0.001)


class Sampling(NamedTuple):
    """distance: between samples, meters (0 for none). max_error: meters. search: rings of cells tried."""

    distance: np.float32
    max_error: np.float32
    search: int


class Work(NamedTuple):
    """Scratch for one polygon: points and their number in `used[0]`, outline, triangles, edges."""

    points: NDArray[np.float32]
    used: NDArray[np.int64]
    hull: NDArray[np.int64]
    triangles: NDArray[np.int64]
    edges: NDArray[np.int64]


@inner_kernel
def _segment_distance_3d(points: NDArray[Any], p: Int, a: Int, b: Int) -> Real:
    """Squared distance of a point from the segment a-b."""
    ux = points[b, 0] - points[a, 0]
    uy = points[b, 1] - points[a, 1]
    uz = points[b, 2] - points[a, 2]
    dx = points[p, 0] - points[a, 0]
    dy = points[p, 1] - points[a, 1]
    dz = points[p, 2] - points[a, 2]
    length = ux * ux + uy * uy + uz * uz
    t = ux * dx + uy * dy + uz * dz
    if length > _ZERO:
        t /= length
    t = min(max(t, _ZERO), _ONE)
    dx = points[a, 0] + t * ux - points[p, 0]
    dy = points[a, 1] + t * uy - points[p, 1]
    dz = points[a, 2] + t * uz - points[p, 2]
    return dx * dx + dy * dy + dz * dz


@inner_kernel
def _segment_distance(x: Real, z: Real, corners: NDArray[Any], a: Int, b: Int) -> Real:
    """Squared distance in the ground plane of (x, z) from the segment a-b."""
    ux = corners[b, 0] - corners[a, 0]
    uz = corners[b, 2] - corners[a, 2]
    dx = x - corners[a, 0]
    dz = z - corners[a, 2]
    length = ux * ux + uz * uz
    t = ux * dx + uz * dz
    if length > _ZERO:
        t /= length
    t = min(max(t, _ZERO), _ONE)
    dx = corners[a, 0] + t * ux - x
    dz = corners[a, 2] + t * uz - z
    return dx * dx + dz * dz


@inner_kernel
def _inset(corners: NDArray[Any], n: Int, x: Real, z: Real) -> Real:
    """Squared distance of (x, z) from a polygon's outline, negative inside."""
    nearest = _BIG
    inside = False
    j = n - 1
    for i in range(n):
        xi, zi, xj, zj = corners[i, 0], corners[i, 2], corners[j, 0], corners[j, 2]
        if (zi > z) != (zj > z) and x < (xj - xi) * (z - zi) / (zj - zi) + xi:
            inside = not inside
        nearest = min(nearest, _segment_distance(x, z, corners, j, i))
        j = i
    return -nearest if inside else nearest


@inner_kernel
def _min_extent(corners: NDArray[Any], n: Int) -> Real:
    """Smallest width of a polygon, meters."""
    smallest = _BIG
    for i in range(n):
        j = (i + 1) % n
        widest = _ZERO
        for k in range(n):
            if k not in (i, j):
                widest = max(widest, _segment_distance(corners[k, 0], corners[k, 2], corners, i, j))
        smallest = min(smallest, widest)
    return np.sqrt(smallest)


@inner_kernel
def _mesh_error(work: Work, triangles: Int, x: Real, y: Real, z: Real) -> Real:
    """Vertical distance of a point from the triangles above or below it, -1 where there is none."""
    nearest = _BIG
    points = work.points
    for f in range(triangles):
        a, b, c = work.triangles[f, 0], work.triangles[f, 1], work.triangles[f, 2]
        ux, uz = points[c, 0] - points[a, 0], points[c, 2] - points[a, 2]
        vx, vz = points[b, 0] - points[a, 0], points[b, 2] - points[a, 2]
        wx, wz = x - points[a, 0], z - points[a, 2]
        uu = ux * ux + uz * uz
        uv = ux * vx + uz * vz
        uw = ux * wx + uz * wz
        vv = vx * vx + vz * vz
        vw = vx * wx + vz * wz
        scale = _ONE / (uu * vv - uv * uv)
        s = (vv * uw - uv * vw) * scale
        t = (uu * vw - uv * uw) * scale
        if s >= -_INSIDE and t >= -_INSIDE and s + t <= _ONE + _INSIDE:
            height = points[a, 1] + (points[c, 1] - points[a, 1]) * s + (points[b, 1] - points[a, 1]) * t
            nearest = min(nearest, abs(height - y))
    return -_ONE if nearest == _BIG else nearest


@inner_kernel
def _sample_edge(
    work: Work, j: Int, i: Int, patch: Patch, grid: Grid, sampling: Sampling, edge: NDArray[Any]
) -> Int:
    """Heights along the polygon edge between corners j and i, into `edge`; the last index."""
    points = work.points
    dx = points[i, 0] - points[j, 0]
    dy = points[i, 1] - points[j, 1]
    dz = points[i, 2] - points[j, 2]
    n = 1 + int(np.floor(np.sqrt(dx * dx + dz * dz) / sampling.distance))
    n = max(min(min(n, _MAX_EDGE - 1), MAX_VERTICES - 1 - work.used[0]), 1)
    for k in range(n + 1):
        u = np.float32(k) / np.float32(n)
        x = points[j, 0] + dx * u
        y = points[j, 1] + dy * u
        z = points[j, 2] + dz * u
        edge[k, 0] = x
        edge[k, 1] = np.float32(
            patch_height(patch, x, y, z, grid.cell_size, grid.cell_height, sampling.search)
        ) * (grid.cell_height)
        edge[k, 2] = z
    return n


@inner_kernel
def _simplify_edge(edge: NDArray[Any], last: Int, max_error: Real, kept: NDArray[Any]) -> Int:
    """Samples of an edge that are needed to follow its heights; their number, both ends included."""
    kept[0] = 0
    kept[1] = last
    n = 2
    k = 0
    while k < n - 1:
        a, b = kept[k], kept[k + 1]
        largest = _ZERO
        best = -1
        for m in range(a + 1, b):
            deviation = _segment_distance_3d(edge, m, a, b)
            if deviation > largest:
                largest = deviation
                best = m
        if best != -1 and largest > max_error * max_error:
            for m in range(n, k + 1, -1):
                kept[m] = kept[m - 1]
            kept[k + 1] = best
            n += 1
        else:
            k += 1
    return n


@kernel
def _outline(work: Work, corners: Int, patch: Patch, grid: Grid, sampling: Sampling) -> Int:
    """Outline of the polygon with the samples its edges need; its number of points."""
    edge = np.empty((_MAX_EDGE + 1, 3), np.float32)
    kept = np.empty(_MAX_EDGE + 1, np.int64)
    n_hull, j = 0, corners - 1
    for i in range(corners):
        work.hull[n_hull] = j
        n_hull += 1
        if sampling.distance > _ZERO:
            a, b = j, i
            axis = 2 if abs(work.points[a, 0] - work.points[b, 0]) < _SAME_X else 0
            swapped = work.points[a, axis] > work.points[b, axis]
            if swapped:
                a, b = b, a
            last = _sample_edge(work, a, b, patch, grid, sampling, edge)
            n = _simplify_edge(edge, last, sampling.max_error, kept)
            for m in range(1, n - 1):
                sample = kept[n - 1 - m] if swapped else kept[m]
                for c in range(3):
                    work.points[work.used[0], c] = edge[sample, c]
                work.hull[n_hull] = work.used[0]
                n_hull += 1
                work.used[0] += 1
        j = i
    return n_hull


@kernel
def _grid_samples(work: Work, corners: Int, patch: Patch, grid: Grid, sampling: Sampling) -> NDArray[np.int32]:
    """Samples (x step, height, z step, 0) on a regular grid well inside the polygon."""
    low = work.points[0].copy()
    high = work.points[0].copy()
    for i in range(1, corners):
        for c in range(3):
            low[c] = min(low[c], work.points[i, c])
            high[c] = max(high[c], work.points[i, c])
    x0, x1 = int(np.floor(low[0] / sampling.distance)), int(np.ceil(high[0] / sampling.distance))
    z0, z1 = int(np.floor(low[2] / sampling.distance)), int(np.ceil(high[2] / sampling.distance))
    samples = np.empty((max(x1 - x0, 0) * max(z1 - z0, 0), 4), np.int32)
    y = (high[1] + low[1]) / _TWO
    count = 0
    for step_z in range(z0, z1):
        for step_x in range(x0, x1):
            x = np.float32(step_x) * sampling.distance
            z = np.float32(step_z) * sampling.distance
            if _inset(work.points, corners, x, z) > -sampling.distance / _TWO:
                continue
            samples[count, 0] = step_x
            samples[count, 1] = patch_height(patch, x, y, z, grid.cell_size, grid.cell_height, sampling.search)
            samples[count, 2] = step_z
            samples[count, 3] = 0
            count += 1
    return samples[:count]


@inner_kernel
def _jitter(i: Int, factor: Int) -> Real:
    """A fixed pseudo-random number in [-1, 1]; `factor` is the low half of Recast's multiplier."""
    return np.float32((i * factor) & 0xFFFF) / _JITTER_STEPS * _TWO - _ONE


@inner_kernel
def _worst_sample(
    work: Work, triangles: Int, samples: NDArray[Any], grid: Grid, distance: Real
) -> tuple[Int, Real]:
    """Sample farthest above or below the triangles, which is appended to the points; -1 for none. And how far."""
    best = -1
    largest = _ZERO
    new = work.points[work.used[0]]
    for i in range(len(samples)):
        if samples[i, 3] != 0:
            continue
        x = np.float32(samples[i, 0]) * distance + _jitter(i, 0xB343) * grid.cell_size * _JITTER
        y = np.float32(samples[i, 1]) * grid.cell_height
        z = np.float32(samples[i, 2]) * distance + _jitter(i, 0x3841) * grid.cell_size * _JITTER
        error = _mesh_error(work, triangles, x, y, z)
        if error > largest:
            largest = error
            best = i
            new[0] = x
            new[1] = y
            new[2] = z
    return best, largest


@kernel
def _detail(work: Work, corners: Int, patch: Patch, grid: Grid, sampling: Sampling) -> Int:
    """Detail triangles of the polygon whose corners lie in `work`; their number."""
    extent = _min_extent(work.points, corners)
    n_hull = _outline(work, corners, patch, grid, sampling)
    hull = work.hull[:n_hull]
    triangles = triangulate_hull(work.points, hull, corners, work.triangles)
    if sampling.distance == _ZERO or extent < sampling.distance * _TWO:
        return triangles
    samples = _grid_samples(work, corners, patch, grid, sampling)
    for _ in range(len(samples)):
        if work.used[0] >= MAX_VERTICES:
            break
        best, error = _worst_sample(work, triangles, samples, grid, sampling.distance)
        if best == -1 or error <= sampling.max_error:
            break
        samples[best, 3] = 1
        work.used[0] += 1
        triangles = delaunay(work.points, work.used[0], hull, work.edges, work.triangles)
    return min(triangles, MAX_TRIANGLES)


@inner_kernel
def _edge_flag(points: NDArray[Any], a: Int, b: Int, corners: NDArray[Any], n: Int) -> Int:
    """1 where the segment a-b lies on the polygon's outline, else 0."""
    j = n - 1
    for i in range(n):
        if (
            _segment_distance(points[a, 0], points[a, 2], corners, j, i) < _ON_EDGE
            and _segment_distance(points[b, 0], points[b, 2], corners, j, i) < _ON_EDGE
        ):
            return 1
        j = i
    return 0


@inner_kernel
def _place_corners(mesh: Polygons, p: Int, n: Int, grid: Grid, work: Work) -> None:
    """Corners of polygon p in meters from the grid's origin."""
    for j in range(n):
        v = mesh.polys[p, j]
        work.points[j, 0] = np.float32(mesh.verts[v, 0]) * grid.cell_size
        work.points[j, 1] = np.float32(mesh.verts[v, 1]) * grid.cell_height
        work.points[j, 2] = np.float32(mesh.verts[v, 2]) * grid.cell_size
    work.used[0] = n


@inner_kernel
def _to_world(work: Work, grid: Grid) -> None:
    """Move the points to the world frame, one cell height up."""
    for i in range(work.used[0]):
        work.points[i, 0] += grid.x_min
        work.points[i, 1] += grid.y_min + grid.cell_height
        work.points[i, 2] += grid.z_min


@kernel
def _grown(array: NDArray[Any], used: Int, extra: Int) -> NDArray[Any]:
    """The rows of `array` with room for `extra` more."""
    if used + extra <= len(array):
        return array
    larger = np.empty((2 * (used + extra), array.shape[1]), array.dtype)
    for i in range(used):
        for c in range(array.shape[1]):
            larger[i, c] = array[i, c]
    return larger


@kernel
def build_detail(
    surface: Surface, region: NDArray[Any], mesh: Polygons, grid: Grid, sampling: Sampling
) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.uint8]]:
    """Arrays `meshes`, `verts` and `tris` of a DetailMesh."""
    total = len(mesh.polys)
    cells = 1
    for p in range(total):
        _, _, width, depth, _ = patch_bounds(mesh, p, grid)
        cells = max(cells, width * depth)
    heights = np.empty(cells, np.int32)
    queue = np.empty((cells + 4, 3), np.int32)
    rows = 10 * (MAX_VERTICES + 1)
    work = Work(
        np.empty((2 * MAX_VERTICES, 3), np.float32),
        np.zeros(1, np.int64),
        np.empty(2 * MAX_VERTICES, np.int64),
        np.empty((rows, 3), np.int64),
        np.empty((rows, 4), np.int64),
    )
    meshes = np.empty((total, 4), np.uint32)
    verts = np.empty((8 * total, 3), np.float32)
    tris = np.empty((8 * total, 4), np.uint8)
    n_verts, n_tris = np.int64(0), np.int64(0)
    for p in range(total):
        x, z, width, depth, n = patch_bounds(mesh, p, grid)
        patch = Patch(heights, queue, x, z, width, depth)
        fill_patch(surface, region, mesh, p, n, patch, grid.width)
        _place_corners(mesh, p, n, grid, work)
        found = _detail(work, n, patch, grid, sampling)
        _to_world(work, grid)
        count = work.used[0]
        verts = _grown(verts, n_verts, count)
        tris = _grown(tris, n_tris, found)
        meshes[p, 0] = n_verts
        meshes[p, 1] = count
        meshes[p, 2] = n_tris
        meshes[p, 3] = found
        for i in range(count):
            for c in range(3):
                verts[n_verts, c] = work.points[i, c]
            n_verts += 1
        for f in range(found):
            a, b, c = work.triangles[f, 0], work.triangles[f, 1], work.triangles[f, 2]
            flags = _edge_flag(work.points, a, b, work.points, n)
            flags |= _edge_flag(work.points, b, c, work.points, n) << 2
            flags |= _edge_flag(work.points, c, a, work.points, n) << 4
            for k in range(3):
                tris[n_tris, k] = work.triangles[f, k]
            tris[n_tris, 3] = flags
            n_tris += 1
    return meshes, verts[:n_verts].copy(), tris[:n_tris].copy()
