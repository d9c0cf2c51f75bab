"""The command `vlnbench compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from vlnbench.util.tables.format import Format


@dataclass(frozen=True)
class Compare:
    """Compare two runs episode by episode: differences with intervals, McNemar's test, wins and losses.

    Agent, checkpoint and seed may differ; protocol, split, data, episodes, simulator and repeats may not. Of runs
    that are going on or have stopped: whether the difference is decided, and how many more episodes that takes.
    """

    run_a: Positional[Path]
    """Run folder."""
    run_b: Positional[Path]
    """Run folder; differences are this one minus the other."""
    data_root: Path = Path("data")
    """Where the dataset lies; read only where both runs are unfinished."""
    results: Path | None = None
    """Folder with runs/, of which names of runs are understood, too."""
    common: bool = False
    """Of two finished runs of other episodes of one split compare those that both have."""
    format: Format = "text"
    """How it is printed: for a terminal, CSV, Markdown, LaTeX or JSON."""

    def run(self) -> None:
        from vlnbench.leaderboard.committed import find_run
        from vlnbench.leaderboard.compare import compare_runs, format_found

        a, b = (find_run(run, self.results) for run in (self.run_a, self.run_b))
        print(format_found(compare_runs(a, b, self.data_root, self.common), self.format))
