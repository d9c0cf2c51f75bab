"""The command `vlnbench leaderboard`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vlnbench.errors import RunError, UsageError

if TYPE_CHECKING:
    from vlnbench.leaderboard.points import Picture


RESULTS = Path("results")


@dataclass(frozen=True)
class Leaderboard:
    """Make leaderboard and reproduction ledger (JSON, CSV, Markdown, SVG) from published results and runs.

    Runs are those below <results>/runs and the given ones.
    """

    run_folders: Positional[Annotated[list[Path], arg(name="runs")]]
    """Run folders."""
    results: Path = RESULTS
    """Folder with published.json and runs/; `results` is made, with the rows that come with vlnbench."""
    out: Path | None = None
    """Folder to write; default the one with published.json."""
    check: bool = False
    """Write nothing; exit with code 1 if a file is not what would be written."""
    add: bool = False
    """Copy the run folder to <results>/runs first (compressed, with its trajectories), to be committed."""
    name: str | None = None
    """With --add: what tables call the run; default its agent."""
    sensors: str | None = None
    """With --add: class of the agent's sensors, e.g. RGB."""
    reproduces: str | None = None
    """With --add: what the run is to reproduce: id of a published row, or runs/NAME of a run already added."""

    def run(self) -> None:
        from vlnbench.evaluation.recorded import load_run
        from vlnbench.leaderboard.board import (
            PUBLISHED,
            check_claim,
            load,
            make_tables,
            outdated,
            render,
            summary_line,
            write,
        )
        from vlnbench.leaderboard.committed import Entry, add_run, committed_runs
        from vlnbench.leaderboard.points import outdated_pictures, pictures
        from vlnbench.leaderboard.published import begin, read_published
        from vlnbench.leaderboard.reproduction import make_ledger, render_ledger

        folders = self.run_folders
        if self.results == RESULTS and not RESULTS.exists() and not self.check:
            begin(RESULTS)
        if self.add:
            if len(folders) != 1 or self.check:
                raise UsageError("--add: expected one run folder, without --check")
            if self.reproduces is not None:
                names = [run.folder.name for run, _ in committed_runs(self.results, trajectories=False)]
                check_claim(read_published(self.results / PUBLISHED), names, self.reproduces)
            name = self.name or load_run(folders[0], trajectories=False).identity.agent
            entry = Entry(name=name, sensors=self.sensors, reproduces=self.reproduces)
            print(f"added: {add_run(folders[0], self.results, entry)}")
            folders = []
        elif self.name or self.sensors or self.reproduces:
            raise UsageError("--name, --sensors, --reproduces: expected together with --add")
        literature, runs = load(self.results, folders)
        tables = make_tables(literature, runs)
        files = render(tables) | render_ledger(make_ledger(literature, runs))
        out = self.out or self.results
        stale, drawn = outdated(files, out), outdated_pictures(pictures(literature), out)
        names = [*stale, *(picture.file for picture in drawn)]
        if self.check:
            if names:
                raise RunError(f"{out}: not up to date: {', '.join(names)}; run `vlnbench leaderboard`")
        else:
            write(files, out)
            if drawn and not _draw(drawn, out):
                names = [*stale, "no pictures (pip install 'vlnbench[report]')"]
        print(f"{summary_line(tables)}; in {out} written: {', '.join(names) or 'nothing, all is up to date'}")


def _draw(made: list[Picture], out: Path) -> bool:
    """Write the pictures, if matplotlib is there."""
    try:
        from vlnbench.leaderboard.pictures import write_pictures
    except ImportError:
        return False
    write_pictures(made, out)
    return True
