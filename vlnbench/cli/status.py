"""The command `vlnbench status`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from vlnbench.util.tables.format import Plain


@dataclass(frozen=True)
class Status:
    """Say how far a run is, whether a process works on it, how fast, and what failed. Reads its folder only."""

    run_folder: Positional[Path]
    """Folder of an evaluation or a training, or work folder of a matrix."""
    format: Plain = "text"
    """How it is printed."""

    def run(self) -> None:
        import json

        from vlnbench.evaluation.status import format_status, read_status

        status = read_status(self.run_folder)
        print(json.dumps(status, indent=2) if self.format == "json" else format_status(status))
