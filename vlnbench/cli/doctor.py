"""The command `vlnbench doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Doctor:
    """Check this machine: packages, simulator, GPUs, caches, disk and data."""

    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/."""

    def run(self) -> None:
        from vlnbench.cli.checks import report

        report(self.data_root)
