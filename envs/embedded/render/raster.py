"""Visibility: which triangle, and at which inverse depth, every pixel sees.

Chunks of triangles are culled against the view frustum, drawn front to back, and skipped when a coarse depth
buffer shows that they are hidden. Coverage follows OpenGL: vertices snapped to 1/256 pixel, a pixel belongs to
a triangle if its center is inside or on a left or upper edge; back faces are never drawn.

Frames: the camera looks along -z with y up; `depth` is the distance along the optical axis in meters. Pixel
(0, 0) is the upper left one and has its center at (0.5, 0.5).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inline_kernel, kernel
from envs.embedded.render.lanes import (
    LANES,
    bit_pattern,
    converted,
    counting,
    load,
    lowest,
    maximum,
    minimum,
    store,
    where_greater,
)
from envs.embedded.render.scene import CHUNK, SceneArrays

TILE = 8
"""Rows of a tile of the coarse depth buffer; it is `LANES` columns wide."""
REFRESH = 12
"""Chunks drawn between two updates of the coarse depth buffer."""

BUCKETS = 512

Vertex = tuple[float, float, float]
"""Column and row in pixels, inverse depth in 1/m; or a position in the camera frame."""


class View(NamedTuple):
    """A pinhole camera: `rotation` (3, 3) float64 rows are the camera axes in the world frame."""

    rotation: NDArray[np.float64]
    position: NDArray[np.float64]
    focal: float
    near: float
    far: float


class Target(NamedTuple):
    """Buffers of one image size, reused from frame to frame.

    inverse_depth, triangle: (H, W + LANES) float32 1/m and int32, -1 where nothing is hit; columns from W on are
    not part of the image, and infinite in inverse_depth. farthest: (H / TILE, W / LANES) float32, the smallest
    inverse depth of every tile. size: (H, W) int64.
    """

    inverse_depth: NDArray[np.float32]
    triangle: NDArray[np.int32]
    farthest: NDArray[np.float32]
    size: NDArray[np.int64]


@kernel
def rasterize(scene: SceneArrays, view: View, target: Target) -> None:
    """Fill `target.inverse_depth` and `target.triangle`."""
    target.inverse_depth[:] = np.float32(1.0 / view.far)
    target.inverse_depth[:, target.size[1] :] = np.inf
    target.triangle[:] = -1
    target.farthest[:] = np.float32(1.0 / view.far)
    chunks, nearest = _visible_chunks(scene, view, target)
    drawn = 0
    for k in _front_to_back(nearest):
        chunk = chunks[k]
        if nearest[k] > view.near and _hidden(scene, view, target, chunk, nearest[k]):
            continue
        for triangle in range(chunk * CHUNK, min((chunk + 1) * CHUNK, scene.corners.shape[0])):
            _draw(scene, view, target, triangle)
        drawn += 1
        if drawn % REFRESH == 0:
            _refresh(target)


@kernel
def _visible_chunks(
    scene: SceneArrays, view: View, target: Target
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Chunks that touch the view frustum and the smallest depth of each."""
    height, width = target.size
    tan_x, tan_y = 0.5 * width / view.focal, 0.5 * height / view.focal
    bounds, axes, eye = scene.chunk_bounds, view.rotation, view.position
    chunks = np.empty(len(bounds), np.int64)
    nearest = np.empty(len(bounds), np.float64)
    n = 0
    for chunk in range(len(bounds)):
        x0, y0, z0 = bounds[chunk, 0] - eye[0], bounds[chunk, 1] - eye[1], bounds[chunk, 2] - eye[2]
        x1, y1, z1 = bounds[chunk, 3] - eye[0], bounds[chunk, 4] - eye[1], bounds[chunk, 5] - eye[2]
        cx, cy, cz = 0.5 * (x0 + x1), 0.5 * (y0 + y1), 0.5 * (z0 + z1)
        ex, ey, ez = x1 - cx, y1 - cy, z1 - cz
        depth = -(axes[2, 0] * cx + axes[2, 1] * cy + axes[2, 2] * cz)
        reach = abs(axes[2, 0]) * ex + abs(axes[2, 1]) * ey + abs(axes[2, 2]) * ez
        inside = depth + reach > view.near
        for axis, tan in ((0, tan_x), (1, tan_y)):
            for sign in (-1.0, 1.0):
                nx = sign * axes[axis, 0] - tan * axes[2, 0]
                ny = sign * axes[axis, 1] - tan * axes[2, 1]
                nz = sign * axes[axis, 2] - tan * axes[2, 2]
                distance = nx * cx + ny * cy + nz * cz + abs(nx) * ex + abs(ny) * ey + abs(nz) * ez
                inside = inside and distance > 0.0
        if inside:
            chunks[n] = chunk
            nearest[n] = depth - reach
            n += 1
    return chunks[:n], nearest[:n]


