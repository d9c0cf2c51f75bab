"""Frames shown in place of an agent's own, which tells how far it uses what it sees."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.common.sets.trajectories import Trajectory, read_trajectories
from agents.common.sight.options import FramesOptions
from agents.common.sight.pictures import AGAIN, decoded
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Scalar
from vlnbench.util.durable.limits import regular

GRAY = 128


class Instead:
    """What is shown as `options` say. `identity` and `files` say so of frames that are not the agent's own.

    `walks`: those of which every episode draws one; empty if none is shown.
    """

    def __init__(self, options: FramesOptions) -> None:
        """Raises UsageError for a folder of walks that is missing, broken or not wanted."""
        self.kind = options.frames
        self.identity: dict[str, Scalar] = {} if self.kind == "own" else {"frames": self.kind}
        self.files: tuple[Path, ...] = ()
        self.walks: list[Trajectory] = []
        if (self.kind == "other") != (options.frames_from is not None):
            raise UsageError("--frames other and --frames-from: one needs the other; give both or none")
        if options.frames_from is not None:
            file = options.frames_from / TRAJECTORIES
            self.walks = read_trajectories(options.frames_from)
            self.files = (file,)
            self.identity["frames_from"] = hashlib.sha256(regular(file).read_bytes()).hexdigest()[:16]

    def frame(self, step: int, seed: int) -> tuple[Trajectory, int]:
        """Walk and number of the frame shown at a step of an episode with a seed; behind its end a walk's last."""
        walk = self.walks[random.Random(f"{seed}/frames").randrange(len(self.walks))]
        return walk, min(step, len(walk.actions) - 1)

    def rgb(self, own: NDArray[np.uint8], step: int, seed: int) -> NDArray[np.uint8]:
        """What is shown, uint8 (H, W, 3): as large as `own` or, of a walk, as its frames are.

        Raises UsageError for a frame that cannot be read.
        """
        if self.kind == "own":
            return own
        if self.kind == "gray":
            return np.full_like(own, GRAY)
        walk, number = self.frame(step, seed)
        shown: NDArray[Any] = decoded(walk.frames()[number], lambda image: np.asarray(image.convert("RGB")), AGAIN)
        return shown
