"""The image side of StreamVLN: frames as network inputs, and the augmentation of training frames."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

_LEVELS = ((np.arange(256) * (1 / 255)).astype(np.float32) - np.float32(0.5)) / np.float32(0.5)
"""Network input for each 8-bit value, rounded as SigLIP's image processor does: scaled, then mean 0.5, std 0.5."""


def resize(frame: NDArray[np.uint8] | Image.Image, size: int) -> NDArray[np.uint8]:
    """An RGB frame as uint8 (size, size, 3), bicubic, aspect ratio not kept."""
    image = frame if isinstance(frame, Image.Image) else Image.fromarray(frame)
    image = image if image.mode == "RGB" else image.convert("RGB")  # which would copy it
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC))


def network_input(frames: Sequence[NDArray[np.uint8]] | NDArray[np.uint8]) -> torch.Tensor:
    """Resized frames as one float32 tensor (len(frames), 3, size, size) with values in [-1, 1]."""
    planes = np.asarray(frames).transpose(0, 3, 1, 2)
    return torch.from_numpy(_LEVELS[np.ascontiguousarray(planes)])  # bytes are moved faster than numbers


def augment(image: Image.Image, rng: random.Random) -> Image.Image:
    """A frame with the jitter that StreamVLN trains with, drawn from `rng`.

    Brightness and saturation times 0.8 to 1.2 in random order; then 4 bits per channel, sharpness 1.5 and
    autocontrast, each with probability one half. The operations are those of torchvision's ColorJitter,
    RandomPosterize, RandomAdjustSharpness and RandomAutocontrast up to rounding; the random stream is ours.
    """
    jitters = [ImageEnhance.Brightness, ImageEnhance.Color]
    rng.shuffle(jitters)
    for jitter in jitters:
        image = jitter(image).enhance(rng.uniform(0.8, 1.2))
    operations: tuple[Callable[[Image.Image], Image.Image], ...] = (
        lambda image: ImageOps.posterize(image, 4),
        lambda image: ImageEnhance.Sharpness(image).enhance(1.5),
        ImageOps.autocontrast,
    )
    for operation in operations:
        if rng.random() < 0.5:
            image = operation(image)
    return image
