"""Rows -> summary: a pure function, so that a summary can always be made again from a run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.metrics import FAILURES, METRICS_VERSION, UNREACHABLE_POLICY
from vlnbench.records import Row, RowKey, Score
from vlnbench.stats import Estimate, Kind, estimate


@dataclass(frozen=True, slots=True)
class Metric:
    """How one score is aggregated and shown; rates and fractions are shown in percent."""

    label: str
    field: str
    kind: Literal["rate", "fraction", "metres", "count"]


METRICS = (
    Metric("SR", "success", "rate"),
    Metric("SPL", "spl", "fraction"),
    Metric("OS", "oracle_success", "rate"),
    Metric("NE", "distance_to_goal", "metres"),
    Metric("nDTW", "ndtw", "fraction"),
    Metric("SDTW", "sdtw", "fraction"),
    Metric("CLS", "cls", "fraction"),
    Metric("path length", "path_length", "metres"),
    Metric("steps", "steps", "count"),
    Metric("collisions", "collisions", "count"),
)

FAILED = {"success": 0.0, "spl": 0.0, "oracle_success": 0.0, "ndtw": 0.0, "sdtw": 0.0, "cls": 0.0}
"""What an episode that ended in an error scores. Its distances and counts do not exist and are left out."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Aggregate of a run. `metrics` maps the label of a metric to its estimate, None where no episode has it.

    n_unscored counts episodes of a split whose goals are not public: they have trajectories and no metrics.
    n_unreachable counts episodes whose goal cannot be reached from the start; see `metrics.UNREACHABLE_POLICY`.
    failures counts the episodes by how they ended, all kinds of `metrics.Failure` in its order. report: sums of
    what the agent counted in the finished episodes.
    """

    identity: Mapping[str, Any]
    n_planned: int
    n_done: int
    n_errors: int
    n_unscored: int
    n_unreachable: int
    policy: str
    failures: dict[str, int]
    metrics_version: int
    metrics: dict[str, Estimate | None]
    seconds: dict[str, float]
    report: dict[str, float]

    @property
    def complete(self) -> bool:
        return self.n_done == self.n_planned


def summarize(rows: Iterable[Row], planned: Sequence[RowKey], identity: Mapping[str, Any]) -> Summary:
    """Aggregate the rows of the planned episodes; other rows are ignored, repeated ones counted once.

    Raises UsageError for rows that an older version scored and that lack a metric.
    """
    by_key = {row.key: row for row in rows}
    used = [by_key[key] for key in planned if key in by_key]
    ok = [row for row in used if row.status == "ok"]
    _check_scores(ok)
    unscored = [row for row in used if row.status == "unscored"]
    scored = [] if unscored else used  # where goals are secret, an error row knows nothing of success either
    kinds = [row.scores["failure"] if row.status == "ok" else "error" for row in scored]
    reports = [row.report for row in used]
    seconds = {part: sum(row.seconds.get(part, 0.0) for row in used) for part in ("env", "agent")}
    return Summary(
        identity=dict(identity),
        n_planned=len(planned),
        n_done=len(used),
        n_errors=len(used) - len(ok) - len(unscored),
        n_unscored=len(unscored),
        n_unreachable=sum(row.scores["geodesic_start"] is None for row in ok),
        policy=UNREACHABLE_POLICY,
        failures={kind: kinds.count(kind) for kind in FAILURES},
        metrics_version=METRICS_VERSION,
        metrics={metric.label: _aggregate(metric, scored) for metric in METRICS},
        seconds={part: round(value, 3) for part, value in seconds.items()},
        report={name: sum(row.report.get(name, 0) for row in used) for name in sorted({*chain(*reports)})},
    )


def format_summary(summary: Summary) -> str:
    """The table a run ends with: mean, standard error, 95 % interval and n for every metric."""
    table = []
    for metric in METRICS:
        value = summary.metrics[metric.label]
        if value is None:
            table.append([_shown_label(metric), "-", "-", "-", 0])
            continue
        scale = 100.0 if metric.kind in ("rate", "fraction") else 1.0
        digits = 1 if metric.kind in ("rate", "fraction", "count") else 2
        low, high = _number(value.low, scale, digits), _number(value.high, scale, digits)
        interval = "-" if value.low is None else f"[{low}, {high}]"
        mean, se = _number(value.mean, scale, digits), _number(value.se, scale, digits)
        table.append([_shown_label(metric), mean, se, interval, value.n])
    headers = ["metric", "mean", "SE", "95 % interval", "n"]
    text = tabulate(table, headers=headers, disable_numparse=True, colalign=("left", *["right"] * 4))
    return "\n".join([_headline(summary), "", text, *_footnotes(summary)])


def _headline(summary: Summary) -> str:
    identity = summary.identity
    line = f"{identity['benchmark']} {identity['split']}: {identity['agent']} in {identity['simulator']}, "
    line += f"episodes {identity['episodes']}"
    if not summary.complete:
        line += f", PARTIAL: {summary.n_done} of {summary.n_planned} planned episodes done"
    return line


def _footnotes(summary: Summary) -> list[str]:
    some = next((value for value in summary.metrics.values() if value is not None), None)
    scenes = some.clusters if some else 0
    basis = (
        f"SE and intervals clustered by scene ({scenes} scenes)" if scenes > 1 else "one scene: no SE or interval"
    )
    notes = [f"n_errors {summary.n_errors}, n_unreachable {summary.n_unreachable} ({summary.policy}); {basis}"]
    ended = ", ".join(f"{kind} {count}" for kind, count in summary.failures.items() if count)
    notes.append(f"how episodes ended: {ended or '-'}; metrics version {summary.metrics_version}")
    if summary.report:
        notes.append("the agent counted: " + ", ".join(f"{name} {n:,g}" for name, n in summary.report.items()))
    if summary.n_unscored:
        notes.append(f"n_unscored {summary.n_unscored}: no public goals; `vlnbench export` writes a submission")
    return ["", *notes]


def _check_scores(ok: Sequence[Row]) -> None:
    needed = ["geodesic_start", "failure", *(metric.field for metric in METRICS)]
    for row in ok:
        missing = [name for name in needed if name not in row.scores]
        if missing:
            raise UsageError(
                f"row of episode {row.episode_id}: field 'scores' lacks {', '.join(missing)}: another version of "
                "vlnbench scored this run; run `vlnbench rescore RUN --write`"
            )


def _aggregate(metric: Metric, rows: Sequence[Row]) -> Estimate | None:
    ok = [row for row in rows if row.status == "ok"]
    if all(row.scores[metric.field] is None for row in ok) and ok:
        return None  # no episode has it (nDTW without ground truth): errors must not invent it
    pairs = [(_value(metric, row), row.scene_id) for row in rows]
    present = [(float(value), scene) for value, scene in pairs if value is not None]
    values, scenes = [value for value, _ in present], [scene for _, scene in present]
    kinds: dict[str, Kind] = {"rate": "rate", "fraction": "fraction", "metres": "positive", "count": "positive"}
    return estimate(values, scenes, kinds[metric.kind])


def _value(metric: Metric, row: Row) -> Score:
    if row.status != "ok":
        return FAILED.get(metric.field)
    return row.scores[metric.field]


def _shown_label(metric: Metric) -> str:
    unit = {"rate": " (%)", "fraction": " (%)", "metres": " (m)"}.get(metric.kind, "")
    return metric.label + unit


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{round(value * scale, digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.0"
