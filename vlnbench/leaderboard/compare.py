"""Two runs, episode by episode: differences with intervals, McNemar's test, wins and losses."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from vlnbench.evaluation.costs import PARTS, Hours, StepCost, bar, by_step, format_hours, hours
from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.recorded import RecordedRun, load_run
from vlnbench.evaluation.records import Row, RowKey
from vlnbench.evaluation.stats import Estimate, Kind, bootstrap, estimate, mcnemar
from vlnbench.evaluation.summary import (
    METRICS,
    Metric,
    check_scores,
    difference_kind,
    estimate_kind,
    shown,
    shown_label,
    values,
)
from vlnbench.leaderboard.ranking import check_comparable, check_complete
from vlnbench.leaderboard.so_far import SoFar, compare_so_far

FAILED_STATUS = ("error", "timeout")


@dataclass(frozen=True, slots=True)
class Difference:
    """Metric of run B minus that of run A, over the episodes for which both have it.

    a, b: means over those episodes. by_scene, by_trajectory: mean difference, with what it is clustered by.
    bootstrap: 95 % percentile interval over scenes drawn with replacement, None for one scene and for equal ones.
    """

    a: Estimate
    b: Estimate
    by_scene: Estimate
    by_trajectory: Estimate
    bootstrap: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs differ in, as identity and as results.

    identity: field -> (run A, run B) where they differ. wins: episodes (with their repeat) in which B succeeds and
    A does not; losses: the other way round. p_value: McNemar's exact test of wins against losses. errors: episodes
    of each run that failed, which count as without success; ran: SR over those that failed in neither, where there
    are both kinds. steps, hours: what the runs took, see `costs`.
    """

    a: RecordedRun
    b: RecordedRun
    identity: dict[str, tuple[Any, Any]]
    differences: dict[str, Difference | None]
    wins: list[str]
    losses: list[str]
    both: int
    neither: int
    p_value: float
    errors: tuple[int, int]
    ran: Difference | None
    steps: tuple[list[StepCost], list[StepCost]]
    hours: tuple[Hours, Hours]

    def to_json(self) -> dict[str, Any]:
        """Everything, for a JSON file."""
        return {
            "runs": [str(self.a.folder), str(self.b.folder)],
            "shared": {name: self.a.identity.flat()[name] for name in SHARED},
            "identity": self.identity,
            "differences": {label: value and asdict(value) for label, value in self.differences.items()},
            "success": {"both": self.both, "neither": self.neither, "wins": self.wins, "losses": self.losses},
            "mcnemar_p": self.p_value,
            "errors": self.errors,
            "success_where_both_ran": self.ran and asdict(self.ran),
            "hours": [asdict(found) for found in self.hours],
            "agent_ms_by_step": [[asdict(cost) for cost in side] for side in self.steps],
        }


def compare_runs(folder_a: Path, folder_b: Path, data_root: Path) -> Comparison | SoFar:
    """Compare two runs of the same episodes, as far as they have come.

    Agent, checkpoint, seed and what else is of the agent may differ. data_root: see `so_far.compare_so_far`.
    Raises UsageError naming the fields of `ranking.SHARED` that do: protocol, split, data, choice of episodes,
    simulator, repeats.
    """
    a, b = (load_run(folder, trajectories=False) for folder in (folder_a, folder_b))
    check_comparable([a, b])
    if any(len(run.rows) < run.identity.planned for run in (a, b)):
        return compare_so_far(a, b, data_root)
    return _compare(a, b)


def compare(folder_a: Path, folder_b: Path) -> Comparison:
    """The same of two finished runs. Raises UsageError also for one that is not."""
    a, b = (load_run(folder, trajectories=False) for folder in (folder_a, folder_b))
    check_comparable([a, b])
    return _compare(a, b)