@kernel
def _front_to_back(nearest: NDArray[np.float64]) -> NDArray[np.int64]:
    """Order of chunks by depth, to within 1/8 m: a counting sort, as the order only has to be roughly right."""
    starts = np.zeros(BUCKETS + 1, np.int64)
    for depth in nearest:
        starts[min(max(int(depth * 8.0), 0), BUCKETS - 1) + 1] += 1
    for bucket in range(BUCKETS):
        starts[bucket + 1] += starts[bucket]
    order = np.empty(len(nearest), np.int64)
    for k in range(len(nearest)):
        bucket = min(max(int(nearest[k] * 8.0), 0), BUCKETS - 1)
        order[starts[bucket]] = k
        starts[bucket] += 1
    return order


@kernel
def _hidden(scene: SceneArrays, view: View, target: Target, chunk: int, nearest: float) -> bool:
    """Whether every tile under the chunk's box is already nearer than the box."""
    height, width = target.size
    bounds, axes, eye = scene.chunk_bounds, view.rotation, view.position
    left, right, top, bottom = math.inf, -math.inf, math.inf, -math.inf
    for corner in range(8):
        x = bounds[chunk, 3 if corner & 1 else 0] - eye[0]
        y = bounds[chunk, 4 if corner & 2 else 1] - eye[1]
        z = bounds[chunk, 5 if corner & 4 else 2] - eye[2]
        scale = -view.focal / (axes[2, 0] * x + axes[2, 1] * y + axes[2, 2] * z)
        column = 0.5 * width + scale * (axes[0, 0] * x + axes[0, 1] * y + axes[0, 2] * z)
        row = 0.5 * height - scale * (axes[1, 0] * x + axes[1, 1] * y + axes[1, 2] * z)
        left, right = min(left, column), max(right, column)
        top, bottom = min(top, row), max(bottom, row)
    first_row = int(max(top - 1.0, 0.0)) // TILE
    last_row = int(min(bottom + 1.0, height - 1.0)) // TILE
    first_column = int(max(left - 1.0, 0.0)) // LANES
    last_column = int(min(right + 1.0, width - 1.0)) // LANES
    limit = 1.0 / nearest
    for row in range(first_row, last_row + 1):
        for column in range(first_column, last_column + 1):
            if target.farthest[row, column] < limit:
                return False
    return True


@kernel
def _refresh(target: Target) -> None:
    """Bring `farthest` up to date."""
    height, width = target.size
    depth = target.inverse_depth
    for row in range(0, height, TILE):
        for column in range(0, width, LANES):
            farthest = load(depth, row, column)
            for k in range(row + 1, min(row + TILE, height)):
                farthest = minimum(farthest, load(depth, k, column))
            # Positive numbers are ordered like their bits.
            target.farthest[row // TILE, column // LANES] = np.int32(lowest(bit_pattern(farthest))).view(
                np.float32
            )


@inline_kernel
def camera_vertex(scene: SceneArrays, view: View, triangle: int, corner: int) -> Vertex:
    """A corner of a triangle in the camera frame."""
    axes = view.rotation
    x = scene.corners[triangle, 3 * corner] - view.position[0]
    y = scene.corners[triangle, 3 * corner + 1] - view.position[1]
    z = scene.corners[triangle, 3 * corner + 2] - view.position[2]
    return (
        axes[0, 0] * x + axes[0, 1] * y + axes[0, 2] * z,
        axes[1, 0] * x + axes[1, 1] * y + axes[1, 2] * z,
        axes[2, 0] * x + axes[2, 1] * y + axes[2, 2] * z,
    )


@inline_kernel
def _draw(scene: SceneArrays, view: View, target: Target, triangle: int) -> None:
    """Draw one triangle if it faces the camera, clipped at the near plane."""
    plane, eye = scene.planes, view.position
    side = plane[triangle, 0] * eye[0] + plane[triangle, 1] * eye[1] + plane[triangle, 2] * eye[2]
    if side + plane[triangle, 3] < -1e-4:
        return
    a = camera_vertex(scene, view, triangle, 0)
    b = camera_vertex(scene, view, triangle, 1)
    c = camera_vertex(scene, view, triangle, 2)
    front_a, front_b, front_c = a[2] <= -view.near, b[2] <= -view.near, c[2] <= -view.near
    count = int(front_a) + int(front_b) + int(front_c)
    if count == 0:
        return
    # Rotate so that `a` is the only vertex in front (count 1) or the only one behind (count 2).
    if front_b != front_a and front_b != front_c:
        a, b, c = b, c, a
    elif front_c != front_a and front_c != front_b:
        a, b, c = c, a, b
    d = c
    if count == 1:
        b, c = _cut(view, a, b), _cut(view, a, c)
    elif count == 2:
        a, d = _cut(view, a, b), _cut(view, a, c)
    first, second, third = _project(view, target, a), _project(view, target, b), _project(view, target, c)
    for _ in range(2 if count == 2 else 1):
        _fill(target, first, second, third, triangle)
        second, third = third, _project(view, target, d)


