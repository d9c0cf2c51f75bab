"""Frames as JanusVLN's two encoders see them: one resized image, cut for one and whole for the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from agents.common.qwen2_5_vl.config import BLOCK, PATCH
from agents.janusvln.config import WIDTH


def resize(frame: NDArray[np.uint8], width: int = WIDTH) -> NDArray[np.uint8]:
    """An RGB frame scaled to `width`, bicubic, as uint8 (height, width, 3).

    The height is rounded to whole patches; what is above `width` of it is cut off at the top and bottom alike. The
    order of the multiplications matters: 480 rows of 640 become 490 because 34.5 is met from above.

    Raises ValueError for a frame so flat that not one embedding is left of it.
    """
    image = Image.fromarray(frame)
    height = resized_height(image.width, image.height, width)
    if height < BLOCK:
        raise ValueError(f"frames of {image.width} x {image.height} pixels are too flat for JanusVLN")
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    top = max((height - width) // 2, 0)
    return pixels[top : top + width].copy()


def resized_height(columns: int, rows: int, width: int = WIDTH) -> int:
    """Height of a frame of so many pixels when it is scaled to `width`, before anything is cut off."""
    return round(rows * (width / columns) / PATCH) * PATCH
