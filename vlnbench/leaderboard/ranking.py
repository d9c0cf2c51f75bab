"""Runs side by side: only runs of one protocol, data version, split and simulator may share a table.

Every two runs are compared episode by episode. A run's rank set is the places that it may have: 1 more than runs
are told to be better than it, to as many as are not told to be worse. Those whose set begins at 1 are the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path

import numpy as np

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.table import Numbers, Values, by_key, finest
from vlnbench.evaluation.recorded import AnyRun, load_table, named_apart
from vlnbench.evaluation.records import MANIFEST
from vlnbench.evaluation.stats import Estimate, estimate, places
from vlnbench.evaluation.summary import (
    METRICS,
    Metric,
    Summary,
    difference_kind,
    digits_of,
    shown_label,
    summarize_table,
    value_of,
    values_of,
)
from vlnbench.leaderboard.committed import RUNS, Entry, find_run, read_entry
from vlnbench.leaderboard.comparable import check_comparable, check_complete, mismatches, not_told
from vlnbench.leaderboard.filters import OURS, Filters
from vlnbench.util.tables.sheet import Column, Sheet, p_text

COLUMNS = ("SR", "SPL", "OS", "NE", "nDTW", "SDTW")
RANKED = tuple(metric for metric in METRICS if metric.label in COLUMNS)
LOWER_IS_BETTER = ("NE",)


@dataclass(frozen=True, slots=True)
class Beside:
    """A metric of a run beside the others. rank: the places that it may have, from and to.

    difference: from the run that stands first, None for that run itself; p: of it, adjusted for all pairs of the
    table (Holm).
    """

    rank: tuple[int, int]
    difference: Estimate | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """A run without its rows, and its summary. privileged: the agent saw what agents are not meant to see.

    beside: by label of the metric, where it has one and the agent is not privileged.
    """

    run: AnyRun
    entry: Entry
    summary: Summary
    privileged: bool
    beside: dict[str, Beside]


@dataclass(frozen=True, slots=True)
class _Walked:
    """Values of a run by metric, and scenes, in the order of its episodes' keys."""

    entry: Ranked
    ids: Numbers
    scene: Numbers
    values: dict[str, Values]


def rank(
    folders: Sequence[Path], results: Path | None = None, filters: Filters | None = None
) -> list[list[Ranked]]:
    """Runs by SR, best first, with what tells them apart; a list for each table.

    results: names are looked for below it, too; without any, all runs there are taken, in a table for each
    protocol and split. Raises UsageError naming the differing fields where given runs cannot share a table.
    """
    given = [find_run(folder, results) for folder in folders]
    if not given and results is not None:
        given = [manifest.parent for manifest in sorted((results / RUNS).glob(f"*/{MANIFEST}"))]
    tables: list[list[_Walked]] = []
    for walked in filter(None, (_walked(folder, filters or Filters()) for folder in given)):
        fitting = next((table for table in tables if not any(_unlike(each, walked) for each in table)), None)
        if fitting is not None:
            fitting.append(walked)
            continue
        for each in tables[0] if folders and tables else ():  # each: an imported one in between fits unlike ones
            check_comparable([each.entry.run, walked.entry.run])
        tables.append([walked])
    if not tables:
        raise UsageError("rank: no run is left; expected run folders, --results, or fewer filters")
    return [_ranked(members) for members in tables]


def _unlike(a: _Walked, b: _Walked) -> list[str]:
    return mismatches(a.entry.run, b.entry.run)


def _walked(folder: Path, filters: Filters) -> _Walked | None:
    """A run if it is asked for. Its rows are let go of: not those of all runs at once."""
    run = load_table(folder)
    entry, identity = read_entry(run), run.identity
    names, date = [identity.benchmark, run.benchmark.name], str(run.manifest.get("created", ""))[:10]
    if not filters.keep(names, run.split, entry.sensors, entry.backbone, date):
        return None
    check_complete(run)
    bare = AnyRun(**{each.name: getattr(run, each.name) for each in fields(AnyRun)})
    privileged = bool(run.manifest.get("agent_privileged"))
    order = by_key(run.table.head, run.table.ids, run.table.repeat)
    return _Walked(
        Ranked(bare, entry, summarize_table(run.table, identity), privileged, {}),
        run.table.ids[order],
        run.table.scene[order],
        {metric.label: values_of(metric, run.table)[order] for metric in RANKED},
    )


def _ranked(members: list[_Walked]) -> list[Ranked]:
    for each in members[1:]:
        if not np.array_equal(each.ids, members[0].ids):
            folders = f"{members[0].entry.run.folder} and {each.entry.run.folder}"
            raise UsageError(f"{folders} cannot share a table: their rows are of other episodes")
    members.sort(key=lambda each: -_mean(each.entry.summary.metrics["SR"]))
    fair = [each for each in members if not each.entry.privileged]
    for metric in RANKED:
        for each, beside in zip(fair, _beside(metric, fair), strict=True):
            if beside is not None:
                each.entry.beside[metric.label] = beside
    return [each.entry for each in members]