@inline_kernel
def _cut(view: View, a: Vertex, b: Vertex) -> Vertex:
    """Where the edge from `a` to `b` crosses the near plane; the same point for (b, a)."""
    if a[2] > b[2]:
        a, b = b, a
    t = (-view.near - a[2]) / (b[2] - a[2])
    return (a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]), -view.near)


@inline_kernel
def _project(view: View, target: Target, p: Vertex) -> Vertex:
    """Image position and inverse depth."""
    height, width = target.size
    inverse = -1.0 / p[2]
    column = 0.5 * width + view.focal * p[0] * inverse
    row = 0.5 * height - view.focal * p[1] * inverse
    return (column, row, inverse)


@inline_kernel
def _snap(p: Vertex) -> Vertex:
    return (math.floor(p[0] * 256.0 + 0.5) / 256.0, math.floor(p[1] * 256.0 + 0.5) / 256.0, p[2])


@inline_kernel
def _twice_area(a: Vertex, b: Vertex, c: Vertex) -> float:
    """Negative for front faces, as rows run downwards."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1])


@inline_kernel
def _fill(target: Target, a: Vertex, b: Vertex, c: Vertex, triangle: int) -> None:
    """Depth-test the pixels of a projected triangle, row by row.

    Snapped corners decide which pixels are covered; depth comes from the exact ones. Where the two disagree, on
    slivers, depth stays within the range of the corners.
    """
    height, width = target.size
    area = _twice_area(a, b, c)
    slope_x, slope_y = 0.0, 0.0
    if area < -1e-9:
        slope_x = ((b[2] - a[2]) * (c[1] - a[1]) - (c[2] - a[2]) * (b[1] - a[1])) / area
        slope_y = ((b[0] - a[0]) * (c[2] - a[2]) - (c[0] - a[0]) * (b[2] - a[2])) / area
    origin = a[2] + slope_x * (0.5 - a[0]) + slope_y * (0.5 - a[1])
    limits = (np.float32(min(a[2], b[2], c[2])), np.float32(max(a[2], b[2], c[2])))
    a, b, c = _snap(a), _snap(b), _snap(c)
    if not _twice_area(a, b, c) < 0.0:
        return
    first = max(math.ceil(min(a[1], b[1], c[1]) - 0.5), 0)
    last = min(math.ceil(max(a[1], b[1], c[1]) - 0.5), height)
    if first >= last or max(a[0], b[0], c[0]) <= 0.5 or min(a[0], b[0], c[0]) > width - 0.5:
        return
    if a[1] > b[1]:
        a, b = b, a
    if b[1] > c[1]:
        b, c = c, b
    if a[1] > b[1]:
        a, b = b, a
    long_edge = (c[0] - a[0]) / (c[1] - a[1])
    bend = a[0] + (b[1] - a[1]) * long_edge
    upper_edge = (b[0] - a[0]) / (b[1] - a[1]) if b[1] > a[1] else 0.0
    lower_edge = (c[0] - b[0]) / (c[1] - b[1]) if c[1] > b[1] else 0.0
    long_is_left = bend < b[0]
    step = np.float32(slope_x)
    for row in range(first, last):
        y = row + 0.5
        left = a[0] + (y - a[1]) * long_edge
        right = a[0] + (y - a[1]) * upper_edge if y < b[1] else b[0] + (y - b[1]) * lower_edge
        if not long_is_left:
            left, right = right, left
        start = int(max(math.ceil(left - 0.5), 0))
        stop = int(min(math.ceil(right - 0.5), width))
        if start < stop:
            base = np.float32(origin + slope_y * row + slope_x * start)
            _span(target, (row, start, stop - start), base, step, limits, triangle)


@inline_kernel
def _span(
    target: Target,
    span: tuple[int, int, int],
    base: np.float32,
    step: np.float32,
    limits: tuple[np.float32, np.float32],
    triangle: int,
) -> None:
    row, start, count = span
    depth, owner = target.inverse_depth, target.triangle
    for k in range(0, count, LANES):
        t = converted(counting(k))
        value = minimum(maximum(base + t * step, limits[0]), limits[1])
        value = where_greater(count, t, value, 0)  # beyond the end: never nearer
        before = load(depth, row, start + k)
        store(owner, row, start + k, where_greater(value, before, triangle, load(owner, row, start + k)))
        store(depth, row, start + k, maximum(value, before))
