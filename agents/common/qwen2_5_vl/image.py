"""Frames as Qwen2.5-VL's vision tower takes them: cut into patches, four of which become one embedding."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from agents.common.qwen2_5_vl.config import BLOCK, MERGE, PATCH
from agents.common.upload import upload

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Per channel, of Qwen's image processor (CLIP's)."""

FEWEST_PIXELS = 4 * BLOCK**2


class Grid(NamedTuple):
    """Embeddings of an image along its height and width, `cells` in all."""

    rows: int
    columns: int

    @property
    def cells(self) -> int:
        return self.rows * self.columns


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


def grid_of(height: int, width: int) -> Grid:
    """The embeddings of a resized frame of so many pixels; an odd row of patches at the bottom has none."""
    return Grid(height // BLOCK, width // BLOCK)


def scaled(frames: Tensor) -> Tensor:
    """Frames as numbers from 0 to 1, float32 (N, 3, height, width) from uint8 (N, height, width, 3)."""
    return (frames.float() / 255).permute(0, 3, 1, 2)


def patches(frames: Tensor) -> Tensor:
    """Qwen's input, float32 (N, patches, 1176), from uint8 (N, height, width, 3).

    The four patches of an embedding follow one another, embeddings in raster order. A patch is (channel, time,
    row, column) flattened; a still image is shown twice in time.
    """
    count, height, width, _ = frames.shape
    rows, columns = grid_of(height, width)
    shown = scaled(frames[:, : rows * BLOCK, : columns * BLOCK])
    mean, std = (upload(torch.tensor(values), frames.device)[:, None, None] for values in (MEAN, STD))
    cut = ((shown - mean) / std).reshape(count, 3, rows, MERGE, PATCH, columns, MERGE, PATCH)
    cut = cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(count, rows * columns * MERGE**2, 3, 1, PATCH, PATCH)
    return cut.expand(-1, -1, -1, 2, -1, -1).flatten(2)
