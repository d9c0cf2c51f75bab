"""The command `vlnbench export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional


@dataclass(frozen=True)
class Export:
    """Write a run in the submission format of a leaderboard."""

    run_folder: Positional[Path]
    """Run folder."""
    format: Literal["evalai-r2r", "rxr"]
    """R2R-CE (EvalAI) or RxR-Habitat."""
    out: Path
    """File to write."""
    data_root: Path = Path("data")
    """Folder that holds the dataset of the run; only rxr looks at it."""
    allow_partial: bool = False
    """Export a run that does not cover its split."""
    force: bool = False
    """Overwrite the file."""

    def run(self) -> None:
        from vlnbench.leaderboard.export import export

        options = {"allow_partial": self.allow_partial, "force": self.force}
        count = export(self.run_folder, self.out, self.format, self.data_root, **options)
        print(f"{count} episodes as {self.format}: {self.out}")
