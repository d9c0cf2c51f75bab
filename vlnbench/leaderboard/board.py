"""Published results and runs, in one table per protocol."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlnbench.data.bodies import episodes_of
from vlnbench.data.shipped import BENCHMARKS
from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.costs import Hours, hours
from vlnbench.evaluation.identity import UNKNOWN
from vlnbench.evaluation.recorded import RecordedRun
from vlnbench.evaluation.summary import METRICS, Summary, summarize, value_of
from vlnbench.leaderboard.committed import RUNS, Entry, read_runs
from vlnbench.leaderboard.published import Literature, Published, Source, read_published, shipped, spoken
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.tables.sheet import Value

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
IMPORTED = "imported"
"""Evidence of results that another program made of the episodes, see `Identity.imported`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; None is unknown.

    episodes: "N of M" planned; partial: whether any of M are missing. gpu_hours: of the training, as published.
    hours: what the evaluation took, of runs only. checkpoint: the released weights that have the value. date: when
    a paper came out (YYYY-MM), or a run was begun.
    """

    method: str
    evidence: str | None
    sensors: str | None
    backbone: str | None
    extra: str | None
    dataset_version: str | None
    languages: str | None
    simulator: str | None
    episodes: str | None
    partial: bool | None
    metrics: dict[str, Value]
    hours: Hours | None
    gpu_hours: str | None
    checkpoint: str | None
    date: str | None
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
        found = {label: value_of(self.summary.metrics[m.label], m) for label, m in BY_COLUMN.items()}
        return {label: value for label, value in found.items() if value is not None}


def load(results: Path, folders: Sequence[Path] = ()) -> tuple[Literature, list[OwnRun]]:
    """What a leaderboard is made of. Raises UsageError on a broken file."""
    literature = read_published(shipped() if is_new(results) else results / PUBLISHED)
    found, runs = read_runs(results, folders), []
    names = [run.folder.name for run, _ in found]
    for run, entry in found:
        if entry.reproduces is not None:
            check_claim(literature, [name for name in names if name != run.folder.name], entry.reproduces)
        runs.append(OwnRun(run, entry, summarize(run.rows.values(), list(run.rows), run.identity)))
    return literature, runs


def is_new(results: Path) -> bool:
    """Whether a folder has no published rows of its own: it is not there, empty, or holds nothing but runs yet."""
    found = {path.name for path in results.iterdir()} if results.is_dir() else set()
    return PUBLISHED not in found and found <= {RUNS}


def check_claim(literature: Literature, runs: Collection[str], claim: str) -> None:
    """Raise UsageError unless what a run claims to reproduce is a published row or `runs/<name>` of a run here."""
    if not claim.startswith(f"{RUNS}/"):
        literature.find(claim)
    elif claim.removeprefix(f"{RUNS}/") not in runs:
        raise UsageError(f"unknown run {claim!r}: expected {RUNS}/ and one of {', '.join(runs) or 'no runs'}")


def make_tables(literature: Literature, runs: Sequence[OwnRun]) -> list[Table]:
    """Every published row and every run.

    Unlike protocols or languages never share a table, nor do runs of ours over unlike data files.
    """
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
    own_rows = [(own, _key(own, datasets)) for own in runs]
    for own, key in own_rows:
        data, name, said = own.run.identity.dataset_sha256, key[2], own.run.benchmark.summary
        if data != UNKNOWN and _other_data(own, [each for each, same in own_rows if same == key]):
            name = f"{name} data {data[:8]}"
            said += f" Over data files {data[:8]} alone; other runs are over others, and published results may be."
        descriptions.setdefault(name, said)
        tables.setdefault((*key[:2], name, key[3]), []).append(_own_row(own, key[0]))
    return [
        Table(*key[:3], key[3] or None, descriptions[key[2]], tuple(sorted(tables[key], key=_order)))
        for key in sorted(tables, key=_table_order)
    ]


def _other_data(own: OwnRun, beside: Sequence[OwnRun]) -> bool:
    """Whether others are over data files that may as well be the published ones; files that do not hold the
    published number of episodes are not, and move no run that is over all of them."""
    mine = own.run.identity
    theirs = {each.run.identity.dataset_sha256 for each in beside if mine.partial or not each.run.identity.partial}
    return bool(theirs - {mine.dataset_sha256, UNKNOWN})


def _key(own: OwnRun, datasets: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Dataset, split, protocol and languages of a run; the fingerprint tells apart protocols of one name."""
    ours, fingerprint = own.run.benchmark, own.run.identity.fingerprint
    base = episodes_of(ours.name)
    known = base in BENCHMARKS and fingerprint == ours.fingerprint
    name = ours.name if known else f"{ours.name} {fingerprint}"
    dataset = datasets.get(base, base)
    return dataset, own.run.split, UNKNOWN if fingerprint == UNKNOWN else name, _spoken(own, dataset) or ""


