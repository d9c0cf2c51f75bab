"""What a preview shows beside the plans: walks and camera pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class DrawnEpisode:
    """An episode as it is drawn. locations: (n, 3) meters. yaw: start heading in radians, 0 along -z."""

    episode_id: str
    text: str
    locations: NDArray[np.float64]
    actions: tuple[int, ...]
    yaw: float
    goal: tuple[float, float, float]


@dataclass(frozen=True)
class Shot:
    """A rendered frame (H, W, 3) and what it shows."""

    title: str
    rgb: NDArray[np.uint8]
