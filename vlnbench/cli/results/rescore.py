"""The command `vlnbench rescore`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Rescore:
    """Score the recorded trajectories of a run again, without a simulator."""

    run_folder: Positional[Path]
    """Run folder."""
    data_root: Path = Path("data")
    """Folder that holds the dataset of the run."""
    write: bool = False
    """Replace rows and summary; a copy of changed rows stays in episodes.jsonl.before-rescore."""

    def run(self) -> None:
        from vlnbench.evaluation.rescore import format_rescored, rescore

        print(format_rescored(rescore(self.run_folder, self.data_root, write=self.write), self.write))
