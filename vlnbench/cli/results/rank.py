"""The command `vlnbench rank`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vlnbench.errors import UsageError
from vlnbench.leaderboard.filters import Filters
from vlnbench.util.tables.format import Format


@dataclass(frozen=True)
class Rank(Filters):
    """Show finished runs of one protocol, data version, split and simulator in one table, best SR first.

    Rank sets, and differences with intervals and p-values, come from pairs of episodes.
    """

    run_folders: Positional[Annotated[list[Path], arg(name="runs")]] = field(default_factory=list)
    """Run folders, or names of runs of --results."""
    results: Path | None = None
    """Folder with runs/: without other runs, all that are there, in a table for each protocol and split."""
    format: Format = "text"
    """How it is printed: for a terminal, CSV, Markdown, LaTeX or JSON."""

    def run(self) -> None:
        from vlnbench.leaderboard.ranking import rank, rank_sheet
        from vlnbench.util.tables.sheet import written

        if not self.run_folders and self.results is None:
            raise UsageError("rank: expected at least one run folder, or --results")
        tables = rank(self.run_folders, self.results, self)
        print(written([rank_sheet(ranked, self) for ranked in tables], self.format))
