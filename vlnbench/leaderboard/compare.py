"""Two runs, episode by episode: differences with intervals, McNemar's test, wins and losses."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import SECONDS
from vlnbench.evaluation.columns.table import Numbers, Table, Values, finest, pair
from vlnbench.evaluation.costs import Hours, StepCost, bar, by_step, format_hours, hours
from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.recorded import TabledRun, load_table
from vlnbench.evaluation.records import PARTS
from vlnbench.evaluation.stats import Estimate, Kind, bootstrap, estimate, mcnemar, p_value, told_apart
from vlnbench.evaluation.summary import (
    METRICS,
    Metric,
    difference_kind,
    digits_of,
    estimate_kind,
    shown,
    shown_label,
    value_of,
    values_of,
)
from vlnbench.leaderboard.comparable import check_comparable, check_complete, not_told
from vlnbench.leaderboard.so_far import SoFar, check_scored, compare_so_far, so_far_sheet
from vlnbench.util.tables.format import Format
from vlnbench.util.tables.screen import screen_width
from vlnbench.util.tables.sheet import Column, Sheet, p_text, written

FAILED_STATUS = ("error", "timeout")
LISTED = 30
"""Episodes that one run alone solves which are named on a terminal."""
WIDEST = 113
"""Columns of a list of episodes, on a terminal that has more."""


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

    identity: field -> (run A, run B) where they differ. pairs: episodes (with their repeat) that both have. wins:
    those in which B succeeds and A does not; losses: the other way round; both, neither: the others of which both
    tell whether they succeeded. p_value: McNemar's exact test of wins against losses. errors: episodes of each run
    that failed, which count as without success; ran: SR over those that failed in neither, where there are both
    kinds. steps, hours: what the runs took, see `costs`.
    """

    a: TabledRun
    b: TabledRun
    identity: dict[str, tuple[Any, Any]]
    differences: dict[str, Difference | None]
    pairs: int
    wins: list[str]
    losses: list[str]
    both: int
    neither: int
    p_value: float
    errors: tuple[int, int]
    ran: Difference | None
    steps: tuple[list[StepCost], list[StepCost]]
    hours: tuple[Hours, Hours]

    @property
    def partial(self) -> bool:
        """Whether a run has others, too."""
        return self.pairs < max(len(self.a.table), len(self.b.table))

    def to_json(self) -> dict[str, Any]:
        """Everything, for a JSON file."""
        known = self.differences["SR"] is not None  # imports may lack it
        solved = {"both": self.both, "neither": self.neither, "wins": self.wins, "losses": self.losses}
        return {
            "runs": [str(self.a.folder), str(self.b.folder)],
            "imported": [run.identity.imported or None for run in (self.a, self.b)],
            "shared": {name: self.a.identity.flat()[name] for name in SHARED if name not in self.identity},
            "identity": self.identity,
            "differences": {
                label: value and {**asdict(value), "p": p_value(value.by_scene)}
                for label, value in self.differences.items()
            },
            "success": solved if known else None,
            "mcnemar_p": self.p_value if known else None,
            "errors": self.errors,
            "success_where_both_ran": self.ran and asdict(self.ran),
            "hours": [asdict(found) for found in self.hours],
            "agent_ms_by_step": [[asdict(cost) for cost in side] for side in self.steps],
        }


def compare_runs(folder_a: Path, folder_b: Path, data_root: Path, common: bool = False) -> Comparison | SoFar:
    """Compare two runs of the same episodes, as far as they have come.

    Agent, checkpoint, seed and what else is of the agent may differ. data_root: see `so_far.compare_so_far`.
    common: compare two finished runs on the episodes that both have, if they were not of the same ones.
    Raises UsageError naming the fields of `ranking.SHARED` that do: protocol, split, data, choice of episodes,
    simulator, repeats.
    """
    if common:
        return compare(folder_a, folder_b, common=True)
    (a, took_a), (b, took_b) = (_load(folder) for folder in (folder_a, folder_b))
    check_comparable([a, b])
    if any(len(run.table) < run.identity.planned for run in (a, b)):
        return compare_so_far(a, b, data_root)
    return _compare(a, b, took_a, took_b, common)


def compare(folder_a: Path, folder_b: Path, common: bool = False) -> Comparison:
    """The same of two finished runs. Raises UsageError also for one that is not."""
    (a, took_a), (b, took_b) = (_load(folder) for folder in (folder_a, folder_b))
    check_comparable([a, b], "episodes_sha256" if common else "")
    return _compare(a, b, took_a, took_b, common)


