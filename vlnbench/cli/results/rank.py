"""The command `vlnbench rank`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vlnbench.errors import UsageError


@dataclass(frozen=True)
class Rank:
    """Show finished runs of one protocol, data version, split and simulator in one table, best SR first."""

    run_folders: Positional[Annotated[list[Path], arg(name="runs")]]
    """Run folders."""

    def run(self) -> None:
        from vlnbench.leaderboard.ranking import format_ranking, rank

        if not self.run_folders:
            raise UsageError("rank: expected at least one run folder")
        print(format_ranking(rank(self.run_folders)))