def _compare(a: RecordedRun, b: RecordedRun) -> Comparison:
    for run in (a, b):
        check_complete(run)
        check_scores([row for row in run.rows.values() if row.status == "ok"])
    keys = sorted(a.rows)  # not in the order of finishing, which differs from run to run
    success = next(metric for metric in METRICS if metric.field == "success")
    succeeded_a, succeeded_b = ({key for key, v in by_key(success, r).items() if v[1] == 1.0} for r in (a, b))
    wins = [_name(a, key) for key in keys if key in succeeded_b and key not in succeeded_a]
    losses = [_name(a, key) for key in keys if key in succeeded_a and key not in succeeded_b]
    both = len(succeeded_a & succeeded_b)
    failed_a, failed_b = ({key for key in keys if run.rows[key].status in FAILED_STATUS} for run in (a, b))
    failed = failed_a | failed_b
    return Comparison(
        a=a,
        b=b,
        identity=a.identity.differences(b.identity),
        differences={metric.label: _difference(metric, a, b) for metric in METRICS},
        wins=wins,
        losses=losses,
        both=both,
        neither=len(keys) - both - len(wins) - len(losses),
        p_value=mcnemar(len(wins), len(losses)),
        errors=(len(failed_a), len(failed_b)),
        ran=_difference(success, a, b, without=failed) if failed else None,
        steps=(by_step(a.rows.values()), by_step(b.rows.values())),
        hours=(hours(a.rows.values(), a.attempts), hours(b.rows.values(), b.attempts)),
    )


def format_comparison(comparison: Comparison) -> str:
    """Table of differences, what the runs differ in, and the episodes that one of them alone solves."""
    a, b, shared = comparison.a, comparison.b, comparison.a.identity
    head = f"{shared.benchmark} {shared.split}, episodes {shared.episodes_of}, {shared.simulator}"
    lines = [f"{head}; paired by episode"]
    lines += [f"{name}: {run.identity.agent}, {run.folder}" for name, run in (("A", a), ("B", b))]
    lines += [f"they differ in {', '.join(comparison.identity) or 'nothing'}", ""]
    found = [(metric, comparison.differences[metric.label]) for metric in METRICS]
    present = [(metric, value) for metric, value in found if value is not None]
    sides = [
        [shown_label(metric), _cell(value.a, metric), _cell(value.b, metric), value.a.n]
        for metric, value in present
    ]
    lines += [_table(["mean ± SE [95 %]", "A", "B", "n"], sides), ""]
    headers = ["B - A", "mean", "SE", "95 % (t)", "95 % (bootstrap)", "95 % (t, trajectories)", "n"]
    lines.append(_table(headers, [_difference_row(metric, value) for metric, value in present]))
    clusters = max((value.by_scene.clusters for _, value in present), default=0)
    wins, losses = len(comparison.wins), len(comparison.losses)
    success = next(metric for metric in METRICS if metric.field == "success")
    lines += [
        "",
        f"SE and intervals clustered by scene ({clusters}) but for the last column",
        f"success: both {comparison.both}, neither {comparison.neither}, only B {wins}, only A {losses}; "
        f"McNemar's exact p = {comparison.p_value:.2g} (n {wins + losses}; takes episodes as independent)",
        *_failed(comparison, success),
        *_listed("only B succeeds", comparison.wins),
        *_listed("only A succeeds", comparison.losses),
        *_costs(comparison),
    ]
    return "\n".join(lines)


def _failed(comparison: Comparison, success: Metric) -> list[str]:
    """How many episodes failed, and what these can move."""
    if not any(comparison.errors):
        return []
    text = f"failed episodes, which count as without success: A {comparison.errors[0]}, B {comparison.errors[1]}"
    if comparison.ran is None:
        return [f"{text}; none ran in both"]
    mean, _, interval, n = shown(comparison.ran.by_scene, success)
    sign = "+" if comparison.ran.by_scene.mean > 0 else ""
    return [f"{text}; where both ran, {shown_label(success)} of B - A is {sign}{mean} {interval} (n {n})"]


