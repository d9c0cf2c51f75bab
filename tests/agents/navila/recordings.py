"""Frames of the reference recordings of the published code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.agents.streamvln.frames import frame as wide


def frame(seed: int, episode: int, step: int) -> NDArray[np.uint8]:
    return wide(seed, episode, step, width=512, height=512)
