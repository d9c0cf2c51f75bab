"""Frames as JanusVLN's two encoders see them: one resized image, cut for one and whole for the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from agents.janusvln.config import BLOCK, MERGE, PATCH, WIDTH

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Per channel, of Qwen's image processor (CLIP's)."""


class Grid(NamedTuple):
    """Embeddings of an image along its height and width, `cells` in all."""

    rows: int
    columns: int

    @property
    def cells(self) -> int:
        return self.rows * self.columns


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


def grid_of(height: int, width: int) -> Grid:
    """The embeddings of a resized frame of so many pixels; an odd row of patches at the bottom has none."""
    return Grid(height // BLOCK, width // BLOCK)


def scaled(frames: Tensor) -> Tensor:
    """VGGT's input, float32 (N, 3, height, width) in [0, 1], from uint8 (N, height, width, 3)."""
    return (frames.float() / 255).permute(0, 3, 1, 2)


def patches(frames: Tensor) -> Tensor:
    """Qwen's input, float32 (N, patches, 1176), from uint8 (N, height, width, 3).

    The four patches of an embedding follow one another, embeddings in raster order. A patch is (channel, time,
    row, column) flattened; a still image is shown twice in time.
    """
    count, height, width, _ = frames.shape
    rows, columns = grid_of(height, width)
    shown = scaled(frames[:, : rows * BLOCK, : columns * BLOCK])
    mean, std = (torch.tensor(values, device=frames.device)[:, None, None] for values in (MEAN, STD))
    cut = ((shown - mean) / std).reshape(count, 3, rows, MERGE, PATCH, columns, MERGE, PATCH)
    cut = cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(count, rows * columns * MERGE**2, 3, 1, PATCH, PATCH)
    return cut.expand(-1, -1, -1, 2, -1, -1).flatten(2)
