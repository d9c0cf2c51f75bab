"""What a network is shown: its own frames, or others in their place, which tells how far it uses what it sees."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import torch
from torch import Tensor

from agents.common.trajectories import read_trajectories
from agents.vlnce.config import Views
from agents.vlnce.options import VLNCEOptions
from agents.vlnce.training.frames import check_depth, frame_files, read_frame
from agents.vlnce.views import frames, share_of
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Observation, Scalar
from vlnbench.util.durable.limits import regular

GRAY = 128


class Sight:
    """Frames as a network reads them. `identity` and `files` say which, if they are not its own."""

    def __init__(self, options: VLNCEOptions, views: Views) -> None:
        """Raises UsageError for a folder of frames that is missing, broken or not wanted."""
        self._kind, self._views = options.frames, views
        self.identity: dict[str, Scalar] = {} if options.frames == "own" else {"frames": options.frames}
        self.files: tuple[Path, ...] = ()
        if (options.frames == "other") != (options.frames_from is not None):
            raise UsageError("--frames other and --frames-from: one needs the other; give both or none")
        if options.frames_from is not None:
            file = options.frames_from / TRAJECTORIES
            self._walks = read_trajectories(options.frames_from)
            check_depth(file, self._walks)
            self.files = (file,)
            self.identity["frames_from"] = hashlib.sha256(regular(file).read_bytes()).hexdigest()[:16]

    def of(self, seen: Observation, seed: int) -> tuple[Tensor, Tensor]:
        """RGB, uint8 (H, W, 3), and depth, float32 (h, w) in [0, 1], of an observation in an episode of a seed."""
        if self._kind == "own":
            return frames(seen, self._views)
        if self._kind == "gray":
            size, depth_size = self._views.inputs
            return torch.full((*size, 3), GRAY, dtype=torch.uint8), torch.full(depth_size, 0.5)
        walk = self._walks[random.Random(f"{seed}/frames").randrange(len(self._walks))]
        files = list(frame_files(walk))
        rgb, depth = read_frame(*files[min(seen.step, len(files) - 1)], self._views)
        return rgb, share_of(depth)
