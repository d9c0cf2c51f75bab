"""The command `vlnbench compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


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
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from json import dumps

        from vlnbench.leaderboard.compare import compare_runs, format_comparison
        from vlnbench.leaderboard.so_far import SoFar, format_so_far

        found = compare_runs(self.run_a, self.run_b, self.data_root)
        if self.json:
            print(dumps(found.to_json(), indent=2))
        else:
            print(format_so_far(found) if isinstance(found, SoFar) else format_comparison(found))
