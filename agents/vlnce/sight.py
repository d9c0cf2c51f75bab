"""What a network is shown: its own frames, or others in their place."""

from __future__ import annotations

import torch
from torch import Tensor

from agents.common.sight.instead import GRAY, Instead
from agents.common.sight.options import FramesOptions
from agents.vlnce.config import Views
from agents.vlnce.training.frames import check_depth, frame_files, read_frame
from agents.vlnce.views import frames, share_of
from vlnbench.interfaces import Observation


class Sight(Instead):
    """Frames, with depth, as a network reads them."""

    def __init__(self, options: FramesOptions, views: Views) -> None:
        """Raises UsageError for a folder of walks that is missing, broken, without depth or not wanted."""
        super().__init__(options)
        self._views = views
        for file in self.files:
            check_depth(file, self.walks)

    def of(self, seen: Observation, seed: int) -> tuple[Tensor, Tensor]:
        """RGB, uint8 (H, W, 3), and depth, float32 (h, w) in [0, 1], of an observation in an episode of a seed."""
        if self.kind == "own":
            return frames(seen, self._views)
        if self.kind == "gray":
            size, depth_size = self._views.inputs
            return torch.full((*size, 3), GRAY, dtype=torch.uint8), torch.full(depth_size, 0.5)
        walk, number = self.frame(seen.step, seed)
        rgb, depth = read_frame(*frame_files(walk)[number], self._views)
        return rgb, share_of(depth)
