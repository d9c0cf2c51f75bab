"""Rows -> summary: a pure function, so that a summary can always be made again from a run folder."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.evaluation.identity import Identity
from vlnbench.evaluation.metrics import FAILURES, METRICS_VERSION, UNREACHABLE_POLICY
from vlnbench.evaluation.records import Row, RowKey, Score
from vlnbench.evaluation.stats import Estimate, Kind, estimate


@dataclass(frozen=True, slots=True)
class Metric:
    """How one score is aggregated and shown; rates and fractions are shown in percent."""

    label: str
    field: str
    kind: Literal["rate", "fraction", "meters", "count"]

    @property
    def scale(self) -> float:
        """What its values are multiplied by to be shown."""
        return 100.0 if self.kind in ("rate", "fraction") else 1.0


METRICS = (
    Metric("SR", "success", "rate"),
    Metric("SPL", "spl", "fraction"),
    Metric("OS", "oracle_success", "rate"),
    Metric("NE", "distance_to_goal", "meters"),
    Metric("nDTW", "ndtw", "fraction"),
    Metric("SDTW", "sdtw", "fraction"),
    Metric("CLS", "cls", "fraction"),
    Metric("path length", "path_length", "meters"),
    Metric("steps", "steps", "count"),
    Metric("collisions", "collisions", "count"),
)

FAILED = {"success": 0.0, "spl": 0.0, "oracle_success": 0.0, "ndtw": 0.0, "sdtw": 0.0, "cls": 0.0}
"""What an episode that ended in an error scores. Its distances and counts do not exist and are left out."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Aggregate of a run. `metrics` maps the label of a metric to its estimate, None where no episode has it.

    Standard errors and intervals of `metrics` are clustered by scene: they speak of scenes that were not seen, and
    a scene holds its trajectories whole. Those of `by_trajectory` (the same means) take the scenes as given.
    n_unscored counts episodes of a split whose goals are not public: they have trajectories and no metrics.
    n_unreachable counts episodes whose goal cannot be reached from the start; see `metrics.UNREACHABLE_POLICY`.
    failures counts the episodes by how they ended, all kinds of `metrics.Failure` in its order. report: sums of
    what the agent counted in the finished episodes.
    """

    identity: Identity
    n_planned: int
    n_done: int
    n_errors: int
    n_unscored: int
    n_unreachable: int
    policy: str
    failures: dict[str, int]
    metrics_version: int
    metrics: dict[str, Estimate | None]
    by_trajectory: dict[str, Estimate | None]
    seconds: dict[str, float]
    report: dict[str, float]

    @property
    def complete(self) -> bool:
        """Whether every planned episode has a row."""
        return self.n_done == self.n_planned


def summarize(rows: Iterable[Row], planned: Sequence[RowKey], identity: Identity) -> Summary:
    """Aggregate the rows of the planned episodes; other rows are ignored, repeated ones counted once.

    Raises UsageError for rows that an older version scored and that lack a metric.
    """
    by_key = {row.key: row for row in rows}
    used = [by_key[key] for key in planned if key in by_key]
    ok = [row for row in used if row.status == "ok"]
    check_scores(ok)
    unscored = [row for row in used if row.status == "unscored"]
    scored = [] if unscored else used  # where goals are secret, an error row knows nothing of success either
    kinds = [row.scores["failure"] if row.status == "ok" else "error" for row in scored]
    reports = [row.report for row in used]
    found = {metric: values(metric, scored) for metric in METRICS}
    seconds = {part: sum(row.seconds.get(part, 0.0) for row in used) for part in ("env", "agent")}
    return Summary(
        identity=identity,
        n_planned=len(planned),
        n_done=len(used),
        n_errors=len(used) - len(ok) - len(unscored),
        n_unscored=len(unscored),
        n_unreachable=sum(row.scores["geodesic_start"] is None for row in ok),
        policy=UNREACHABLE_POLICY,
        failures={kind: kinds.count(kind) for kind in FAILURES},
        metrics_version=METRICS_VERSION,
        metrics={metric.label: _clustered(metric, of, _scene) for metric, of in found.items()},
        by_trajectory={metric.label: _clustered(metric, of, _trajectory) for metric, of in found.items()},
        seconds={part: round(value, 3) for part, value in seconds.items()},
        report={name: sum(row.report.get(name, 0) for row in used) for name in sorted({*chain(*reports)})},
    )


def format_summary(summary: Summary) -> str:
    """The table a run ends with: mean, standard error, 95 % interval and n for every metric."""
    table = [[shown_label(metric), *shown(summary.metrics[metric.label], metric)] for metric in METRICS]
    headers = ["metric", "mean", "SE", "95 % interval", "n"]
    text = tabulate(table, headers=headers, disable_numparse=True, colalign=("left", *["right"] * 4))
    return "\n".join([_headline(summary), "", text, *_footnotes(summary)])


def shown_label(metric: Metric) -> str:
    """Label of a metric with its unit."""
    unit = {"rate": " (%)", "fraction": " (%)", "meters": " (m)"}.get(metric.kind, "")
    return metric.label + unit


def shown(value: Estimate | None, metric: Metric) -> tuple[str, str, str, int]:
    """Mean, standard error, 95 % interval and n of a metric in its unit; "-" for what there is not.

    The interval is "all equal" where scenes that agree leave nothing to make one from.
    """
    if value is None:
        return "-", "-", "-", 0
    digits = 1 if metric.kind in ("rate", "fraction", "count") else 2
    mean, se, low, high = (_number(x, metric.scale, digits) for x in (value.mean, value.se, value.low, value.high))
    none = "-" if value.se is None else "all equal"
    return mean, se, none if value.low is None else f"[{low}, {high}]", value.n


def _headline(summary: Summary) -> str:
    identity = summary.identity
    line = f"{identity.benchmark} {identity.split}: {identity.agent} in {identity.simulator}, "
    line += f"episodes {identity.episodes_of}"
    if not summary.complete:
        line += f", PARTIAL: {summary.n_done} of {summary.n_planned} planned episodes done"
    return line


def _footnotes(summary: Summary) -> list[str]:
    some = next((value for value in summary.metrics.values() if value is not None), None)
    basis = "one scene: no SE or interval"
    if some and some.degrees is not None:
        basis = (
            f"SE and intervals clustered by scene ({some.clusters} scenes, {some.degrees:.1f} degrees of freedom)"
        )
    notes = [f"n_errors {summary.n_errors}, n_unreachable {summary.n_unreachable} ({summary.policy}); {basis}"]
    ended = ", ".join(f"{kind} {count}" for kind, count in summary.failures.items() if count)
    notes.append(f"how episodes ended: {ended or '-'}; metrics version {summary.metrics_version}")
    if summary.report:
        notes.append("the agent counted: " + ", ".join(f"{name} {n:,g}" for name, n in summary.report.items()))
    if summary.n_unscored:
        notes.append(f"n_unscored {summary.n_unscored}: no public goals; `vlnbench export` writes a submission")
    return ["", *notes]


def check_scores(ok: Sequence[Row]) -> None:
    """Raise UsageError for scored rows of an older version that lack a metric."""
    needed = ["geodesic_start", "failure", *(metric.field for metric in METRICS)]
    for row in ok:
        missing = [name for name in needed if name not in row.scores]
        if missing:
            raise UsageError(
                f"row of episode {row.episode_id}: field 'scores' lacks {', '.join(missing)}: another version of "
                "vlnbench scored this run; run `vlnbench rescore RUN --write`"
            )


def values(metric: Metric, rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """The rows that have a metric, each with its value; a failed episode scores what `FAILED` says."""
    ok = [row for row in rows if row.status == "ok"]
    if ok and all(row.scores[metric.field] is None for row in ok):
        return []  # no episode has it (nDTW without ground truth): errors must not invent it
    found = [(row, _value(metric, row)) for row in rows]
    return [(row, float(value)) for row, value in found if value is not None]


def estimate_kind(metric: Metric) -> Kind:
    """The range in which the interval of a metric stays."""
    return metric.kind if metric.kind in ("rate", "fraction") else "positive"


def difference_kind(metric: Metric) -> Kind:
    """The same of the differences of a metric between two runs."""
    return "difference" if metric.kind in ("rate", "fraction") else "free"


def _scene(row: Row) -> Hashable:
    return row.scene_id


def aggregate(metric: Metric, rows: Sequence[Row], cluster: Callable[[Row], Hashable] = _scene) -> Estimate | None:
    """One metric over rows that have been scored or ended in an error; None where no episode has it."""
    return _clustered(metric, values(metric, rows), cluster)


def _clustered(
    metric: Metric, found: Sequence[tuple[Row, float]], cluster: Callable[[Row], Hashable]
) -> Estimate | None:
    return estimate([value for _, value in found], [cluster(row) for row, _ in found], estimate_kind(metric))


def _trajectory(row: Row) -> Hashable:
    return row.scene_id, row.trajectory_id


def _value(metric: Metric, row: Row) -> Score:
    if row.status != "ok":
        return FAILED.get(metric.field)
    return row.scores[metric.field]


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{round(value * scale, digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.0"
