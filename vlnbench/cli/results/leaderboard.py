"""The command `vlnbench leaderboard`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vlnbench.errors import RunError, UsageError
from vlnbench.leaderboard.filters import Filters
from vlnbench.util.tables.format import Format

if TYPE_CHECKING:
    from vlnbench.leaderboard.board import OwnRun, Table
    from vlnbench.leaderboard.points import Picture
    from vlnbench.leaderboard.published import Literature


@dataclass(frozen=True)
class Leaderboard(Filters):
    """Make leaderboard and reproduction ledger (JSON, CSV, Markdown, SVG) from published results and runs.

    Runs are those below <results>/runs and the given ones. With --format, or with what leaves rows out, tables are
    printed and nothing is written: of given runs those tables that they stand in.
    """

    run_folders: Positional[Annotated[list[Path], arg(name="runs")]] = field(default_factory=list)
    """Run folders."""
    results: Path = Path("results")
    """Folder with published.json and runs/; without that file, the rows that come with vlnbench."""
    format: Format | None = None
    """Print tables so: for a terminal, CSV, Markdown, LaTeX or JSON."""
    out: Path | None = None
    """Folder to write; default the one with published.json."""
    check: bool = False
    """Write nothing; exit with code 1 if a file is not what would be written."""
    add: bool = False
    """Copy the run folder to <results>/runs first (compressed, with its trajectories), to be committed; --sensors
    and --backbone are those of the run."""
    name: str | None = None
    """With --add: what tables call the run; default its agent."""
    reproduces: str | None = None
    """With --add: what the run is to reproduce: id of a published row, or runs/NAME of a run already added."""

    def run(self) -> None:
        from vlnbench.leaderboard.board import PUBLISHED, is_new, load, make_tables
        from vlnbench.leaderboard.published import begin

        if not self.add and (self.name or self.reproduces):
            raise UsageError("--name, --reproduces: expected together with --add")
        prints = not self.add and not self.check and (self.format is not None or self.narrow or bool(self.own))
        if is_new(self.results):
            if self.check:
                raise UsageError(
                    f"--check: {self.results / PUBLISHED} is not there; expected the folder of a leaderboard"
                )
            if not prints:
                begin(self.results)
        folders = self.run_folders
        if self.add:
            self._add()
            folders = []
        literature, runs = load(self.results, folders)
        tables = make_tables(literature, runs)
        if prints:
            given = [own.entry.name for own in runs if own.run.folder in folders]
            self._print(tables, literature, replace(self, own=(*self.own, *given)))
        else:
            self._write(tables, literature, runs)

    def _add(self) -> None:
        from vlnbench.evaluation.recorded import load_run
        from vlnbench.leaderboard.board import PUBLISHED, check_claim
        from vlnbench.leaderboard.committed import Entry, add_run, committed_runs
        from vlnbench.leaderboard.published import read_published

        if len(self.run_folders) != 1 or self.check:
            raise UsageError("--add: expected one run folder, without --check")
        if self.reproduces is not None:
            names = [run.folder.name for run, _ in committed_runs(self.results, trajectories=False)]
            check_claim(read_published(self.results / PUBLISHED), names, self.reproduces)
        (folder,) = self.run_folders
        name = self.name or load_run(folder, trajectories=False).identity.called
        sensors, backbone = (", ".join(each) or None for each in (self.sensors, self.backbone))
        entry = Entry(name=name, sensors=sensors, backbone=backbone, reproduces=self.reproduces)
        print(f"added: {add_run(folder, self.results, entry)}")

    def _print(self, tables: list[Table], literature: Literature, filters: Filters) -> None:
        from vlnbench.leaderboard.sheets import asked
        from vlnbench.util.tables.sheet import written

        print(written(asked(tables, literature, filters), self.format or "text"))

    def _write(self, tables: list[Table], literature: Literature, runs: list[OwnRun]) -> None:
        from vlnbench.leaderboard.board import outdated, summary_line, write
        from vlnbench.leaderboard.points import outdated_pictures, pictures
        from vlnbench.leaderboard.reproduction import make_ledger, not_measured, render_ledger
        from vlnbench.leaderboard.sheets import render
        from vlnbench.util.loading import import_module

        families = list(import_module("agents.table").FAMILIES)
        ledger = [*make_ledger(literature, runs), *not_measured(literature, runs, families)]
        files = render(tables) | render_ledger(ledger)
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
