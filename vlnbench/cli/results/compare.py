"""The command `vlnbench compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Compare:
    """Compare two finished runs episode by episode: differences with intervals, McNemar's test, wins and losses.

    Agent, checkpoint and seed may differ; protocol, split, data, episodes, simulator and repeats may not.
    """

    run_a: Positional[Path]
    """Run folder."""
    run_b: Positional[Path]
    """Run folder; differences are this one minus the other."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from json import dumps

        from vlnbench.leaderboard.compare import compare, format_comparison

        comparison = compare(self.run_a, self.run_b)
        print(dumps(comparison.to_json(), indent=2) if self.json else format_comparison(comparison))
