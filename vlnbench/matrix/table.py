"""matrix.json as CSV, Markdown and plots: pure functions of it, so that they can always be made again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.evaluation.identity import read_identity
from vlnbench.matrix.rows import DOCUMENT
from vlnbench.matrix.sheet import GB, main_sheet, peak, peak_names, phase_names, read_document, sheet_of
from vlnbench.matrix.spec import Matrix
from vlnbench.matrix.statistics.effects import Row
from vlnbench.matrix.statistics.offline import OFFLINE_CSV, offline_csv, offline_section, scored_sets
from vlnbench.matrix.statistics.tables import EFFECTS_CSV, effects_csv, sections
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.tables.cells import markdown_cell
from vlnbench.util.tables.sheet import markdown_of, written

CSV, MARKDOWN = "matrix.csv", "matrix.md"
TAIL_LINES = 8
_READING = (
    "SR and SPL in percent with 95 % intervals, clustered by scene; bold is what is not told from the best "
    "setting on the same episodes, trainings taken as given (5 % for all of a column together, Holm). "
)


def write_tables(results: Path) -> str:
    """Write CSV, Markdown and plots beside matrix.json; returns the table. Raises UsageError without it."""
    document = read_document(results)
    sheet = sheet_of(results)
    try:
        write_bytes(results / CSV, f"{written(sheet, 'csv')}\n".encode())
        write_bytes(results / EFFECTS_CSV, effects_csv(document).encode())
        write_bytes(results / MARKDOWN, markdown(document).encode())
        if scored_sets(document):
            write_bytes(results / OFFLINE_CSV, offline_csv(document).encode())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{results / DOCUMENT}: lacks {error}; run the matrix again to make it anew") from error
    try:
        from vlnbench.matrix.plots import write_plots
    except ImportError:
        return f"{written(sheet, 'text')}\n\n{results}: no plots (pip install 'vlnbench[report]')"
    files = write_plots(document, results)
    return f"{written(sheet, 'text')}\n\n{results}: {', '.join([CSV, EFFECTS_CSV, MARKDOWN, *files])}"


def format_settings(matrix: Matrix) -> str:
    """The settings of a matrix file."""
    rows = [[i, each.name, each.key, each.train_key] for i, each in enumerate(matrix.settings, start=1)]
    table = tabulate(rows, headers=["", "setting", "key", "training"], disable_numparse=True)
    return f"{matrix.name} {matrix.key}: {len(rows)} settings\n\n{table}"


def format_status(document: Mapping[str, Any]) -> str:
    """How far every setting is."""
    rows = []
    for row in document["rows"]:
        steps = "-" if row["steps"] is None else f"{row['steps_done'] or 0}/{row['steps']}"
        done = [split for split, result in row["results"].items() if result is not None]
        rows.append([row["name"], row["status"], row["stage"] or "", steps, ", ".join(done)])
    headers = ["setting", "status", "stage", "steps", "evaluated"]
    return str(tabulate(rows, headers=headers, disable_numparse=True))


def markdown(document: Mapping[str, Any]) -> str:
    """The whole result for people: table, seeds, effects, failures."""
    parts = [
        f"# {markdown_cell(document['name'])}",
        f"{len(document['rows'])} settings, key {document['key']}. {_conditions(document)}",
        markdown_of(main_sheet(document)).rstrip("\n"),
        (_READING if document["splits"] else "")
        + "VRAM in GB (1e9 bytes) of training, of the GPU that took most: as planned before, then at its peak as "
        "allocated and as reserved by PyTorch, and of the whole process by NVML; host: largest process of the "
        "training. A window is a sample of training. min: of the training, and of the evaluations; device-h: "
        "hours of both times GPUs or, without any, cores.",
    ]
    parts += [*sections(document), *offline_section(document)]
    parts += [*_training_section(document), *_memory_section(document)]
    failed = [row for row in [*document.get("references", ()), *document["rows"]] if row["reason"]]
    if failed:
        parts += ["## Failed and skipped", *(_failure(row) for row in failed)]
    return "\n\n".join(parts) + "\n"


def _conditions(document: Mapping[str, Any]) -> str:
    """Machines, and the simulators and data of the evaluations."""
    machines = {
        f"{' + '.join(machine['gpus']) or 'no GPU'}, {machine['cores']} cores of {machine['cpu']}, torch "
        f"{machine['packages']['torch']}, vlnbench {machine['vlnbench']} {(machine['git'] or '')[:12]}".strip()
        for machine in (row["machine"] for row in document["rows"])
        if machine
    }
    evaluated = {
        f"{identity.benchmark} {split} ({identity.episodes_of} episodes, {identity.simulator})"
        for row in document["rows"]
        for split, result in row["results"].items()
        if result and (identity := read_identity(result["identity"], f"{row['name']}: {split}"))
    }
    lines = ["Machine: " + "; ".join(sorted(machines))] if machines else []
    lines += ["evaluated on " + ", ".join(sorted(evaluated))] if evaluated else []
    return markdown_cell(". ".join(lines))


def _memory_section(document: Mapping[str, Any]) -> list[str]:
    """Peaks of the GPUs by phase; nothing without a GPU, or for older documents."""
    names = peak_names(document)
    if not names:
        return []
    lines = [
        [markdown_cell(row["name"]), *(_scaled(peak(row, name), GB, 2) for name in names)]
        for row in document["rows"]
    ]
    headers = ["setting", *("whole card" if name == "card" else name for name in names)]
    align = ("left", *["right"] * (len(headers) - 1))
    table = tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True, colalign=align)
    told = (
        "GB that PyTorch had allocated at most in each phase, of all processes of a training and all agents of "
        "its evaluations. Whole card: in use during the training on the fullest GPU, whoever used it, by NVML."
    )
    return ["## Memory of the GPU by phase", told, str(table)]


def _training_section(document: Mapping[str, Any]) -> list[str]:
    """Where the time of every training went, and how evenly its ranks took memory; nothing for older documents."""
    rows = [row for row in document["rows"] if row.get("phases")]
    if not rows:
        return []
    names, lines = phase_names(document), []
    for row in rows:
        total = sum(row["phases"].values()) or 1.0
        cells = [f"{100 * row['phases'].get(name, 0.0) / total:.0f}" for name in names]
        spread, hits = row["memory_spread"], row["feature_cache"]
        found = "-" if hits is None else f"{100 * hits['found'] / max(1, hits['frames']):.1f}"
        used = _scaled(row.get("cpu_ms_per_window"), 1, 1)
        lines.append([row["name"], used, *cells, found, _scaled(spread and spread["spread"], GB, 2)])
    headers = ["setting", "CPU ms per window", *(f"{name} (%)" for name in names)]
    headers += ["features found (%)", "ranks' spread (GB)"]
    table = tabulate(
        [[markdown_cell(cell) for cell in line] for line in lines],
        headers=headers,
        tablefmt="github",
        disable_numparse=True,
        colalign=("left", *["right"] * (len(headers) - 1)),
    )
    told = (
        "CPU time of the first process per window, the median of the log's lines, without processes that read "
        "frames; shares of its time in every phase of a step; how many frames' features were found in the cache; "
        "and by how much the peaks of a training's processes differ (of the GPU, without any of the host)."
    )
    return ["## Where the time of training goes", told, str(table)]


def _failure(row: Row) -> str:
    """A failed setting with the last lines of its log."""
    lines = "\n".join(f"    {line}" for line in row["tail"][-TAIL_LINES:])
    return f"**{markdown_cell(row['name'])}**: {markdown_cell(row['reason'])}" + (f"\n\n{lines}" if lines else "")


def _scaled(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value / unit:,.{digits}f}"
