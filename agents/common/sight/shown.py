"""What the images of a set show, item by item, for those who learn to tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from agents.common.sight.semantics import LEAST_SHARE, Semantics
from vlnbench.training.kept_frames import KeptFrames, keep_frames, kept_name


@dataclass(frozen=True)
class Shown:
    """What the cells of a set's images show. images: the semantic images of every item; kept: what is in them, if
    that is kept."""

    semantics: Semantics
    images: Sequence[Sequence[Path]]
    grid: int
    kept: KeptFrames | None = None

    def of(self, item: int) -> Tensor:
        """Which names the cells of an item's images show, bool (images, names, grid, grid)."""
        if self.kept is not None:
            return self.semantics.unpacked(self.kept.frames(item), self.grid)
        return torch.stack([self.semantics.shown(path, self.grid) for path in self.images[item]])

    def keeping(self, folder: Path, file: Path) -> Shown:
        """The same kept in `folder`; `file` tells the set. Raises UsageError for bad images and folders."""
        firsts = (each[0] for each in self.images)
        name = kept_name(file, firsts, self.semantics.names, LEAST_SHARE, self.grid)
        size = self.semantics.packed_size(self.grid)
        counts = map(len, self.images)
        kept = keep_frames(folder, name, counts, size, lambda item: self.semantics.packed(self.of(item)))
        return replace(self, kept=kept)
