"""The jitter of brightness, color and sharpness that frames of a training may have."""

from __future__ import annotations

import random
from collections.abc import Callable

from PIL import Image, ImageEnhance, ImageOps


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
