"""Options of `vlnbench score`. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlnbench.errors import UsageError
from vlnbench.util.bounds import Count, check_bounds

FRAMES = ("own", "gray", "other")
"""What can be seen: a set's own frames, gray ones, or those of another scene."""


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Which checkpoint, on which walks or questions."""

    checkpoint: str
    """A trained checkpoint: a folder, or the name of one that comes with vlnbench."""
    trajectories: Path = Path("trajectory_data")
    """Folder of the trajectory sets."""
    sets: tuple[str, ...] = ("val_seen", "val_unseen")
    """Sets to score on: folders below --trajectories, as `vlnbench collect` makes them without disturbance, or
    `vlnbench data questions`."""
    frames: tuple[str, ...] = FRAMES
    """What is seen: own, gray (nothing), other (another scene)."""
    family: str = ""
    """Model family: a name, or an import string; default that of the checkpoint."""
    batch: Count = 8
    """Windows at once."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the network computes."""
    out: Path | None = None
    """File to which the scores are written as JSON, too."""

    def check(self) -> None:
        """Raise UsageError for the first option that cannot be. Looks at no file."""
        check_bounds(self)
        for name, values in (("sets", self.sets), ("frames", self.frames)):
            if not values or len(set(values)) < len(values):
                raise UsageError(f"--{name} {' '.join(values)}: expected at least one, each once")
        for frames in self.frames:
            if frames not in FRAMES:
                raise UsageError(f"--frames {frames}: expected {', '.join(FRAMES)}")
