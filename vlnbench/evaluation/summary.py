"""Rows -> summary: a pure function, so that a summary can always be made again from a run folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.columns.table import Numbers, Table, Values
from vlnbench.evaluation.identity import Identity
from vlnbench.evaluation.metrics import FAILURES, METRICS_VERSION, UNREACHABLE_POLICY
from vlnbench.evaluation.records import Row, RowKey
from vlnbench.evaluation.stats import Estimate, Kind, estimate, told_apart
from vlnbench.util.tables.sheet import Value


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

STRICT_M = 1.0
"""A stricter radius of success, shown beside the benchmark's."""

FAILED = {"success": 0.0, "spl": 0.0, "oracle_success": 0.0, "ndtw": 0.0, "sdtw": 0.0, "cls": 0.0}
"""What an episode that ended in an error scores. Its distances and counts do not exist and are left out."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Aggregate of a run. `metrics` maps the label of a metric to its estimate, None where no episode has it.

    Standard errors and intervals of `metrics` are clustered by scene: they speak of scenes that were not seen, and
    a scene holds its trajectories whole. Those of `by_trajectory` (the same means) take the scenes as given.
    n_unscored counts episodes of a split whose goals are not public: they have trajectories and no metrics.
    n_unreachable counts episodes whose goal cannot be reached from the start; see `metrics.UNREACHABLE_POLICY`.
    strict: share of episodes that succeeded and ended less than STRICT_M from the goal.
    failures counts the episodes by how they ended, all kinds of `metrics.Failure` in its order, "unknown" where
    there are such. report: sums of
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
    strict: Estimate | None
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
    return summarize_table(table_of(by_key[key] for key in planned if key in by_key), identity, len(planned))


def summarize_table(table: Table, identity: Identity, n_planned: int | None = None) -> Summary:
    """The same of rows as columns. n_planned: rows that the run is to have, if not these alone."""
    check_scores(table)
    ok, unscored = table.having("ok"), table.having("unscored")
    scored = len(table) if not unscored.any() else 0
    kinds = np.where(ok, table.failure, FAILURES.index("error"))[:scored]
    ended = {kind: int(np.count_nonzero(kinds == i)) for i, kind in enumerate(FAILURES)}
    metrics, by_trajectory = {}, {}
    for metric in METRICS:
        found = values_of(metric, table)
        metrics[metric.label] = aggregate(metric, found, table.scene)
        by_trajectory[metric.label] = aggregate(metric, found, table.trajectory)
    strict = _strictly(values_of(METRICS[0], table), table.scores["distance_to_goal"])
    seconds = {part: float(np.cumsum(np.nan_to_num(table.seconds[part]))[-1:].sum()) for part in ("env", "agent")}
    return Summary(
        identity=identity,
        n_planned=len(table) if n_planned is None else n_planned,
        n_done=len(table),
        n_errors=int(np.count_nonzero(~ok & ~unscored)),
        n_unscored=int(np.count_nonzero(unscored)),
        n_unreachable=int(np.count_nonzero(table.failure[ok] == FAILURES.index("unreachable"))),
        policy=UNREACHABLE_POLICY,
        failures={kind: n for kind, n in ended.items() if n or kind != "unknown"},
        metrics_version=METRICS_VERSION,
        metrics=metrics,
        by_trajectory=by_trajectory,
        strict=aggregate(METRICS[0], strict, table.scene),
        seconds={part: round(value, 3) for part, value in seconds.items()},
        report=table.report,
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
    digits = digits_of(metric)
    mean, se, low, high = (_number(x, metric.scale, digits) for x in (value.mean, value.se, value.low, value.high))
    none = "-" if value.se is None else "all equal"
    return mean, se, none if value.low is None else f"[{low}, {high}]", value.n


def value_of(found: Estimate | None, metric: Metric) -> Value | None:
    """An estimate in the unit in which its metric is shown."""
    if found is None:
        return None
    numbers = (found.mean, found.se, found.low, found.high)
    mean, se, low, high = (None if x is None else round(x * metric.scale, 4) + 0.0 for x in numbers)
    assert mean is not None
    return Value(mean, se, low, high, found.n)


def digits_of(metric: Metric) -> int:
    """Digits after the point that are shown of a metric."""
    return 1 if metric.kind in ("rate", "fraction", "count") else 2


def _headline(summary: Summary) -> str:
    identity = summary.identity
    line = f"{identity.benchmark} {identity.split}: {identity.called}"
    line += f", {identity.ran_in}, " if identity.imported else f" in {identity.simulator}, "
    line += f"episodes {identity.episodes_of}"
    if not summary.complete:
        line += f", PARTIAL: {summary.n_done} of {summary.n_planned} planned episodes done"
    return line


def _footnotes(summary: Summary) -> list[str]:
    some = next((value for value in summary.metrics.values() if value is not None), None)
    basis = "one scene: no SE or interval"
    if summary.identity.imported:
        basis = "one scene, or scenes are not known: no SE or interval"
    if some and some.degrees is not None:
        basis = (
            f"SE and intervals clustered by scene ({some.clusters} scenes, {some.degrees:.1f} degrees of freedom)"
        )
    notes = [f"n_errors {summary.n_errors}, n_unreachable {summary.n_unreachable} ({summary.policy}); {basis}"]
    ended = ", ".join(f"{kind} {count}" for kind, count in summary.failures.items() if count)
    scored = f"metrics version {summary.metrics_version}"
    if summary.identity.imported:
        scored = f"IMPORTED as {summary.identity.imported}, not run here"
    notes.append(f"how episodes ended: {ended or '-'}; {scored}")
    notes += _told_apart(summary.metrics["SR"])
    if summary.strict is not None:
        mean, se, interval, _ = shown(summary.strict, METRICS[0])
        notes.append(f"SR within {STRICT_M:g} m of the goal: {mean} ± {se} {interval}")
    if summary.report:
        notes.append("the agent counted: " + ", ".join(f"{name} {n:,g}" for name, n in summary.report.items()))
    if summary.n_unscored:
        notes.append(f"n_unscored {summary.n_unscored}: no public goals; `vlnbench export` writes a submission")
    return ["", *notes]


def _told_apart(success: Estimate | None) -> list[str]:
    """How unlike another run has to be, where this one tells; an SR has no more than 100 points."""
    if success is None or not success.se or success.degrees is None:
        return []
    apart = 100.0 * told_apart(2**0.5 * success.se, success.degrees)
    if apart > 100.0:
        return ["too few scenes to tell this SR from that of a run in other scenes"]
    return [
        f"{apart:.1f} points of SR tell a run in other scenes from this one in 80 % of cases, fewer one of the "
        "same episodes (`vlnbench compare`)"
    ]


def check_scores(table: Table) -> None:
    """Raise UsageError for scored rows of an older version that lack a metric."""
    if table.lacking is None:
        return
    episode_id, names = table.lacking
    needed = ["geodesic_start", "failure", *(metric.field for metric in METRICS)]
    missing = [name for name in needed if name in names]
    raise UsageError(
        f"row of episode {episode_id}: field 'scores' lacks {', '.join(missing)}: another version of "
        "vlnbench scored this run; run `vlnbench rescore RUN --write`"
    )


def values_of(metric: Metric, table: Table, where: Numbers | None = None) -> Values:
    """The value of a metric for each row, NaN where there is none; a failed episode scores what `FAILED` says.

    There is none of a split whose goals are not public. where: of the rows at these places.
    """
    ok, found = table.having("ok", where=where), table.scores[metric.field]
    if where is not None:
        found = found[where]
    without = ok.any() and np.isnan(found[ok]).all()  # nDTW without ground truth: errors must not invent it
    if without or table.having("unscored").any():
        return np.full(len(found), np.nan)
    return np.where(ok, found, FAILED.get(metric.field, np.nan)).astype(np.float64)


def values(metric: Metric, rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """The rows that have a metric, each with its value, as `values_of`."""
    found = values_of(metric, table_of(rows)).tolist()
    return [(row, value) for row, value in zip(rows, found, strict=True) if value == value]


def estimate_kind(metric: Metric) -> Kind:
    """The range in which the interval of a metric stays."""
    return metric.kind if metric.kind in ("rate", "fraction") else "positive"


def difference_kind(metric: Metric) -> Kind:
    """The same of the differences of a metric between two runs."""
    return "difference" if metric.kind in ("rate", "fraction") else "free"


def aggregate(metric: Metric, values: Values, clusters: npt.NDArray[Any]) -> Estimate | None:
    """One metric over values, NaN for none; None where no episode has it. clusters: numbers, as many."""
    there = ~np.isnan(values)
    return estimate(values[there], clusters[there], estimate_kind(metric))


def _strictly(success: Values, away: Values) -> Values:
    """Success of those that ended less than STRICT_M from the goal; away: meters, NaN where it is not known.

    None of any where a success has no distance, as in results of other harnesses: the rest is a biased choice.
    """
    if np.isnan(away[success > 0.0]).any():
        return np.full(len(success), np.nan)
    return np.where(np.isnan(success), np.nan, success * (away < STRICT_M))


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{round(value * scale, digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.0"
