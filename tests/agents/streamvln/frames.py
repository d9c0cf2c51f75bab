"""Frames of the reference recordings, drawn by integer formula: a shaded pattern with one filled box."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 640, 480


class Draws:
    """Linear congruential generator; every draw is 16 bits."""

    def __init__(self, seed: int) -> None:
        self.state = seed % 2**31
        for _ in range(4):
            self()

    def __call__(self) -> int:
        self.state = (1103515245 * self.state + 12345) % 2**31
        return (self.state >> 8) & 65535


def frame(seed: int, episode: int, step: int, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """What the stub environment shows at `step` of frame episode `episode`: RGB, uint8 (height, width, 3)."""
    draw = Draws(7919 * seed + 104729 * episode + 1299709 * step + 1)
    y, x = np.ogrid[:height, :width]
    t = np.arange(512)
    image = np.empty((height, width, 3), np.uint8)
    for channel in range(3):
        kx, ky, phase, low, span = draw() % 9, draw() % 9, draw() % 512, draw() % 96, 32 + draw() % 129
        shades = (low + np.where(t < 256, t, 511 - t) * span // 256).astype(np.uint8)
        image[..., channel] = shades[(kx * x + ky * y + phase) % 512]
    left, top, wide, high = draw() % 520, draw() % 360, 60 + draw() % 180, 60 + draw() % 180
    image[top : top + high, left : left + wide] = [draw() % 256 for _ in range(3)]
    return image
