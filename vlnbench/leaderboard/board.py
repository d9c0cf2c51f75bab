"""Published results and runs, in one table per protocol, as JSON, CSV and Markdown."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.evaluation.costs import Hours, format_hours, hours
from vlnbench.evaluation.recorded import RecordedRun
from vlnbench.evaluation.stats import Estimate
from vlnbench.evaluation.summary import METRICS, Summary, summarize
from vlnbench.leaderboard.committed import RUNS, Entry, read_runs
from vlnbench.leaderboard.published import Literature, Published, Source, read_published, spoken
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.tables import Cell, csv_text, markdown_cell, markdown_table

PUBLISHED = "published.json"
COLUMNS = {
    "SR": "SR (%)",
    "SPL": "SPL (%)",
    "OS": "OS (%)",
    "NE": "NE (m)",
    "nDTW": "nDTW (%)",
    "SDTW": "SDTW (%)",
    "TL": "TL (m)",
}
"""Metrics shown, with their units; TL is the path length."""

_METRICS = {metric.label: metric for metric in METRICS}
BY_COLUMN = {label: _METRICS["path length" if label == "TL" else label] for label in COLUMNS}
"""Their definitions."""

OURS = "this repository"


@dataclass(frozen=True, slots=True)
class Value:
    """A metric in percent or meters; se, low, high (95 %, clustered by scene) and n where they are known."""

    mean: float
    se: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; None is unknown.

    episodes: "N of M" planned; partial: whether any of M are missing. gpu_hours: of the training, as published.
    hours: what the evaluation took, of runs only.
    """

    method: str
    evidence: str | None
    sensors: str | None
    extra: str | None
    dataset_version: str | None
    languages: str | None
    simulator: str | None
    episodes: str | None
    partial: bool | None
    metrics: dict[str, Value]
    hours: Hours | None
    gpu_hours: str | None
    source: str
    checked: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one dataset, split, protocol and choice of languages, best SR first, partial ones last."""

    dataset: str
    split: str
    protocol: str
    languages: str | None
    description: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run of ours, aggregated."""

    run: RecordedRun
    entry: Entry
    summary: Summary

    @property
    def partial(self) -> bool:
        """Whether it covers less than the published split."""
        run = self.run
        unfinished = self.summary.n_done < run.n_planned * run.repeats
        return unfinished or run.n_planned < run.n_split or run.identity.partial

    @property
    def metrics(self) -> dict[str, Value]:
        found = ((label, m.scale, self.summary.metrics[m.label]) for label, m in BY_COLUMN.items())
        return {label: _value(value, scale) for label, scale, value in found if value is not None}


def load(results: Path, folders: Sequence[Path] = ()) -> tuple[Literature, list[OwnRun]]:
    """What a leaderboard is made of. Raises UsageError on a broken file."""
    literature = read_published(results / PUBLISHED)
    found, runs = read_runs(results, folders), []
    names = [run.folder.name for run, _ in found]
    for run, entry in found:
        if entry.reproduces is not None:
            check_claim(literature, [name for name in names if name != run.folder.name], entry.reproduces)
        runs.append(OwnRun(run, entry, summarize(run.rows.values(), list(run.rows), run.identity)))
    return literature, runs


def check_claim(literature: Literature, runs: Collection[str], claim: str) -> None:
    """Raise UsageError unless what a run claims to reproduce is a published row or `runs/<name>` of a run here."""
    if not claim.startswith(f"{RUNS}/"):
        literature.find(claim)
    elif claim.removeprefix(f"{RUNS}/") not in runs:
        raise UsageError(f"unknown run {claim!r}: expected {RUNS}/ and one of {', '.join(runs) or 'no runs'}")


def make_tables(literature: Literature, runs: Sequence[OwnRun]) -> list[Table]:
    """Every published row and every run. Unlike protocols or languages never share a table."""
    tables: dict[tuple[str, str, str, str], list[Row]] = {}
    descriptions: dict[str, str] = {
        "unknown": "How these were evaluated is not known; they may differ from each other."
    }
    for row in literature.rows:
        benchmark = literature.benchmark(row)
        name = benchmark or row.protocol or "unknown"
        if row.protocol is not None:
            descriptions[name] = literature.protocols[row.protocol].description
        made = _published_row(row)
        tables.setdefault((row.dataset, row.split, name, made.languages or ""), []).append(made)
    datasets: dict[str, str] = {
        name: data for p in literature.protocols.values() for data, name in p.benchmarks.items()
    }
    for own in runs:
        ours = own.run.benchmark
        fingerprint = own.run.identity.fingerprint
        name = ours.name if fingerprint == ours.fingerprint else f"{ours.name} {fingerprint}"
        descriptions.setdefault(name, ours.summary)
        dataset = datasets.get(ours.name, ours.name)
        made = _own_row(own, dataset)
        tables.setdefault((dataset, own.run.split, name, made.languages or ""), []).append(made)
    return [
        Table(*key[:3], key[3] or None, descriptions[key[2]], tuple(sorted(tables[key], key=_order)))
        for key in sorted(tables, key=_table_order)
    ]