_Took = tuple[list[StepCost], Hours]


def _load(folder: Path) -> tuple[TabledRun, _Took]:
    """A run and what it took, without the seconds of its rows: twice these would be too much."""
    run = load_table(folder, SECONDS)
    took = by_step(run.table), hours(run.table, run.attempts)
    return replace(run, table=replace(run.table, seconds={})), took


def _compare(a: TabledRun, b: TabledRun, took_a: _Took, took_b: _Took, common: bool) -> Comparison:
    for run in (a, b):
        check_complete(run)
        check_scored(run)
    places = pair(a.table, b.table)  # not in the order of finishing, which differs from run to run
    if not len(places[0]):
        raise UsageError(f"{a.folder} and {b.folder} have no episode in common")
    if not common and len(places[0]) < max(len(a.table), len(b.table)):  # imported: no hash of episodes tells
        told = "their rows are of other episodes (`vlnbench compare --common` takes those that both have)"
        raise UsageError(f"{a.folder} and {b.folder} cannot share a table: {told}")
    success = next(metric for metric in METRICS if metric.field == "success")
    sides = [(run.table, of) for run, of in zip((a, b), places, strict=True)]
    found_a, found_b = (values_of(success, table)[of] for table, of in sides)
    known, won_a, won_b = ~np.isnan(found_a + found_b), found_a == 1.0, found_b == 1.0
    failed_a, failed_b = (table.having(*FAILED_STATUS)[of] for table, of in sides)
    wins, losses = (
        [a.table.name(place, a.repeats) for place in places[0][only].tolist()]
        for only in (known & won_b & ~won_a, known & won_a & ~won_b)
    )
    both = int(np.count_nonzero(won_a & won_b))
    failed = failed_a | failed_b
    ran = (places[0][~failed], places[1][~failed])
    return Comparison(
        a=a,
        b=b,
        identity=a.identity.differences(b.identity),
        differences={metric.label: _difference(metric, a.table, b.table, places) for metric in METRICS},
        pairs=len(known),
        wins=wins,
        losses=losses,
        both=both,
        neither=int(np.count_nonzero(known)) - both - len(wins) - len(losses),
        p_value=mcnemar(len(wins), len(losses)),
        errors=(int(np.count_nonzero(failed_a)), int(np.count_nonzero(failed_b))),
        ran=_difference(success, a.table, b.table, ran) if failed.any() else None,
        steps=(took_a[0], took_b[0]),
        hours=(took_a[1], took_b[1]),
    )


def format_found(found: Comparison | SoFar, kind: Format) -> str:
    """What was found, in a format."""
    if kind == "json":
        return json.dumps(found.to_json(), indent=2)
    if isinstance(found, SoFar):
        return written(so_far_sheet(found), kind)
    return format_comparison(found) if kind == "text" else written(comparison_sheet(found), kind)


def format_comparison(comparison: Comparison) -> str:
    """Table of differences, what the runs differ in, and the episodes that one of them alone solves."""
    sheet, width = comparison_sheet(comparison), min(screen_width(), WIDEST)
    lines = [
        written(sheet, "text"),
        *_listed("only B succeeds", comparison.wins, width),
        *_listed("only A succeeds", comparison.losses, width),
        *([] if comparison.partial else _costs(comparison)),  # of other episodes
    ]
    return "\n".join(lines)


def comparison_sheet(comparison: Comparison) -> Sheet:
    """A line for each metric: both runs, their difference paired by episode, its p-value and intervals."""
    a, b, shared = comparison.a, comparison.b, comparison.a.identity
    found = [(metric, comparison.differences[metric.label]) for metric in METRICS]
    present = [(metric, value) for metric, value in found if value is not None]
    digits = [digits_of(metric) for metric, _ in present]
    p = [p_value(value.by_scene) for _, value in present]

    def column(
        name: str, heading: str, of: Callable[[Difference], Estimate | None], signed: bool = False
    ) -> Column:
        return Column(
            name, heading, [value_of(of(value), m) for m, value in present], digits=digits, signed=signed
        )

    columns = (
        Column("metric", "mean [95 %]", [shown_label(metric) for metric, _ in present], key=True),
        column("a", "A", lambda value: value.a),
        column("b", "B", lambda value: value.b),
        column("difference", "B - A", lambda value: value.by_scene, signed=True),
        column("bootstrap", "", _drawn),
        column("trajectories", "", lambda value: value.by_trajectory),
        Column("p", "", p),
        Column("", "p", [None if each is None else p_text(each) for each in p]),
        Column("", "n", [value.by_scene.n for _, value in present]),
    )
    head = f"{shared.benchmark} {shared.split}, episodes {_episodes(comparison)}, {shared.ran_in}"
    lines = [f"{head}; paired by episode"]
    lines += [f"{name}: {run.identity.called}, {run.folder}" for name, run in (("A", a), ("B", b))]
    lines += [*not_told([a, b]), f"they differ in {', '.join(comparison.identity) or 'nothing'}"]
    return Sheet("\n".join(lines), columns, tuple(_notes(comparison, present)))


