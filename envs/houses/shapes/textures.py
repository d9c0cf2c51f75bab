"""Procedural textures and colors. Everything is a pure function of its arguments."""

from __future__ import annotations

import io
import zlib
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (205, 32, 36),
    "orange": (240, 130, 20),
    "yellow": (245, 212, 30),
    "green": (38, 150, 56),
    "blue": (35, 82, 205),
    "turquoise": (50, 196, 190),
    "purple": (128, 48, 160),
    "pink": (240, 120, 175),
    "white": (240, 240, 238),
    "gray": (140, 142, 145),
    "black": (38, 38, 42),
    "brown": (125, 78, 40),
    # Materials that instructions never name.
    "leaf": (52, 128, 46),
    "steel": (185, 190, 196),
    "glass": (160, 205, 235),
    "screen": (22, 26, 34),
    "display": (78, 120, 178),
    "brass": (214, 176, 80),
    "pine": (196, 150, 96),
    "cream": (236, 224, 196),
    "terracotta": (178, 92, 58),
    "trim": (226, 222, 212),
    "ceiling": (238, 236, 230),
    "light": (255, 250, 225),
    "flame": (250, 140, 40),
    "facade": (170, 150, 130),
}

LUMINOUS = ("light", "glass", "flame", "display")
"""Colors that look the same in any light."""

_CELL = 4
FLOOR_TILE_M = 2.0
WALL_TILE_M = 2.6


def palette_uv(color: str) -> tuple[float, float]:
    """Texture coordinates at the middle of the color's cell."""
    return 0.5, (list(COLORS).index(color) + 0.5) / len(COLORS)


@cache
def palette_png() -> bytes:
    """One square cell per color."""
    cells = np.array(list(COLORS.values()), dtype=np.float64)[:, None]
    return _png(cells.repeat(_CELL, axis=0).repeat(_CELL, axis=1))


@cache
def floor_png(style: str, color: tuple[int, int, int]) -> bytes:
    """256 x 256 pixels for a square of FLOOR_TILE_M meters; tiles seamlessly."""
    size = 256
    gain = np.ones((size, size))
    rows, columns = np.mgrid[0:size, 0:size]
    noise = _noise(size // 2, f"floor {style}").repeat(2, axis=0).repeat(2, axis=1)
    if style == "planks":
        strip = rows // 32
        board = (columns + strip * 85) % size // 128
        gain = 0.86 + 0.07 * ((strip * 5 + board * 3) % 4) / 1.5
        gain += 0.05 * np.sin(rows * 1.3 + 3.0 * np.sin(columns * 2 * np.pi / size))
        gain[rows % 32 < 2] *= 0.6
        gain[(columns + strip * 85) % 128 < 2] *= 0.65
    elif style == "tiles":
        gain = 0.95 + 0.08 * ((rows // 64 * 3 + columns // 64 * 5) % 4) / 3 - 0.04
        gain[(rows % 64 < 3) | (columns % 64 < 3)] = 0.62
    elif style == "checker":
        gain = np.where((rows // 64 + columns // 64) % 2 == 0, 1.0, 0.52)
    elif style == "carpet":
        gain = 0.9 + 0.22 * (noise - 0.5)
    elif style == "stone":
        patch = _blur(_noise(size, "stone patches"), 12)
        gain = 0.9 + 1.6 * (patch - 0.5)
        gain[(rows % 128 < 3) | (columns % 128 < 3)] *= 0.75
    else:
        raise ValueError(f"unknown floor style {style!r}")
    return _png(np.array(color, dtype=np.float64) * (gain + 0.04 * (noise - 0.5))[:, :, None])


@cache
def wall_png(style: str, color: tuple[int, int, int]) -> bytes:
    """128 x 128 pixels for WALL_TILE_M meters of a wall: top row at the ceiling, skirting board at the foot."""
    size = 128
    rows, columns = np.mgrid[0:size, 0:size]
    gain = 0.97 + 0.05 * (_noise(size, f"wall {style}") - 0.5)
    if style == "stripes":
        gain = gain * np.where(columns // 8 % 2 == 0, 1.0, 0.86)
    elif style == "brick":
        course = rows // 8
        gain *= 0.92 + 0.05 * ((course * 7 + (columns + course % 2 * 8) // 16 * 3) % 4)
        gain[(rows % 8 < 1) | ((columns + course % 2 * 8) % 16 < 1)] *= 0.72
    elif style == "tiles":
        gain[((rows % 16 < 1) | (columns % 16 < 1)) & (rows > 42)] *= 0.78
        gain[(rows > 38) & (rows <= 42)] *= 0.6
    elif style == "panels":
        gain[rows > 76] *= 0.8
        gain[((columns % 32 < 2) & (rows > 76)) | ((rows > 73) & (rows <= 76))] *= 0.75
    elif style == "dots":
        gain[((rows % 16 - 8) ** 2 + ((columns + rows // 16 % 2 * 8) % 16 - 8) ** 2) < 8] *= 0.78
    elif style != "plain":
        raise ValueError(f"unknown wall style {style!r}")
    # A little darker towards ceiling and floor, so that room edges read without lights.
    height = 1.0 - (rows + 0.5) / size
    gain *= 1.0 - 0.12 * np.exp(-((1.0 - height) / 0.08)) - 0.16 * np.exp(-(height / 0.08))
    image = np.array(color, dtype=np.float64) * gain[:, :, None]
    image[size - 5 :] = np.array(COLORS["trim"]) * 0.93
    image[size - 6] *= 0.7
    return _png(image)


def pale(color: str, amount: float = 0.55) -> tuple[int, int, int]:
    """A named color mixed with white, for walls."""
    r, g, b = (round(channel + (250 - channel) * amount) for channel in COLORS[color])
    return r, g, b


def _noise(size: int, name: str) -> NDArray[np.float64]:
    # RandomState's streams are frozen across numpy versions. Few levels keep the PNG small.
    state = np.random.RandomState(zlib.crc32(name.encode()))
    return np.asarray(state.randint(0, 6, size=(size, size)) / 5.0, dtype=np.float64)


def _blur(image: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    for axis in (0, 1):
        image = np.mean([np.roll(image, shift, axis=axis) for shift in range(-radius, radius + 1)], axis=0)
    return image


def _png(image: NDArray[np.float64]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.clip(np.rint(image), 0, 255).astype(np.uint8)).save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()
