"""The command `vlnbench export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

CLOSING = (
    "note: the server that scores these files is being closed (https://github.com/jacobkrantz/VLN-CE/issues/74), "
    "and the test split has no other; what can be compared is val_unseen (vlnbench leaderboard)"
)


@dataclass(frozen=True)
class Export:
    """Write a run in the submission format of a leaderboard."""

    run_folder: Positional[Path]
    """Run folder."""
    format: Literal["evalai-r2r", "rxr"]
    """R2R-CE (EvalAI, whose server is being closed) or RxR-Habitat."""
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
        if self.format == "evalai-r2r":
            print(CLOSING)