def _episodes(comparison: Comparison) -> str:
    """How many were compared, for people; of runs of other episodes those that both have."""
    ours, theirs = (run.identity.episodes_of for run in (comparison.a, comparison.b))
    return f"that both have: {comparison.pairs} (A: {ours}, B: {theirs})" if comparison.partial else ours


def _notes(comparison: Comparison, present: Sequence[tuple[Metric, Difference]]) -> list[str]:
    clusters = max((value.by_scene.clusters for _, value in present), default=0)
    wins, losses = len(comparison.wins), len(comparison.losses)
    success = next(metric for metric in METRICS if metric.field == "success")
    solved = (
        f"success: both {comparison.both}, neither {comparison.neither}, only B {wins}, only A {losses}; "
        f"McNemar's exact p = {comparison.p_value:.2g} (n {wins + losses}; takes episodes as independent)"
    )
    return [
        f"SE, intervals and p: clustered by scene ({clusters}); by bootstrap and by trajectory: --format json",
        "95 %: Student's t; between 0 and 100 %, wider by t²/(n + t²), the kinds of episode that none of n is",
        *_seen(comparison, success),
        *([solved] if comparison.differences[success.label] else []),  # imports may lack it
        *_failed(comparison, success),
    ]


def _drawn(value: Difference) -> Estimate:
    """A difference with the interval of drawn scenes."""
    low, high = value.bootstrap or (None, None)
    return replace(value.by_scene, se=None, low=low, high=high)


def _seen(comparison: Comparison, success: Metric) -> list[str]:
    """The smallest difference that these pairs would have shown."""
    found = comparison.differences[success.label]
    if found is None or not found.by_scene.se or found.by_scene.degrees is None:
        return []
    smallest = 100.0 * told_apart(found.by_scene.se, found.by_scene.degrees)
    return [f"smallest difference of SR that pairs like these tell from 0 in 80 % of cases: {smallest:.1f} points"]


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
            line = f"hours of {name}: {text}; {found.hardware or 'hardware unknown'}"
            lines += textwrap.wrap(line, 113, subsequent_indent="  ", break_long_words=False)
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


def _difference(metric: Metric, a: Table, b: Table, places: tuple[Numbers, Numbers]) -> Difference | None:
    """Of the pairs of rows at these places."""
    values_a, values_b = (values_of(metric, table)[of] for table, of in zip((a, b), places, strict=True))
    there = ~np.isnan(values_a) & ~np.isnan(values_b)
    if not there.any():
        return None
    kinds = ((a.scene, b.scene), (a.trajectory, b.trajectory))
    scenes, trajectories = (finest(of_a[places[0]], of_b[places[1]])[there] for of_a, of_b in kinds)
    values_a, values_b = values_a[there], values_b[there]
    return Difference(
        a=_estimate(values_a, scenes, estimate_kind(metric)),
        b=_estimate(values_b, scenes, estimate_kind(metric)),
        by_scene=_estimate(values_b - values_a, scenes, difference_kind(metric)),
        by_trajectory=_estimate(values_b - values_a, trajectories, difference_kind(metric)),
        bootstrap=bootstrap(values_b - values_a, scenes),
    )


def _estimate(numbers: Values, clusters: Numbers, kind: Kind) -> Estimate:
    value = estimate(numbers, clusters, kind)
    assert value is not None  # there is at least one number
    return value


def _listed(title: str, names: Sequence[str], width: int) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - LISTED} more (--format json has them)" if len(names) > LISTED else ""
    text = f"{title} ({len(names)}): {', '.join(names[:LISTED])}{more}"
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
