"""Color of every visible pixel: one perspective-correct, filtered texture look-up each.

Mip levels are those of the software rasterizer that the reference was recorded with, Mesa's llvmpipe: one level of
detail for each 2x2 block of pixels, half of log2 of the larger squared derivative of the texel coordinates, the
logarithm taken as linear between powers of two.

A row is worked on in two passes: for every run of pixels that see the same triangle, which texels they show; then,
for the whole row, the colors. Steps of `LANES` pixels may go beyond the end of a run: what they write there is
overwritten by the next run, or lies beyond the image.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inline_kernel, inner_kernel, kernel
from envs.embedded.render.lanes import (
    LANES,
    Floats,
    Ints,
    bit_pattern,
    converted,
    counting,
    floor,
    highest,
    load,
    lowest,
    maximum,
    minimum,
    store,
    truncated,
    where_equal,
)
from envs.embedded.render.materials import MIRROR, REPEAT
from envs.embedded.render.raster import Target, Vertex, View, camera_vertex
from envs.embedded.render.scene import SceneArrays
from envs.embedded.render.simd import GROUP, filter_group, mix_group
from envs.embedded.render.texture import (
    FIRST_LEVEL,
    LAST_LEVEL,
    NEAREST_MAGNIFIED,
    NEAREST_MINIFIED,
    WHOLE_LEVELS,
    WRAP_U,
    WRAP_V,
)

SLOTS = 1024
"""Triangles whose plane equations are remembered within a frame; a power of two."""
SMALLEST_INVERSE = np.float32(5e-4)
"""Lower bound of the inverse depth in 1/m, beyond the far plane: keeps texture coordinates finite."""
TINT_BITS = 12
"""Fraction bits of the fixed point that vertex colors are multiplied in."""

Run = tuple[int, int, int]
"""Row, first column and number of pixels."""

Slopes = tuple[np.float32, np.float32, np.float32, np.float32, np.float32, np.float32, np.float32]
"""Inverse depth at a 2x2 block and its change to the right and downwards; square of the change of the texel
coordinates along a row; the three coefficients of the square of their change along a column."""

Line = NDArray[np.int32]
"""What is known of the pixels of one row, (TINTS + 3, at least W + LANES): rows UPPER to WEIGHTS are the look-ups
of `filter_group`, COARSE to COARSE + 2 those on the next smaller level, BLENDS the share of that level, of 256.
COLORS is the result, packed, and COLORS + 1 scratch. TINTS to TINTS + 2 are interpolated vertex colors."""

UPPER, LOWER, WEIGHTS, COARSE, BLENDS, COLORS, TINTS = 0, 1, 2, 3, 6, 7, 9


@kernel
def shade(scene: SceneArrays, view: View, target: Target, rgb: NDArray[np.uint8]) -> None:
    """Fill `rgb` (H, W, 3) from the triangles in `target`; black where nothing is hit."""
    height, width = target.size
    tinted = len(scene.colors) > 0
    n_planes = 6 if tinted else 3
    keys = np.full(SLOTS, -1, np.int32)
    planes = np.empty((SLOTS, n_planes, 3), np.float64)
    line = np.zeros((TINTS + 3 if tinted else TINTS, (width // LANES + 2) * LANES), np.int32)
    owner = target.triangle
    for row in range(height):
        column = 0
        while column < width:
            triangle = owner[row, column]
            count = 1
            while column + count < width and owner[row, column + count] == triangle:
                count += 1
            run = (row, column, count)
            column += count
            if triangle < 0:
                _nothing(run, line)
                continue
            slot = triangle & (SLOTS - 1)
            if keys[slot] != triangle:
                keys[slot] = triangle
                _planes(scene, view, target, triangle, planes[slot])
            _texture_run(scene.levels, planes[slot], scene.table[scene.material_ids[triangle]], run, line)
            if tinted:
                _tints(planes[slot], run, line)
        _filter(scene.texels, line)
        if tinted:
            _apply_tints(line)
        _unpack(line, rgb[row])


@inline_kernel
def _nothing(run: Run, line: Line) -> None:
    """Look-ups of the black texels at the start of the pool."""
    for k in range(run[1], run[1] + run[2]):
        line[UPPER, k] = line[LOWER, k] = line[WEIGHTS, k] = line[BLENDS, k] = 0


@inner_kernel
def _planes(scene: SceneArrays, view: View, target: Target, triangle: int, planes: NDArray[np.float64]) -> None:
    """Coefficients of 1/depth, u/depth, v/depth and the vertex colors / depth as linear functions of column, row
    and 1."""
    height, width = target.size
    a = camera_vertex(scene, view, triangle, 0)
    b = camera_vertex(scene, view, triangle, 1)
    c = camera_vertex(scene, view, triangle, 2)
    bc, ca, ab = _cross(b, c), _cross(c, a), _cross(a, b)
    volume = a[0] * bc[0] + a[1] * bc[1] + a[2] * bc[2]
    # A triangle seen exactly edge-on can still own a pixel after snapping: give it one constant color.
    scale = 1.0 / volume if abs(volume) > 1e-18 else 0.0
    per_pixel = scale / view.focal
    for k in range(len(planes)):
        fa, fb, fc = 1.0, 1.0, 1.0
        if k > 2:
            fa, fb, fc = scene.colors[triangle, k - 3], scene.colors[triangle, k], scene.colors[triangle, k + 3]
        elif k > 0:
            fa, fb, fc = scene.uvs[triangle, k - 1], scene.uvs[triangle, k + 1], scene.uvs[triangle, k + 3]
        x = (fa * bc[0] + fb * ca[0] + fc * ab[0]) * per_pixel
        y = -(fa * bc[1] + fb * ca[1] + fc * ab[1]) * per_pixel
        z = -(fa * bc[2] + fb * ca[2] + fc * ab[2]) * scale
        planes[k, 0] = x
        planes[k, 1] = y
        planes[k, 2] = z + x * (0.5 - 0.5 * width) + y * (0.5 - 0.5 * height)


@inline_kernel
def _cross(a: Vertex, b: Vertex) -> Vertex:
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


@inline_kernel
def _at(plane: NDArray[np.float64], column: int, row: int) -> float:
    return float(plane[0] * column + plane[1] * row + plane[2])


@inline_kernel
def _texture_run(
    levels: NDArray[np.int64], planes: NDArray[np.float64], texture: NDArray[np.int32], run: Run, line: Line
) -> None:
    """Find the texels of a run."""
    row, column, count = run
    first = int(texture[FIRST_LEVEL])
    w, u, v = planes[0], planes[1], planes[2]
    w0, wx = np.float32(_at(w, column, row)), np.float32(w[0])
    u0, ux = np.float32(_at(u, column, row)), np.float32(u[0])
    v0, vx = np.float32(_at(v, column, row)), np.float32(v[0])
    slopes = _slopes(planes, levels[first], column, row)
    last = np.int32((texture[LAST_LEVEL] - texture[FIRST_LEVEL]) * 256)
    odd = column & 1  # blocks begin at even columns, and both of their columns take the level of the left one
    for k in range(0, count, LANES):
        ahead = minimum(counting(k), count - 1)  # beyond the end: the last pixel again, overwritten later
        t = converted(ahead)
        z = np.float32(1) / maximum(w0 + t * wx, SMALLEST_INVERSE)
        us = _wrapped((u0 + t * ux) * z, texture[WRAP_U])
        vs = _wrapped((v0 + t * vx) * z, texture[WRAP_V])
        lods = _levels_of_detail(slopes, converted((ahead + odd) & ~1))
        lods = minimum(maximum(lods, 0), last)
        if texture[WHOLE_LEVELS]:
            lods = (lods + 128) & ~255  # the nearest level, with no share of the next
        _addresses(levels, first, texture, us, vs, lods, column + k, line)


@inline_kernel
def _slopes(planes: NDArray[np.float64], size: NDArray[np.int64], column: int, row: int) -> Slopes:
    """How far texture coordinates move along a row of 2x2 blocks, before perspective.

    The numerators of du/dx and dv/dx are constant along the row, those of du/dy and dv/dy linear, and the square
    of their length is a parabola.
    """
    even_row, even_column = row & ~1, column & ~1
    w, u, v = planes[0], planes[1], planes[2]
    w_first = _at(w, even_column, even_row)
    u_first = _at(u, even_column, even_row)
    v_first = _at(v, even_column, even_row)
    u_across = (u[0] * w_first - u_first * w[0]) * size[1]
    v_across = (v[0] * w_first - v_first * w[0]) * size[2]
    u_down, u_step = (u[1] * w_first - u_first * w[1]) * size[1], (u[1] * w[0] - u[0] * w[1]) * size[1]
    v_down, v_step = (v[1] * w_first - v_first * w[1]) * size[2], (v[1] * w[0] - v[0] * w[1]) * size[2]
    return (
        np.float32(w_first),
        np.float32(w[0]),
        np.float32(w[1]),
        np.float32(u_across * u_across + v_across * v_across),
        np.float32(u_down * u_down + v_down * v_down),
        np.float32(2.0 * (u_down * u_step + v_down * v_step)),
        np.float32(u_step * u_step + v_step * v_step),
    )


@inline_kernel
def _levels_of_detail(slopes: Slopes, t: Floats) -> Ints:
    """Mip level times 256 of the 2x2 blocks `t` columns to the right of the first one; not yet clamped."""
    w_first, w_right, w_below, across, down, down_step, down_bend = slopes
    here = w_first + t * w_right
    right, below = maximum(here + w_right, SMALLEST_INVERSE), maximum(here + w_below, SMALLEST_INVERSE)
    scale = np.float32(1) / (maximum(here, SMALLEST_INVERSE) * right * below)
    rise = down + t * (down_step + t * down_bend)
    rho_squared = maximum(across * below * below, rise * right * right) * scale * scale
    # The bits of a float are its logarithm, linear between powers of two.
    return (bit_pattern(rho_squared) - 0x3F800000) >> 16


@inline_kernel
def _wrapped(value: Floats, mode: int) -> Floats:
    """Texture coordinates brought into [0, 1]; 0 for NaN."""
    if mode == REPEAT:
        value = value - floor(value)
    elif mode == MIRROR:
        value = value - np.float32(2) * floor(np.float32(0.5) * value)
        value = minimum(value, np.float32(2) - value)
    return minimum(maximum(value, np.float32(0)), np.float32(1))


@inline_kernel
def _addresses(
    levels: NDArray[np.int64],
    first: int,
    texture: NDArray[np.int32],
    us: Floats,
    vs: Floats,
    lods: Ints,
    column: int,
    line: Line,
) -> None:
    """Texels and weights of `LANES` pixels from `column` on, on their level and on the next one."""
    ahead = lods >> 8
    blends = lods & 255
    store(line, BLENDS, column, blends)
    low, high = lowest(ahead), highest(ahead)
    # 1 where colors are interpolated between texel centers, 0 where the texel itself is taken
    smooth = where_equal(lods, 0, 1 - texture[NEAREST_MAGNIFIED], 1 - texture[NEAREST_MINIFIED])
    shift, fraction = smooth << 7, smooth * 255
    upper, lower, weights = _look_up(levels[first + low], us, vs, shift, fraction)
    for level in range(low + 1, high + 1):
        finer = _look_up(levels[first + level], us, vs, shift, fraction)
        upper = where_equal(ahead, level, finer[0], upper)
        lower = where_equal(ahead, level, finer[1], lower)
        weights = where_equal(ahead, level, finer[2], weights)
    store(line, UPPER, column, upper)
    store(line, LOWER, column, lower)
    store(line, WEIGHTS, column, weights)
    if highest(blends) > 0:
        last = int(texture[LAST_LEVEL])
        upper, lower, weights = _look_up(levels[min(first + low + 1, last)], us, vs, shift, fraction)
        for level in range(low + 1, high + 1):
            coarser = _look_up(levels[min(first + level + 1, last)], us, vs, shift, fraction)
            upper = where_equal(ahead, level, coarser[0], upper)
            lower = where_equal(ahead, level, coarser[1], lower)
            weights = where_equal(ahead, level, coarser[2], weights)
        store(line, COARSE, column, upper)
        store(line, COARSE + 1, column, lower)
        store(line, COARSE + 2, column, weights)


@inline_kernel
def _look_up(
    level: NDArray[np.int64], us: Floats, vs: Floats, shift: Ints, fraction: Ints
) -> tuple[Ints, Ints, Ints]:
    """Upper left and lower left texel and weights on one level."""
    x = truncated(us * np.float32(level[1] * 256)) - shift
    y = truncated(vs * np.float32(level[2] * 256)) - shift
    upper = (y >> 8) * np.int32(level[1] + 2) + (x >> 8) + np.int32(level[0])
    return upper, upper + np.int32(level[1] + 2), (x & fraction) | ((y & fraction) << 16)


@inline_kernel
def _filter(texels: NDArray[np.uint32], line: Line) -> None:
    """Turn the look-ups of a row into colors, in row COLORS, from one level or two."""
    for column in range(0, line.shape[1], GROUP):
        filter_group(line, UPPER, column, texels, COLORS)
        if line[BLENDS, column] | line[BLENDS, column + 1] | line[BLENDS, column + 2] | line[BLENDS, column + 3]:
            filter_group(line, COARSE, column, texels, COLORS + 1)
            mix_group(line, COLORS, COLORS + 1, BLENDS, column)


@inline_kernel
def _tints(planes: NDArray[np.float64], run: Run, line: Line) -> None:
    """Interpolated vertex colors of a run; 255 turns any color but black into white."""
    row, column, count = run
    w0, wx = np.float32(_at(planes[0], column, row)), np.float32(planes[0, 0])
    for channel in range(3):
        plane = planes[3 + channel]
        first, step = np.float32(_at(plane, column, row)), np.float32(plane[0])
        for k in range(0, count, LANES):
            t = converted(counting(k))
            share = (first + t * step) / maximum(w0 + t * wx, SMALLEST_INVERSE)
            share = minimum(maximum(share, np.float32(0)), np.float32(255))
            tint = truncated(share * np.float32(1 << TINT_BITS) + np.float32(0.5))
            store(line, TINTS + channel, column + k, tint)


@inline_kernel
def _apply_tints(line: Line) -> None:
    """Multiply the colors of a row by the interpolated vertex colors."""
    half = 1 << (TINT_BITS - 1)
    for k in range(0, line.shape[1], LANES):
        color = load(line, COLORS, k)
        red = ((color & 255) * load(line, TINTS, k) + half) >> TINT_BITS
        green = (((color >> 8) & 255) * load(line, TINTS + 1, k) + half) >> TINT_BITS
        blue = (((color >> 16) & 255) * load(line, TINTS + 2, k) + half) >> TINT_BITS
        color = minimum(red, 255) | (minimum(green, 255) << 8) | (minimum(blue, 255) << 16)
        store(line, COLORS, k, color)


@inline_kernel
def _unpack(line: Line, rgb: NDArray[np.uint8]) -> None:
    for k in range(len(rgb)):
        color = line[COLORS, k]
        rgb[k, 0] = color & 255
        rgb[k, 1] = (color >> 8) & 255
        rgb[k, 2] = (color >> 16) & 255
