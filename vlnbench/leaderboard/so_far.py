"""Two runs, one or both unfinished: what can be said already of their difference, and what more it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.evaluation.recorded import RecordedRun, remake_plan
from vlnbench.evaluation.summary import METRICS, Metric, check_scores
from vlnbench.evaluation.until.decide import beginning, by_episode, difference_interval
from vlnbench.evaluation.until.forecast import more_pairs
from vlnbench.evaluation.until.rule import METRICS_UNTIL
from vlnbench.evaluation.until.sequence import LOOK


@dataclass(frozen=True, slots=True)
class Known:
    """What the pairs so far say of a metric, as fractions; `low` and `high` of B - A over all planned episodes.

    The interval holds with 95 % however often one looks. more: quartiles of how many more pairs it takes until 0
    is outside, if the rest is like those so far; None where it is outside, and where no pair differs.
    """

    a: float
    b: float
    low: float
    high: float
    more: tuple[int, int, int] | None

    @property
    def decided(self) -> bool:
        """Whether the runs differ, whatever the rest brings."""
        return self.low > 1e-9 or self.high < -1e-9  # a difference of 0 may be off by rounding


@dataclass(frozen=True, slots=True)
class SoFar:
    """Two runs, paired by episode as far as both have come in random order.

    done: episodes with all repeats of A, of B, and of both. pairs: those of both that come before the first gap in
    the random order; only these count. planned: episodes. metrics: by label, of those between 0 and 100 %; empty
    without pairs.
    """

    a: RecordedRun
    b: RecordedRun
    done: tuple[int, int, int]
    pairs: int
    planned: int
    metrics: dict[str, Known]

    def to_json(self) -> dict[str, Any]:
        """Everything, for a JSON file."""
        return {
            "partial": True,
            "runs": [str(self.a.folder), str(self.b.folder)],
            "identity": self.a.identity.differences(self.b.identity),
            "done": dict(zip(("a", "b", "both"), self.done, strict=True)),
            "pairs": self.pairs,
            "planned": self.planned,
            "differences": {
                label: {**asdict(known), "decided": known.decided} for label, known in self.metrics.items()
            },
        }


def compare_so_far(a: RecordedRun, b: RecordedRun, data_root: Path) -> SoFar:
    """Compare two runs of the same episodes, at least one of them unfinished.

    data_root: where the dataset of the runs lies, which tells the episodes that neither has run yet; not read
    where one of them is complete. Raises UsageError for runs that have no scores.
    """
    for run in (a, b):
        if any(row.status == "unscored" for row in run.rows.values()):
            raise UsageError(f"{run.folder}: its split has no public goals, so there are no scores to compare")
        check_scores([row for row in run.rows.values() if row.status == "ok"])
    whole = next((run for run in (a, b) if len(run.rows) == run.identity.planned), None)
    if whole is not None:
        ids = sorted({row.episode_id for row in whole.rows.values()})
    else:
        ids = [episode.episode_id for episode in remake_plan(a, data_root).episodes]
    success = next(metric for metric in METRICS if metric.field == "success")
    sides = [by_episode(success, run.rows.values(), run.repeats) for run in (a, b)]
    return SoFar(
        a=a,
        b=b,
        done=(len(sides[0]), len(sides[1]), len(sides[0].keys() & sides[1].keys())),
        pairs=len(beginning(ids, sides)),
        planned=len(ids),
        metrics={
            metric.label: known
            for metric in METRICS
            if metric.label in METRICS_UNTIL and (known := _known(metric, a, b, ids)) is not None
        },
    )


def _known(metric: Metric, a: RecordedRun, b: RecordedRun, ids: Sequence[str]) -> Known | None:
    sides = [by_episode(metric, run.rows.values(), run.repeats) for run in (a, b)]
    names = beginning(ids, sides)
    if not names:
        return None
    differences = [sides[1][name] - sides[0][name] for name in names]
    low, high = difference_interval(metric, ids, a.repeats, differences)
    before, after = (math.fsum(side[name] for name in names) / len(names) for side in sides)
    known = Known(before, after, low, high, None)
    return known if known.decided else replace(known, more=more_pairs(differences, len(ids)))


def format_so_far(found: SoFar) -> str:
    """What is known, metric by metric, and how many more pairs it would take; labeled partial."""
    shared, n = found.a.identity, found.pairs
    of = f"episodes {shared.episodes_of}"
    lines = [f"{shared.benchmark} {shared.split}, {of}, {shared.simulator}; paired by episode"]
    lines += [
        f"{name}: {run.identity.agent}, {run.folder}: {done} of {found.planned} done"
        for name, run, done in zip("AB", (found.a, found.b), found.done, strict=False)
    ]
    lines.append(f"PARTIAL: {n} of {found.planned} pairs")
    if found.done[2] > n:
        lines.append(
            f"{found.done[2] - n} more episodes of both do not count: some that come before them in random order "
            "are missing.\n`eval --until 'SR vs RUN'` takes episodes in that order, also in a run begun without"
        )
    if n < LOOK:
        return "\n".join([*lines, f"fewer than {LOOK} pairs say nothing yet"])
    headers = ["B - A, points", "A", "B", "so far", f"over all {found.planned}", "decided", "more pairs"]
    rows = [_row(label, known) for label, known in found.metrics.items()]
    alignment = ("left", *["right"] * 4, "left", "right")
    table = tabulate(rows, headers=headers, disable_numparse=True, colalign=alignment)
    notes = [
        f"over all {found.planned}: 95 % for each metric by itself, however often one looks; not of other scenes",
    ]
    if any(known.more for known in found.metrics.values()):
        notes.append(
            f"more pairs: how many of the {found.planned - n} left it takes until 0 is outside, if they are like "
            "those so far\n(median and middle half of draws from these)"
        )
    return "\n".join([*lines, "", str(table), "", *notes])


def _row(label: str, known: Known) -> list[str]:
    sign = {True: "B is better", False: "A is better"}[known.low > 0.0] if known.decided else "no"
    more = "-" if known.more is None else f"{known.more[1]} [{known.more[0]}, {known.more[2]}]"
    numbers = [f"{100.0 * value:.1f}" for value in (known.a, known.b)]
    interval = f"[{100.0 * known.low:+.1f}, {100.0 * known.high:+.1f}]"
    return [label, *numbers, f"{100.0 * (known.b - known.a):+.1f}", interval, sign, more]
