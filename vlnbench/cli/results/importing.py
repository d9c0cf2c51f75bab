"""The command `vlnbench import`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from vlnbench.importing.options import ImportOptions


@dataclass(frozen=True, kw_only=True)
class Import(ImportOptions):
    """Make run folders of results that other programs wrote, checked and marked as imported.

    `compare`, `rank`, `report`, `view` and `leaderboard` take them beside own runs. Episodes are held against the
    split where it lies below --data-root.
    """

    paths: Positional[tuple[Path, ...]]
    """Files of results, or folders that hold them; shards of one evaluation together."""

    def run(self) -> None:
        from vlnbench.importing.results import import_results

        made, means = import_results(self.paths, self)
        print("\n\n".join([*map(str, made), *([means] if means else [])]))