def _table_order(key: tuple[str, str, str, str]) -> tuple[object, ...]:
    dataset, split, protocol, languages = key
    return dataset, split != "val_unseen", split, protocol == "unknown", protocol, not languages, languages


def render(tables: Sequence[Table]) -> dict[str, str]:
    """The files of a leaderboard: name -> text."""
    return {
        "leaderboard.json": _json(tables),
        "leaderboard.csv": _csv(tables),
        "leaderboard.md": _markdown(tables),
    }


def write(files: dict[str, str], folder: Path) -> None:
    """Replace the files that changed. Raises UsageError if the folder cannot be written."""
    try:
        for name in outdated(files, folder):
            write_bytes(folder / name, files[name].encode())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from error


def outdated(files: dict[str, str], folder: Path) -> list[str]:
    """Names of the files on disk that are not what would be written."""
    there = {name: (folder / name).read_bytes() for name in files if (folder / name).is_file()}
    return [name for name, text in files.items() if there.get(name) != text.encode()]


def cite(source: Source) -> str:
    """A source in one line."""
    address = f"arXiv {source.arxiv}" if source.arxiv else None
    return "; ".join(part for part in (source.work, address, source.url) if part)


def _published_row(row: Published) -> Row:
    values = {label: getattr(row.metrics, label) for label in COLUMNS}
    return Row(
        method=row.method,
        evidence=row.evidence,
        sensors=row.sensors,
        extra=", ".join([*row.extra, *(["privileged"] if row.privileged else [])]) or None,
        dataset_version=row.dataset_version,
        languages=_listed(row.languages or ()),
        simulator=None,
        episodes=None if row.n is None else str(row.n),
        partial=row.partial or None,
        metrics={label: Value(value, n=row.n) for label, value in values.items() if value is not None},
        hours=None,
        gpu_hours=f"{row.gpu_hours.hours:g} {row.gpu_hours.gpu}" if row.gpu_hours else None,
        source=cite(row.source),
        checked=f"{row.checked.date}: {row.checked.where}",
        note=row.note,
    )


def _listed(languages: Iterable[str]) -> str | None:
    return ", ".join(sorted(languages)) or None


def _own_row(own: OwnRun, dataset: str) -> Row:
    run, manifest = own.run, own.run.manifest
    repeats = f", {run.repeats} times each" if run.repeats > 1 else ""
    chosen = f" ({run.identity.choice})" if run.identity.choice else ""
    note = f"n_errors {own.summary.n_errors}, n_unreachable {own.summary.n_unreachable}"
    return Row(
        method=own.entry.name,
        evidence=OURS,
        sensors=own.entry.sensors,
        extra="privileged" if manifest.get("agent_privileged") else None,
        dataset_version=run.identity.dataset_version,
        languages=_listed(run.benchmark.languages or spoken(dataset, ())),
        simulator=run.identity.simulator,
        episodes=f"{own.summary.n_done // run.repeats} of {run.n_split}{repeats}{chosen}",
        partial=own.partial,
        metrics=own.metrics,
        hours=_rounded(hours(run.rows.values(), run.attempts)),
        gpu_hours=None,
        source=f"vlnbench {manifest.get('vlnbench')}, commit {str(manifest.get('git'))[:12]}, {run.folder.name}",
        checked=None,
        note=note,
    )


def _rounded(found: Hours) -> Hours:
    values: dict[str, Any] = asdict(found)
    rounded = {name: round(value, 4) for name, value in values.items() if isinstance(value, float)}
    return Hours(**(values | rounded))


def _value(value: Estimate, scale: float) -> Value:
    numbers = (value.mean, value.se, value.low, value.high)
    mean, se, low, high = (None if x is None else round(x * scale, 4) + 0.0 for x in numbers)
    assert mean is not None
    return Value(mean, se, low, high, value.n)


def _order(row: Row) -> tuple[bool, float, float, str]:
    sr, spl = (row.metrics[label].mean if label in row.metrics else -1.0 for label in ("SR", "SPL"))
    return bool(row.partial), -sr, -spl, row.method