def _beside(metric: Metric, members: Sequence[_Walked]) -> list[Beside | None]:
    """Every run beside the others, None where it lacks the metric."""
    found = [each.entry.summary.metrics[metric.label] for each in members]
    there = [i for i, value in enumerate(found) if value is not None]
    gained = {(a, b): _difference(metric, members[a], members[b]) for a, b in combinations(there, 2)}
    ranks, p = places(there, gained, -1.0 if metric.label in LOWER_IS_BETTER else 1.0)
    beside: list[Beside | None] = [None] * len(members)
    for i in there:  # the first of them is first in the table, which is by SR
        pair = (there[0], i)
        beside[i] = Beside(ranks[i], gained.get(pair), p.get(pair))
    return beside


def _difference(metric: Metric, a: _Walked, b: _Walked) -> Estimate | None:
    gained = b.values[metric.label] - a.values[metric.label]
    there = ~np.isnan(gained)
    return estimate(gained[there], finest(a.scene, b.scene)[there], difference_kind(metric))


def rank_sheet(ranked: Sequence[Ranked], filters: Filters | None = None) -> Sheet:
    """Means with 95 % intervals, the best ones marked; differences of SR from the first run, paired by episode."""
    identity, filters = ranked[0].run.identity, filters or Filters()
    names = named_apart([each.run for each in ranked], [each.entry.name for each in ranked])
    own = [_is_own(entry, filters) for entry in ranked]
    fair = [i for i, entry in enumerate(ranked) if not entry.privileged]
    wanted = filters.measured(COLUMNS)
    metrics = sorted((metric for metric in RANKED if metric.label in wanted), key=lambda m: wanted.index(m.label))
    places = [entry.beside["SR"].rank if "SR" in entry.beside else None for entry in ranked]
    marks = [
        f"{name}{' (privileged)' * entry.privileged}{OURS * mine}"
        for name, entry, mine in zip(names, ranked, own, strict=True)
    ]
    columns = [
        Column("", "rank", [place and "-".join(map(str, dict.fromkeys(place))) for place in places], key=True),
        Column("rank_low", "", [place and place[0] for place in places]),
        Column("rank_high", "", [place and place[1] for place in places]),
        Column("name", "", names),
        Column("", "run", marks, key=True),
        Column("benchmark", "", [entry.run.identity.benchmark for entry in ranked]),
        Column("split", "", [entry.run.split for entry in ranked]),
        Column("agent", "", [entry.run.identity.agent for entry in ranked]),
        Column("folder", "", [str(entry.run.folder) for entry in ranked]),
        Column("sensors", "sensors", [entry.entry.sensors for entry in ranked]),
        Column("backbone", "backbone", [entry.entry.backbone for entry in ranked]),
        Column("privileged", "", [entry.privileged for entry in ranked]),
        Column("own", "", own),
        *(_metric_column(metric, ranked) for metric in metrics),
    ]
    for metric in metrics:
        heading = f"{metric.label} - {names[fair[0]]}" if metric.label == "SR" and len(fair) > 1 else ""
        columns += _difference_columns(metric, ranked, heading)
    errors = [entry.summary.n_errors for entry in ranked]
    columns.append(Column("n", "", [entry.summary.n_done for entry in ranked]))
    columns.append(Column("n_errors", "n_errors" if any(errors) else "", errors))
    notes = (*_notes(len(fair)), *not_told([entry.run for entry in ranked]))
    head = f"{identity.benchmark} {identity.split}, episodes {identity.episodes_of}, {identity.ran_in}"
    return Sheet(f"{head}; mean ± SE [95 % interval], clustered by scene", tuple(columns), notes)


def _metric_column(metric: Metric, ranked: Sequence[Ranked]) -> Column:
    found = [entry.summary.metrics[metric.label] for entry in ranked]
    best = [
        i
        for i, each in enumerate(ranked)
        if metric.label in each.beside and each.beside[metric.label].rank[0] == 1
    ]
    return Column(
        metric.label,
        shown_label(metric),
        [value_of(value, metric) for value in found],
        digits=digits_of(metric),
        counted=any(value and value.n != each.summary.n_done for value, each in zip(found, ranked, strict=True)),
        best=frozenset(best),
    )


def _difference_columns(metric: Metric, ranked: Sequence[Ranked], heading: str) -> list[Column]:
    """Differences from the first run, with their p. heading: for people; "": for programs alone."""
    beside = [entry.beside.get(metric.label) for entry in ranked]
    gained = [None if each is None else value_of(each.difference, metric) for each in beside]
    p = [None if each is None else each.p for each in beside]
    name = f"{metric.label}_difference"
    return [
        Column(name, heading, gained, digits=digits_of(metric), signed=True),
        Column(f"{metric.label}_p", "", [None if each is None else float(f"{each:.4g}") for each in p]),
        Column("", "p (Holm)" if heading else "", [None if each is None else p_text(each) for each in p]),
    ]


def _notes(fair: int) -> tuple[str, ...]:
    """How to read ranks and marks, where there are any."""
    if fair < 2:
        return ()
    pairs = "the pair" if fair == 2 else f"all {fair * (fair - 1) // 2} pairs of a metric together (Holm)"
    return (
        "rank: the places that a run may have by SR; marked in a column: not told from the best; by differences "
        f"paired by episode, at 5 % for {pairs}; privileged agents have no rank",
    )


def _is_own(entry: Ranked, filters: Filters) -> bool:
    folder = entry.run.folder
    return filters.marked([entry.entry.name, entry.run.identity.agent, str(folder), folder.name])


def _mean(value: Estimate | None) -> float:
    return -1.0 if value is None else value.mean
