"""Video files of known frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def frame(number: int, width: int = 32, height: int = 24) -> NDArray[np.uint8]:
    """A frame that tells its number: uint8 (height, width, 3), one color."""
    return np.full((height, width, 3), (number * 20 % 256, 255 - number * 7 % 256, number * 3 % 256), np.uint8)


def write_video(path: Path, count: int, per_second: int = 1) -> Path:
    """A video of `count` frames, without loss."""
    import imageio.v2 as imageio

    path.parent.mkdir(parents=True, exist_ok=True)
    how = {"fps": per_second, "codec": "libx264rgb", "pixelformat": "rgb24", "macro_block_size": 1}
    imageio.mimwrite(path, [frame(number) for number in range(count)], output_params=["-crf", "0"], **how)
    return path