def _json(tables: Sequence[Table]) -> str:
    """A list of tables; every row is a line."""
    parts = []
    for table in tables:
        facts = {name: value for name, value in asdict(table).items() if name != "rows"}
        head = json.dumps(facts, ensure_ascii=False)[:-1]
        rows = ",\n".join("  " + json.dumps(asdict(row), ensure_ascii=False) for row in table.rows)
        parts.append(f'{head}, "rows": [\n{rows}\n]}}')
    return "[\n" + ",\n".join(parts) + "\n]\n"


def _csv(tables: Iterable[Table]) -> str:
    facts = ("method", "evidence", "sensors", "extra", "dataset_version", "languages", "simulator", "episodes")
    parts = ("mean", "se", "low", "high", "n")
    headers = ["dataset", "split", "protocol", *facts, "partial"]
    headers += [f"{label}{'' if part == 'mean' else f'_{part}'}" for label in COLUMNS for part in parts]
    headers += ["wall_h", "agent_h", "simulator_h", "device_h", "device_unit", "hardware"]
    lines: list[list[Cell]] = []
    for table in tables:
        for row in table.rows:
            line: list[Cell] = [
                table.dataset,
                table.split,
                table.protocol,
                *(getattr(row, fact) for fact in facts),
            ]
            line.append(row.partial)
            for label in COLUMNS:
                line += [getattr(row.metrics[label], part) if label in row.metrics else None for part in parts]
            line += list(asdict(row.hours or Hours()).values())
            lines.append([*line, row.gpu_hours, row.source, row.checked, row.note])
    return csv_text([*headers, "gpu_hours", "source", "checked", "note"], lines)


_PREFACE = """# Leaderboard

Made by `vlnbench leaderboard` from `published.json` and `runs/`; do not edit. One table per dataset, split,
protocol and, on RxR-CE, choice of languages. An empty cell is unknown or not published. Rows of this repository
show mean ± SE [95 % interval], clustered by scene; published values come without n, SE and interval unless these
are given. `evidence`: `authors` is their own report, `quoted` their value as others repeat it, `third party` a
measurement of somebody else. `checked` is when a row was last held against a source; `leaderboard.csv` and `.json`
say which.

`hours` are those that an evaluation took: on the clock (wall), in agents and in simulators, and times the number
of GPUs or, without any, of cores. `GPU-hours` are those of a training, as published.

SR [over time](sr_over_time.svg) and [over GPU-hours of training](sr_vs_gpu_hours.svg).
"""


def _markdown(tables: Iterable[Table]) -> str:
    return _PREFACE + "".join(map(_markdown_section, tables))


def _markdown_section(table: Table) -> str:
    headers = {"dataset_version": "data"}
    facts = ("method", "evidence", "sensors", "extra", "dataset_version", "languages", "simulator")
    columns: dict[str, list[Cell]] = {
        headers.get(fact, fact): [getattr(row, fact) for row in table.rows] for fact in facts
    }
    columns["episodes"] = [f"{row.episodes} (PARTIAL)" if row.partial else row.episodes for row in table.rows]
    for label, header in COLUMNS.items():
        columns[header] = [_shown(row.metrics.get(label)) for row in table.rows]
    columns["hours"] = [_hours(row.hours) for row in table.rows]
    columns["GPU-hours"] = [row.gpu_hours for row in table.rows]
    columns["source"] = [row.source for row in table.rows]
    columns["checked"] = [row.checked and row.checked[:10] for row in table.rows]
    columns["note"] = [row.note for row in table.rows]
    shown = {header: cells for header, cells in columns.items() if any(cell is not None for cell in cells)}
    parts = [f"{table.dataset} {table.split}", f"protocol {table.protocol}"]
    if spoken(table.dataset, ()):
        parts.append(f"languages {table.languages or 'unknown'}")
    title = markdown_cell(", ".join(parts))
    rows = zip(*shown.values(), strict=True)
    return f"\n## {title}\n\n{markdown_cell(table.description)}\n\n{markdown_table(list(shown), rows)}"


def _hours(found: Hours | None) -> str | None:
    if found is None:
        return None
    text = format_hours(found)
    return (f"{text} ({found.hardware})" if text and found.hardware else text) or None


def _shown(value: Value | None) -> str | None:
    if value is None:
        return None
    if value.se is None:
        return f"{value.mean:g}" + (f" (n {value.n})" if value.n else "")
    return f"{value.mean:.2f} ± {value.se:.2f} [{value.low:.2f}, {value.high:.2f}] (n {value.n})"


def summary_line(tables: Sequence[Table]) -> str:
    """What a leaderboard holds."""
    rows = [row for table in tables for row in table.rows]
    ours = sum(row.evidence == OURS for row in rows)
    return f"{len(tables)} tables, {len(rows) - ours} published rows, {ours} runs"
