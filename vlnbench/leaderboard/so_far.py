"""Two runs, one or both unfinished: what can be said already of their difference, and what more it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.evaluation.recorded import TabledRun, remake_plan
from vlnbench.evaluation.summary import METRICS, Metric, check_scores
from vlnbench.evaluation.until.decide import beginning, by_episode, difference_interval
from vlnbench.evaluation.until.forecast import more_pairs
from vlnbench.evaluation.until.rule import METRICS_UNTIL
from vlnbench.evaluation.until.sequence import LOOK
from vlnbench.leaderboard.comparable import not_told
from vlnbench.util.tables.sheet import Column, Sheet, Value


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

    a: TabledRun
    b: TabledRun
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


def check_scored(run: TabledRun) -> None:
    """Raise UsageError for a run that has no scores, or those of an older version."""
    if run.table.having("unscored").any():
        raise UsageError(f"{run.folder}: its split has no public goals, so there are no scores to compare")
    check_scores(run.table)


def compare_so_far(a: TabledRun, b: TabledRun, data_root: Path) -> SoFar:
    """Compare two runs of the same episodes, at least one of them unfinished.

    data_root: where the dataset of the runs lies, which tells the episodes that neither has run yet; not read
    where one of them is complete. Raises UsageError for runs that have no scores.
    """
    for run in (a, b):
        check_scored(run)
    whole = next((run for run in (a, b) if len(run.table) == run.identity.planned), None)
    if whole is not None:
        ids = sorted(set(whole.table.names()))
    else:
        ids = [episode.episode_id for episode in remake_plan(a, data_root).episodes]
    success = next(metric for metric in METRICS if metric.field == "success")
    sides = [by_episode(success, run.table, run.repeats) for run in (a, b)]
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


def _known(metric: Metric, a: TabledRun, b: TabledRun, ids: Sequence[str]) -> Known | None:
    sides = [by_episode(metric, run.table, run.repeats) for run in (a, b)]
    names = beginning(ids, sides)
    if not names:
        return None
    differences = [sides[1][name] - sides[0][name] for name in names]
    low, high = difference_interval(metric, ids, a.repeats, differences)
    before, after = (math.fsum(side[name] for name in names) / len(names) for side in sides)
    known = Known(before, after, low, high, None)
    return known if known.decided else replace(known, more=more_pairs(differences, len(ids)))


def so_far_sheet(found: SoFar) -> Sheet:
    """What is known, metric by metric, and how many more pairs it would take; labeled partial."""
    shared, n = found.a.identity, found.pairs
    of = f"episodes {shared.episodes_of}"
    lines = [f"{shared.benchmark} {shared.split}, {of}, {shared.ran_in}; paired by episode"]
    lines += [
        f"{name}: {run.identity.called}, {run.folder}: {done} of {found.planned} done"
        for name, run, done in zip("AB", (found.a, found.b), found.done, strict=False)
    ]
    lines += [*not_told([found.a, found.b]), f"PARTIAL: {n} of {found.planned} pairs"]
    if found.done[2] > n:
        lines.append(
            f"{found.done[2] - n} more episodes of both do not count: some that come before them in random order "
            "are missing.\n`eval --until 'SR vs RUN'` takes episodes in that order, also in a run begun without"
        )
    known = found.metrics if n >= LOOK else {}
    notes = [] if known else [f"fewer than {LOOK} pairs say nothing yet"]
    if known:
        notes.append(
            f"over all {found.planned}: 95 % for each metric by itself, however often one looks; "
            "not of other scenes"
        )
    if any(each.more for each in known.values()):
        notes.append(
            f"more pairs: how many of the {found.planned - n} left it takes until 0 is outside, if they are like "
            "those so far (median and middle half of draws from these)"
        )
    return Sheet("\n".join(lines), _columns(list(known), list(known.values()), found.planned), tuple(notes))


def _columns(labels: list[str], known: list[Known], planned: int) -> tuple[Column, ...]:
    ends = [(100.0 * each.low, 100.0 * each.high) for each in known]
    signs = [("B is better" if each.low > 0.0 else "A is better") if each.decided else "no" for each in known]
    more = ["-" if each.more is None else "{1} [{0}, {2}]".format(*each.more) for each in known]
    return (
        Column("metric", "B - A, points", labels, key=True),
        Column("a", "A", [Value(100.0 * each.a) for each in known], digits=1),
        Column("b", "B", [Value(100.0 * each.b) for each in known], digits=1),
        Column(
            "difference", "so far", [Value(100.0 * (each.b - each.a)) for each in known], digits=1, signed=True
        ),
        Column("low", "", [low for low, _ in ends]),
        Column("high", "", [high for _, high in ends]),
        Column("", f"over all {planned}", [f"[{low:+.1f}, {high:+.1f}]" for low, high in ends]),
        Column("decided", "decided", signs),
        Column("more_pairs", "more pairs", more),
    )
