"""The command `vlnbench view`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from vlnbench.defaults import ENV
from vlnbench.errors import UsageError


@dataclass(frozen=True)
class View:
    """Put many runs, trainings, matrices and the leaderboard on one HTML page, or follow them live.

    Sortable tables with intervals, run against run, the same episode of several runs, Pareto plots and curves.
    The page opens offline.
    """

    paths: Positional[tuple[Path, ...]]
    """Folders of runs, trainings or matrices, folders that hold such, or results/."""
    out: Path = Path("view.html")
    """HTML file to write."""
    data_root: Path = Path("data")
    """Folder that holds datasets/ and scene_datasets/. Without them: no instructions, no maps."""
    env: str = ENV
    """Environment that draws maps: import string package.module:Class, as for `vlnbench eval`."""
    serve: bool = False
    """Write nothing; serve the page on 127.0.0.1 and follow runs while they go on, until Ctrl-C."""
    port: int = 8010
    """Port of --serve; 0 takes a free one."""

    def run(self) -> None:
        from vlnbench.views.build import build_view
        from vlnbench.views.serve import make_server

        if not self.paths:
            raise UsageError("view: expected folders of runs, or results")
        if self.serve:
            server, address = make_server(self.paths, self.data_root, self.port)
            with server:
                print(f"{address} (Ctrl-C ends it)", flush=True)
                try:
                    server.serve_forever()
                except KeyboardInterrupt:
                    return
        built = build_view(self.paths, self.out, self.data_root, self.env)
        for note in built.notes:
            print(f"left out: {note}")
        print(f"{built.count} runs, {built.size / 1e6:.1f} MB: {built.path}")
