"""Frames at the size at which Qwen2.5-VL sees them: sides in whole embeddings, as many pixels as it is told."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from agents.common.qwen2_5_vl.config import BLOCK

FEWEST_PIXELS = 4 * BLOCK**2


def fitting(height: int, width: int, most_pixels: int) -> tuple[int, int]:
    """Height and width in whole embeddings, as near as can be to the frame's shape, with at most so many pixels.

    The rule is that of Qwen's image processor (`smart_resize`), whose least number of pixels is its default.
    """
    rows, columns = (round(side / BLOCK) * BLOCK for side in (height, width))
    if rows * columns > most_pixels:
        ratio = math.sqrt(height * width / most_pixels)
        rows, columns = (max(1, math.floor(side / ratio / BLOCK)) * BLOCK for side in (height, width))
    elif rows * columns < FEWEST_PIXELS:
        ratio = math.sqrt(FEWEST_PIXELS / (height * width))
        rows, columns = (math.ceil(side * ratio / BLOCK) * BLOCK for side in (height, width))
    return rows, columns


def resize(frame: Image.Image, most_pixels: int) -> NDArray[np.uint8]:
    """An RGB frame as uint8 (height, width, 3) at the size of `fitting`, bicubic."""
    rows, columns = fitting(frame.height, frame.width, most_pixels)
    return np.asarray(frame.resize((columns, rows), Image.Resampling.BICUBIC)).copy()