def _spoken(own: OwnRun, dataset: str) -> str | None:
    return _listed(own.run.benchmark.languages or spoken(dataset, ()))


def _table_order(key: tuple[str, str, str, str]) -> tuple[object, ...]:
    dataset, split, protocol, languages = key
    return dataset, split != "val_unseen", split, protocol == "unknown", protocol, not languages, languages


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
        backbone=row.backbone,
        extra=", ".join([*row.extra, *(["privileged"] if row.privileged else [])]) or None,
        dataset_version=row.dataset_version,
        languages=_listed(row.languages or ()),
        simulator=None,
        episodes=None if row.n is None else str(row.n),
        partial=row.partial or None,
        metrics={label: Value(value, n=row.n) for label, value in values.items() if value is not None},
        hours=None,
        gpu_hours=f"{row.gpu_hours.hours:g} {row.gpu_hours.gpu}" if row.gpu_hours else None,
        checkpoint=row.released.checkpoint if row.released else None,
        date=row.source.arxiv and f"20{row.source.arxiv[:2]}-{row.source.arxiv[2:4]}",
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
    source = f"vlnbench {manifest.get('vlnbench')}, commit {str(manifest.get('git'))[:12]}, {run.folder.name}"
    if run.identity.imported:
        note += f"; from files of {run.identity.imported}, not run here"
        source = f"imported by {source}"
    return Row(
        method=own.entry.name,
        evidence=IMPORTED if run.identity.imported else OURS,
        sensors=own.entry.sensors,
        backbone=own.entry.backbone,
        extra="privileged" if manifest.get("agent_privileged") else None,
        dataset_version=run.identity.dataset_version,
        languages=_spoken(own, dataset),
        simulator=run.identity.simulator,
        episodes=f"{own.summary.n_done // run.repeats} of {run.n_split}{repeats}{chosen}",
        partial=own.partial,
        metrics=own.metrics,
        hours=_rounded(hours(table_of(run.rows.values()), run.attempts)),
        gpu_hours=None,
        checkpoint=None,
        date=str(manifest.get("created", ""))[:10] or None,
        source=source,
        checked=None,
        note=note,
    )


def _rounded(found: Hours) -> Hours:
    values: dict[str, Any] = asdict(found)
    rounded = {name: round(value, 4) for name, value in values.items() if isinstance(value, float)}
    return Hours(**(values | rounded))


def _order(row: Row) -> tuple[bool, float, float, str]:
    sr, spl = (row.metrics[label].mean if label in row.metrics else -1.0 for label in ("SR", "SPL"))
    return bool(row.partial), -sr, -spl, row.method


def summary_line(tables: Sequence[Table]) -> str:
    """What a leaderboard holds."""
    rows = [row for table in tables for row in table.rows]
    ours, imported = (sum(row.evidence == kind for row in rows) for kind in (OURS, IMPORTED))
    more = f", {imported} imported" if imported else ""
    return f"{len(tables)} tables, {len(rows) - ours - imported} published rows, {ours} runs{more}"
