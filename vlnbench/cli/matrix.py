"""Commands of the ablation matrix; see `vlnbench.matrix`. Loads nothing heavy."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, subcommand

from vlnbench.cli.selected import WholeNames
from vlnbench.util.tables.format import Format

MATRIX = "Train and evaluate many settings from one file: tunable parts, training sets, any option."


@dataclass(frozen=True)
class MatrixFile:
    """A matrix file and where its work and results lie."""

    file: Positional[Path]
    """Matrix file (YAML)."""
    out: Path | None = None
    """Folder of the work: runs, logs, checkpoints; default runs/matrix/<name>."""
    results: Path | None = None
    """Folder of the result table and plots; default results/<name>."""
    hardware: str = ""
    """What it runs on: a name of the file's section hardware; default the first there."""

    def read(self) -> tuple[Any, Path, Path]:
        """The matrix, its work folder and its results folder."""
        from vlnbench.matrix.spec import read_matrix
        from vlnbench.matrix.work.folder import default_folders

        matrix = read_matrix(self.file, self.hardware)
        work, results = default_folders(matrix)
        return matrix, self.out or work, self.results or results


@dataclass(frozen=True)
class MatrixRun(MatrixFile):
    """Run a matrix. Running it again goes on; finished settings are kept, failed ones too (see `matrix retry`)."""

    dry_run: bool = False
    """Print the settings with the VRAM and time they will need and the smallest differences that they can show;
    run nothing."""
    jobs: int | None = None
    """Settings at a time on the CPU; default the file's."""
    gpus: tuple[str, ...] = ()
    """GPUs to use, as CUDA_VISIBLE_DEVICES names them; default all visible ones."""
    unfit: Literal["run", "skip"] | None = None
    """What is done with settings that do not fit by their plan; default the file's."""
    store: Path | None = None
    """Folder by which matrices share finished trainings and evaluations; default the file's, or none."""
    only: WholeNames = ()
    """Run or, with --dry-run, show only these settings and references, by their names, in which * and ? stand for
    anything."""
    shard: str = ""
    """Run one of several equal parts, such as 1/4, for as many machines; see `matrix merge`."""

    def run(self) -> None:
        self._run(retry=False)

    def _run(self, retry: bool) -> None:
        from vlnbench.matrix.parts import Part
        from vlnbench.matrix.runner import check_none_crashed, find_places, format_counts, plan_matrix, run_matrix
        from vlnbench.matrix.table import write_tables

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as after Ctrl-C
        matrix, work, results = self.read()
        changes = {
            name: getattr(self, name) for name in ("jobs", "unfit", "store") if getattr(self, name) is not None
        }
        matrix = replace(matrix, execution=replace(matrix.execution, **changes))
        matrix.execution.check("--jobs: run")
        part = Part(self.only, self.shard)
        if self.dry_run:
            from vlnbench.matrix.forecast import format_forecast
            from vlnbench.matrix.needs.table import There

            matrix = part.of(matrix, work)
            places = find_places(matrix.execution, self.gpus)
            there = There(places.host, work, matrix.execution.pace(places.gpu, places.card))
            print(format_forecast(matrix, work, results, there, plan_matrix(matrix, None, places.gpu)))
            return
        found = run_matrix(matrix, work, results, gpus=self.gpus, retry=retry, part=part)
        print(write_tables(results))
        print(format_counts(found))
        check_none_crashed(found)


@dataclass(frozen=True)
class MatrixRetry(MatrixRun):
    """Run a matrix with another attempt at settings that failed; training goes on from its last state."""

    def run(self) -> None:
        self._run(retry=True)


@dataclass(frozen=True)
class MatrixList(MatrixFile):
    """Print the settings of a matrix file with their hashes."""

    def run(self) -> None:
        from vlnbench.matrix.table import format_settings

        print(format_settings(self.read()[0]))


@dataclass(frozen=True)
class MatrixStatus(MatrixFile):
    """Print how far the settings of a matrix are, from what they recorded. Writes nothing."""

    def run(self) -> None:
        from vlnbench.matrix.rows import document
        from vlnbench.matrix.runner import format_counts
        from vlnbench.matrix.table import format_status
        from vlnbench.matrix.work.folder import check_work

        matrix, work, _ = self.read()
        check_work(matrix, work)
        found = document(matrix, work)
        print(f"{format_status(found)}\n\n{format_counts(found)}")


@dataclass(frozen=True)
class MatrixTable:
    """Make the tables and plots of a results folder anew from its matrix.json alone.

    With --format the main table is printed, and no table or plot is written.
    """

    results: Positional[Path]
    """Folder that holds matrix.json."""
    format: Format | None = None
    """Print the main table so: for a terminal, CSV, Markdown, LaTeX or JSON."""
    sizes: str | None = None
    """Beside the SR of a small model show what the same parts of these published sizes take on one card, planned:
    streamvln-8b, say. It stays in matrix.json until the matrix runs again."""

    def run(self) -> None:
        from vlnbench.matrix.sheet import sheet_of
        from vlnbench.matrix.table import write_tables
        from vlnbench.util.tables.sheet import written

        if self.sizes is not None:
            from vlnbench.matrix.sizes import add_sizes

            add_sizes(self.results, self.sizes)
        print(written(sheet_of(self.results), self.format) if self.format else write_tables(self.results))


@dataclass(frozen=True)
class MatrixMerge:
    """Put the results of parts of a matrix, run on several machines, into one table."""

    parts: Positional[tuple[Path, ...]]
    """Results folders of the parts: each holds a matrix.json."""
    results: Path = field(kw_only=True)
    """Folder of the table and plots of all of them; may be one of the parts."""

    def run(self) -> None:
        from vlnbench.errors import UsageError
        from vlnbench.matrix.parts import merge
        from vlnbench.matrix.runner import format_counts
        from vlnbench.matrix.table import write_tables

        if not self.parts:
            raise UsageError("expected the results folders of one part or more")
        found = merge(self.parts, self.results)
        print(write_tables(self.results))
        print(format_counts(found))


MatrixCommand = (
    Annotated[MatrixRun, subcommand("run", prefix_name=False)]
    | Annotated[MatrixList, subcommand("list", prefix_name=False)]
    | Annotated[MatrixStatus, subcommand("status", prefix_name=False)]
    | Annotated[MatrixTable, subcommand("table", prefix_name=False)]
    | Annotated[MatrixMerge, subcommand("merge", prefix_name=False)]
    | Annotated[MatrixRetry, subcommand("retry", prefix_name=False)]
)