def _costs(comparison: Comparison) -> list[str]:
    """Hours of both runs, and the agent's time per step, as far as their rows tell them."""
    lines = []
    for name, found in zip("AB", comparison.hours, strict=True):
        text = format_hours(found)
        if text:
            lines.append(f"hours of {name}: {text}; {found.hardware or 'hardware unknown'}")
    a, b = ({cost.part: cost for cost in side} for side in comparison.steps)
    parts = [part for part in PARTS if part in a or part in b]
    if parts:
        most = max(cost.ms for side in (a, b) for cost in side.values())
        rows = [[part, *_step_cells(a.get(part), most), *_step_cells(b.get(part), most)] for part in parts]
        headers = ["agent's ms per step", "A", "n", "", "B", "n", ""]
        alignment = ("left", "right", "right", "left", "right", "right", "left")
        table = tabulate(rows, headers=headers, disable_numparse=True, colalign=alignment)
        lines += ["", *str(table).splitlines(), "by number of the step in its episode; n: steps"]
    return ["", *lines] if lines else []


def _step_cells(cost: StepCost | None, most: float) -> list[str]:
    if cost is None:
        return ["-", "0", ""]
    return [f"{cost.ms:.3g}", f"{cost.steps:,}", bar(cost.ms, most)]


def by_key(metric: Metric, run: RecordedRun) -> dict[RowKey, tuple[Row, float]]:
    """The rows of a run that have a metric, each with its value; none of a split whose goals are not public."""
    scored = [] if any(row.status == "unscored" for row in run.rows.values()) else list(run.rows.values())
    return {row.key: (row, value) for row, value in values(metric, scored)}


def _table(headers: list[str], rows: list[list[Any]]) -> str:
    alignment = ("left", *["right"] * (len(headers) - 1)) if rows else None
    return str(tabulate(rows, headers=headers, disable_numparse=True, colalign=alignment))


def _cell(value: Estimate, metric: Metric) -> str:
    mean, se, interval, _ = shown(value, metric)
    return f"{mean} ± {se} {interval}"


def _difference_row(metric: Metric, value: Difference) -> list[Any]:
    mean, se, interval, n = shown(value.by_scene, metric)
    low, high = value.bootstrap or (None, None)
    drawn = replace(value.by_scene, low=low, high=high)
    sign = "+" if value.by_scene.mean > 0 else ""
    by_trajectory = shown(value.by_trajectory, metric)[2]
    return [shown_label(metric), sign + mean, se, interval, shown(drawn, metric)[2], by_trajectory, n]


def _difference(
    metric: Metric, a: RecordedRun, b: RecordedRun, without: Collection[RowKey] = ()
) -> Difference | None:
    of_a, of_b = by_key(metric, a), by_key(metric, b)
    keys = sorted(key for key in of_a if key in of_b and key not in without)  # draws of the bootstrap go by it
    if not keys:
        return None
    rows = [of_a[key][0] for key in keys]
    scenes = [row.scene_id for row in rows]
    trajectories = [(row.scene_id, row.trajectory_id) for row in rows]
    values_a, values_b = ([side[key][1] for key in keys] for side in (of_a, of_b))
    differences = [after - before for before, after in zip(values_a, values_b, strict=True)]
    return Difference(
        a=_estimate(values_a, scenes, estimate_kind(metric)),
        b=_estimate(values_b, scenes, estimate_kind(metric)),
        by_scene=_estimate(differences, scenes, difference_kind(metric)),
        by_trajectory=_estimate(differences, trajectories, difference_kind(metric)),
        bootstrap=bootstrap(differences, scenes),
    )


def _estimate(numbers: Sequence[float], clusters: Sequence[Hashable], kind: Kind) -> Estimate:
    value = estimate(numbers, clusters, kind)
    assert value is not None  # there is at least one number
    return value


def _name(run: RecordedRun, key: RowKey) -> str:
    return key[2] if run.repeats == 1 else f"{key[2]}#{key[3]}"


def _listed(title: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    text = f"{title} ({len(names)}): {', '.join(names)}"
    return textwrap.wrap(text, 113, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
