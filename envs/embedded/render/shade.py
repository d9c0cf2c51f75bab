"""Colour of every visible pixel: one perspective-correct, trilinearly filtered texture look-up each.

The mip level follows OpenGL: log2 of the longer of the two image-space derivatives of the texel coordinates.
Pixels are shaded in runs, stretches of one row that see the same triangle.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..jit import kernel
from .glb import CLAMP, REPEAT
from .raster import Target, Vertex, View, camera_vertex
from .scene import SceneArrays
from .texture import (
    FIRST_LEVEL,
    LAST_LEVEL,
    NEAREST_MAGNIFIED,
    NEAREST_MINIFIED,
    WHOLE_LEVELS,
    WRAP_U,
    WRAP_V,
)

RUN = 64
"""Longest stretch of pixels that is shaded at once."""
SLOTS = 1024
"""Triangles whose plane equations are remembered within a frame; a power of two."""
SMALLEST_INVERSE = np.float32(5e-4)
"""Lower bound of the inverse depth in 1/m, beyond the far plane: keeps texture coordinates finite."""
_LANES = 0x00FF00FF00FF
_HALF = 0x008000800080

Run = tuple[int, int, int]
"""Row, first column and number of pixels."""
Coordinates = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]
"""Texture coordinates u and v in [0, 1] and mip level times 256, one per pixel of a run."""


@kernel
def shade(scene: SceneArrays, view: View, target: Target, rgb: NDArray[np.uint8]) -> None:
    """Fill `rgb` (H, W, 3) from the triangles in `target`; black where nothing is hit."""
    height, width = target.size
    owner = target.triangle
    keys = np.full(SLOTS, -1, np.int32)
    planes = np.empty((SLOTS, 9), np.float64)
    coordinates = (np.empty(RUN, np.float32), np.empty(RUN, np.float32), np.empty(RUN, np.int32))
    tinted = len(scene.colors) > 0
    for row in range(height):
        column = 0
        while column < width:
            start = row * width + column
            triangle = owner[start]
            count = 1
            limit = min(RUN, width - column)
            while count < limit and owner[start + count] == triangle:
                count += 1
            run = (row, column, count)
            column += count
            if triangle < 0:
                for k in range(run[1], column):
                    rgb[row, k, 0] = rgb[row, k, 1] = rgb[row, k, 2] = 0
                continue
            slot = triangle & (SLOTS - 1)
            if keys[slot] != triangle:
                keys[slot] = triangle
                _planes(scene, view, target, triangle, planes[slot])
            texture = scene.table[scene.material_ids[triangle]]
            _coordinates(planes[slot], scene.levels, texture, run, coordinates)
            if texture[NEAREST_MAGNIFIED] or texture[NEAREST_MINIFIED]:
                _round(scene.levels, texture, run, coordinates)
            _sample(scene.texels, scene.levels, texture, run, coordinates, rgb)
            if tinted:
                _tint(scene, view, target, triangle, run, rgb)


@kernel
def _planes(scene: SceneArrays, view: View, target: Target, triangle: int, planes: NDArray[np.float64]) -> None:
    """Coefficients of u/depth, v/depth and 1/depth as linear functions of column, row and 1."""
    height, width = target.size
    a = camera_vertex(scene, view, triangle, 0)
    b = camera_vertex(scene, view, triangle, 1)
    c = camera_vertex(scene, view, triangle, 2)
    bc, ca, ab = _cross(b, c), _cross(c, a), _cross(a, b)
    volume = a[0] * bc[0] + a[1] * bc[1] + a[2] * bc[2]
    # A triangle seen exactly edge-on can still own a pixel after snapping: give it one constant colour.
    scale = 1.0 / volume if abs(volume) > 1e-18 else 0.0
    per_pixel = scale / view.focal
    for k in range(3):
        fa, fb, fc = 1.0, 1.0, 1.0
        if k < 2:
            fa, fb, fc = scene.uvs[triangle, k], scene.uvs[triangle, 2 + k], scene.uvs[triangle, 4 + k]
        x = (fa * bc[0] + fb * ca[0] + fc * ab[0]) * per_pixel
        y = -(fa * bc[1] + fb * ca[1] + fc * ab[1]) * per_pixel
        z = -(fa * bc[2] + fb * ca[2] + fc * ab[2]) * scale
        planes[3 * k] = x
        planes[3 * k + 1] = y
        planes[3 * k + 2] = z + x * (0.5 - 0.5 * width) + y * (0.5 - 0.5 * height)


@kernel
def _cross(a: Vertex, b: Vertex) -> Vertex:
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


@kernel
def _coordinates(
    planes: NDArray[np.float64],
    levels: NDArray[np.int64],
    texture: NDArray[np.int32],
    run: Run,
    out: Coordinates,
) -> None:
    """Texture coordinates and mip levels of a run."""
    row, column, count = run
    us, vs, lods = out
    texels_u, texels_v = np.float32(levels[texture[FIRST_LEVEL], 1]), np.float32(levels[texture[FIRST_LEVEL], 2])
    u0 = np.float32(planes[0] * column + planes[1] * row + planes[2])
    v0 = np.float32(planes[3] * column + planes[4] * row + planes[5])
    w0 = np.float32(planes[6] * column + planes[7] * row + planes[8])
    ux, uy = np.float32(planes[0]), np.float32(planes[1])
    vx, vy = np.float32(planes[3]), np.float32(planes[4])
    wx, wy = np.float32(planes[6]), np.float32(planes[7])
    highest = np.float32((texture[LAST_LEVEL] - texture[FIRST_LEVEL]) * 256)
    for k in range(count):
        t = np.float32(k)
        z = np.float32(1) / max(w0 + t * wx, SMALLEST_INVERSE)
        u, v = (u0 + t * ux) * z, (v0 + t * vx) * z
        us[k], vs[k] = u, v
        dux, duy = (ux - u * wx) * z * texels_u, (uy - u * wy) * z * texels_u
        dvx, dvy = (vx - v * wx) * z * texels_v, (vy - v * wy) * z * texels_v
        rho = max(dux * dux + dvx * dvx, duy * duy + dvy * dvy)
        bits = np.float32(rho).view(np.int32)
        mantissa = np.int32((bits & 0x7FFFFF) | 0x3F800000).view(np.float32)
        # log2(m) over [1, 2) as a parabola, within 0.01
        log2 = (
            np.float32((bits >> 23) - 128)
            + mantissa * (np.float32(2.0246) - np.float32(0.33744) * mantissa)
            - np.float32(0.68717)
        )
        lods[k] = np.int32(min(max(log2 * np.float32(128), np.float32(0)), highest))
    if texture[WHOLE_LEVELS]:
        for k in range(count):
            lods[k] = (lods[k] + 128) & ~255
    if texture[WRAP_U] == REPEAT and texture[WRAP_V] == REPEAT:
        for k in range(count):
            us[k] -= np.floor(us[k])
            vs[k] -= np.floor(vs[k])
    else:
        for k in range(count):
            us[k] = _wrapped(us[k], texture[WRAP_U])
            vs[k] = _wrapped(vs[k], texture[WRAP_V])


@kernel
def _wrapped(value: float, mode: int) -> float:
    if mode == REPEAT:
        return value - math.floor(value)
    if mode == CLAMP:
        return min(max(value, 0.0), 1.0)
    folded = value - 2.0 * math.floor(0.5 * value)
    return folded if folded <= 1.0 else 2.0 - folded


@kernel
def _round(levels: NDArray[np.int64], texture: NDArray[np.int32], run: Run, coordinates: Coordinates) -> None:
    """Move coordinates to the centre of the nearest texel of their level, where a texture wants no interpolation.

    Between two levels the coarser one is then read at that place too.
    """
    us, vs, lods = coordinates
    for k in range(run[2]):
        if texture[NEAREST_MINIFIED if lods[k] > 0 else NEAREST_MAGNIFIED]:
            level = int(texture[FIRST_LEVEL]) + (int(lods[k]) >> 8)
            width, height = levels[level, 1], levels[level, 2]
            us[k] = min((math.floor(us[k] * width) + 0.5) / width, 1.0)
            vs[k] = min((math.floor(vs[k] * height) + 0.5) / height, 1.0)


@kernel
def _sample(
    texels: NDArray[np.uint32],
    levels: NDArray[np.int64],
    texture: NDArray[np.int32],
    run: Run,
    coordinates: Coordinates,
    rgb: NDArray[np.uint8],
) -> None:
    """Write the filtered colours of a run."""
    row, column, count = run
    us, vs, lods = coordinates
    first = int(texture[FIRST_LEVEL])
    # What to add to a negative coordinate: one period where the texture repeats, nothing (then clamp) elsewhere.
    periods_u, periods_v = int(texture[WRAP_U] == REPEAT), int(texture[WRAP_V] == REPEAT)
    for k in range(count):
        lod = int(lods[k])
        level, blend = first + (lod >> 8), lod & 255
        color = _bilinear(texels, levels, level, us[k], vs[k], periods_u, periods_v)
        if blend > 0:
            coarse = _bilinear(texels, levels, level + 1, us[k], vs[k], periods_u, periods_v)
            color = ((color * (256 - blend) + coarse * blend + _HALF) >> 8) & _LANES
        line, pixel = np.uint64(row), np.uint64(column + k)
        rgb[line, pixel, 0] = color & 255
        rgb[line, pixel, 1] = (color >> 32) & 255
        rgb[line, pixel, 2] = (color >> 16) & 255


@kernel
def _bilinear(
    texels: NDArray[np.uint32],
    levels: NDArray[np.int64],
    level: int,
    u: float,
    v: float,
    periods_u: int,
    periods_v: int,
) -> int:
    """Red, blue and green of one level, in 16-bit lanes."""
    width, height = levels[np.uint64(level), 1], levels[np.uint64(level), 2]
    x = int(u * np.float32(width * 256)) - 128
    y = int(v * np.float32(height * 256)) - 128
    if x < 0:
        x = max(x + periods_u * width * 256, 0)
    if y < 0:
        y = max(y + periods_v * height * 256, 0)
    upper = levels[np.uint64(level), 0] + (y >> 8) * (width + 1) + (x >> 8)
    lower = upper + width + 1
    fx, fy = x & 255, y & 255
    w11 = (fx * fy) >> 8
    total = _spread(texels[np.uint64(upper)]) * (256 - fx - fy + w11) + _spread(texels[np.uint64(upper + 1)]) * (
        fx - w11
    )
    total += _spread(texels[np.uint64(lower)]) * (fy - w11) + _spread(texels[np.uint64(lower + 1)]) * w11
    return ((total + _HALF) >> 8) & _LANES


@kernel
def _spread(texel: int) -> int:
    """Red, blue and green of a texel in 16-bit lanes of one integer."""
    wide = int(texel)
    return (wide | (wide << 24)) & _LANES


@kernel
def _tint(scene: SceneArrays, view: View, target: Target, triangle: int, run: Run, rgb: NDArray[np.uint8]) -> None:
    """Multiply a run of colours by the interpolated vertex colours."""
    row, column, count = run
    height, width = target.size
    a = camera_vertex(scene, view, triangle, 0)
    b = camera_vertex(scene, view, triangle, 1)
    c = camera_vertex(scene, view, triangle, 2)
    bc, ca, ab = _cross(b, c), _cross(c, a), _cross(a, b)
    y = (0.5 * height - row - 0.5) / view.focal
    for k in range(count):
        x = (column + k + 0.5 - 0.5 * width) / view.focal
        wa = x * bc[0] + y * bc[1] - bc[2]
        wb = x * ca[0] + y * ca[1] - ca[2]
        wc = x * ab[0] + y * ab[1] - ab[2]
        total = wa + wb + wc
        scale = 1.0 / (total * 255.0) if abs(total) > 1e-18 else 0.0
        for channel in range(3):
            tint = wa * scene.colors[triangle, channel]
            tint += wb * scene.colors[triangle, 3 + channel] + wc * scene.colors[triangle, 6 + channel]
            value = rgb[row, column + k, channel] * min(max(tint * scale, 0.0), 1.0)
            rgb[row, column + k, channel] = np.uint8(value + 0.5)
