"""Textures as one pool of packed texels with mip-maps.

A texel is a uint32 with red in the lowest byte. Every level has a border of one texel, a copy of the opposite edge
(repeat) or of the same one (clamp, mirror): the 2x2 neighborhood of a filtered look-up is then always in place.
The pool begins with two black texels, which are what is seen where nothing is hit. Mip level k has size
max(1, size >> k) and is made from level k - 1 by a linear filter at the center of the smaller texel: a 2x2 box for
even sizes, on raw 8-bit values, as `glGenerateMipmap` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.render.materials import NEAREST_MIP, NO_MIPS, REPEAT, Material
from vlnbench.errors import UsageError

FIRST_LEVEL, LAST_LEVEL, WRAP_U, WRAP_V, NEAREST_MAGNIFIED, NEAREST_MINIFIED, WHOLE_LEVELS = range(7)
"""Columns of the material table."""
MAX_POOL = 2**31
_BLACK = 0xFF000000


def build_pool(
    materials: Sequence[Material], images: Sequence[NDArray[np.uint8]], path: Path
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint32]]:
    """Pack the textures of all materials of scene `path`, each multiplied by its base color factor.

    Returns:
        table: (M, 7) int32 per material: first and last level, wrap modes along u and v, whether the nearest
            texel is taken when magnified and when minified, whether only whole levels are.
        levels: (L, 3) int64 offset of the first texel in `texels`, width and height of each mip level; rows are
            width + 2 apart.
        texels: (N,) uint32.

    Raises:
        UsageError: more texels than an int32 can count.
    """
    slots: dict[Material, tuple[int, int]] = {}
    table = np.empty((len(materials), 7), np.int32)
    levels: list[tuple[int, int, int]] = []
    offset = 2
    for index, material in enumerate(materials):
        sampler = material.sampler
        if material not in slots:
            sizes = _level_sizes(material, images)
            slots[material] = (len(levels), len(levels) + len(sizes) - 1)
            for height, width in sizes:
                levels.append((offset + width + 3, width, height))
                offset += (height + 2) * (width + 2)
        table[index] = (*slots[material], *sampler.wrap, *sampler.nearest, sampler.mips == NEAREST_MIP)
    if offset >= MAX_POOL:
        raise UsageError(
            f"{path}: images: {offset} texels with mip-maps, more than {MAX_POOL}; use smaller textures"
        )
    texels = np.empty(offset, np.uint32)
    texels[:2] = _BLACK
    for material, (first, last) in slots.items():
        level = _base_level(material, images)
        for number in range(first, last + 1):
            begin, width, height = levels[number]
            if number > first:
                smaller = np.empty((height, width), np.uint32)
                downsample(level, smaller)
                level = smaller
            start = begin - width - 3
            padded = texels[start : start + (height + 2) * (width + 2)].reshape(height + 2, width + 2)
            _fill(padded, level, material.sampler.wrap)
    return table, np.array(levels, np.int64), texels


def _level_sizes(material: Material, images: Sequence[NDArray[np.uint8]]) -> list[tuple[int, int]]:
    """(height, width) of the mip levels of a material."""
    height, width = images[material.texture].shape[:2] if material.texture >= 0 else (1, 1)
    sizes = [(height, width)]
    while material.sampler.mips != NO_MIPS and max(height, width) > 1:
        height, width = max(1, height >> 1), max(1, width >> 1)
        sizes.append((height, width))
    return sizes


def _base_level(material: Material, images: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint32]:
    image = images[material.texture] if material.texture >= 0 else np.full((1, 1, 3), 255, np.uint8)
    rgba = np.empty((*image.shape[:2], 4), np.uint8)
    for channel, factor in enumerate(material.factor):
        scaled = np.floor(np.arange(256) * factor + 0.5).astype(np.uint8)
        rgba[..., channel] = image[..., channel] if factor == 1.0 else scaled[image[..., channel]]
    rgba[..., 3] = 255
    return rgba.view("<u4")[..., 0].astype(np.uint32, copy=False)


def _fill(padded: NDArray[np.uint32], level: NDArray[np.uint32], wrap: tuple[int, int]) -> None:
    """Write a level (h, w) and its border into its place (h + 2, w + 2) in the pool."""
    padded[1:-1, 1:-1] = level
    left, right = (-2, 1) if wrap[0] == REPEAT else (1, -2)
    padded[1:-1, 0], padded[1:-1, -1] = padded[1:-1, left], padded[1:-1, right]
    top, bottom = (-2, 1) if wrap[1] == REPEAT else (1, -2)
    padded[0], padded[-1] = padded[top], padded[bottom]


@kernel
def downsample(source: NDArray[np.uint32], target: NDArray[np.uint32]) -> None:
    """Fill `target` (h, w) with the next mip level of `source`, both packed uint32."""
    height, width = source.shape
    rows, columns = target.shape
    for row in range(rows):
        y = (row + 0.5) * height / rows - 0.5
        y0 = int(y)
        y1 = min(y0 + 1, height - 1)
        fy = int((y - y0) * 256.0 + 0.5)
        for column in range(columns):
            x = (column + 0.5) * width / columns - 0.5
            x0 = int(x)
            x1 = min(x0 + 1, width - 1)
            fx = int((x - x0) * 256.0 + 0.5)
            packed = 0
            for shift in (0, 8, 16, 24):
                upper = ((source[y0, x0] >> shift) & 255) * (256 - fx) + ((source[y0, x1] >> shift) & 255) * fx
                lower = ((source[y1, x0] >> shift) & 255) * (256 - fx) + ((source[y1, x1] >> shift) & 255) * fx
                packed |= ((upper * (256 - fy) + lower * fy + 32768) >> 16) << shift
            target[row, column] = packed
