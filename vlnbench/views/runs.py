"""Runs as a view shows them, and how each two of them differ, paired by episode."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.table import Numbers, Values, finest, pair
from vlnbench.evaluation.costs import Hours, hours
from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.recorded import TabledRun, load_table, named_apart
from vlnbench.evaluation.stats import Estimate, estimate
from vlnbench.evaluation.summary import (
    METRICS,
    Metric,
    Summary,
    difference_kind,
    summarize_table,
    value_of,
    values_of,
)
from vlnbench.leaderboard.committed import read_entry
from vlnbench.leaderboard.comparable import mismatches
from vlnbench.report.build import DEFAULT_NAME
from vlnbench.util.durable.locks import in_use

SHOWN = ("SR", "SPL", "OS", "NE", "nDTW", "SDTW", "CLS", "steps", "collisions")
"""Metrics of a view's tables."""

PAIRED = ("SR", "SPL")
"""Metrics that each two runs are compared by."""

_BY_LABEL = {metric.label: metric for metric in METRICS}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run with the scores of `PAIRED`. name: what it is called in the view, unlike all others."""

    run: TabledRun
    summary: Summary
    took: Hours
    name: str

    @property
    def group(self) -> tuple[str, str, str]:
        """Runs of one group stand in one table: benchmark, fingerprint of its protocol, split."""
        identity = self.run.identity
        return identity.benchmark, identity.fingerprint, identity.split

    @property
    def shared(self) -> tuple[object, ...]:
        """Runs that agree in this walked the same episodes under the same protocol."""
        flat = self.run.identity.flat()
        return tuple(flat[name] for name in SHARED)


def read_runs(folders: Sequence[Path]) -> tuple[list[NamedRun], list[str]]:
    """Runs by SR, best first, and what could not be read, one line each. Their trajectories are left out."""
    found, problems = [], []
    for folder in folders:
        try:
            run = load_table(folder)
            entry, summary = read_entry(run), summarize_table(run.table, run.identity)
            took = hours(run.table, run.attempts)
        except (UsageError, OSError) as error:
            problems.append(str(error))
            continue
        paired = {_BY_LABEL[label].field: run.table.scores[_BY_LABEL[label].field] for label in PAIRED}
        run = replace(run, table=replace(run.table, scores=paired, seconds={}))  # not all of all runs at once
        found.append((run, summary, took, entry.name))
    names = named_apart([run for run, *_ in found], [name for *_, name in found])
    shown = [
        NamedRun(run, summary, took, name) for (run, summary, took, _), name in zip(found, names, strict=True)
    ]
    return sorted(shown, key=lambda each: (each.group, -_mean(each.summary), each.name)), problems


def run_json(shown: NamedRun, page: Path | None, number: int) -> Json:
    """A run for the page. page: where it is written, for links; None: it is served, with reports by number."""
    run, identity = shown.run, shown.run.identity
    labels = ["PARTIAL"] if len(run.table) < identity.planned else []
    labels += [f"imported ({identity.imported})"] if identity.imported else []
    labels += [identity.choice] if identity.choice else []
    labels += ["privileged"] if run.manifest.get("agent_privileged") else []
    labels += ["split is not whole"] if identity.partial else []
    return {
        "name": shown.name,
        "agent": identity.agent,
        "folder": str(run.folder),
        "done": len(run.table),
        "planned": identity.planned,
        "episodes": f"{len(run.table)} of {identity.split_size * identity.repeats}",
        "running": in_use(run.folder),
        "labels": labels,
        "simulator": identity.simulator,
        "errors": shown.summary.n_errors,
        "metrics": {label: _value(shown.summary.metrics[label], _BY_LABEL[label]) for label in SHOWN},
        "hours": {name: _rounded(value) for name, value in asdict(shown.took).items()},
        "report": _report(run.folder, page, number),
        "seed": identity.seed,
    }


def pairs(shown: Sequence[NamedRun]) -> list[Json]:
    """For each two runs of the same episodes, the difference of the second minus the first, by metric.

    Over the episodes that both have; n says how many.
    """
    values = [{label: values_of(_BY_LABEL[label], each.run.table) for label in PAIRED} for each in shown]
    found = []
    for members in _alike(shown):
        for a, b in members:
            first, second = shown[a].run.table, shown[b].run.table
            places = pair(first, second)
            gained = {label: values[b][label][places[1]] - values[a][label][places[0]] for label in PAIRED}
            scenes = finest(first.scene[places[0]], second.scene[places[1]])
            told = {label: _gained(_BY_LABEL[label], of, scenes) for label, of in gained.items()}
            if any(value is not None for value in told.values()):
                wins, losses = (int(np.count_nonzero(gained["SR"] * sign > 0)) for sign in (1, -1))
                found.append({"a": a, "b": b, **told, "wins": wins, "losses": losses})
    return found


def _alike(shown: Sequence[NamedRun]) -> Iterator[Iterator[tuple[int, int]]]:
    """Pairs of runs of the same episodes; imported ones of the same protocol fit what they do not contradict."""
    by_shared: dict[tuple[object, ...], list[int]] = {}
    for i, each in enumerate(shown):
        by_shared.setdefault(each.shared, []).append(i)
    for members in by_shared.values():
        yield combinations(members, 2)
    imported = {i for i, each in enumerate(shown) if each.run.identity.imported}
    yield (
        (a, b)
        for a, b in combinations(range(len(shown)), 2)
        if (a in imported or b in imported)
        and shown[a].group == shown[b].group
        and shown[a].shared != shown[b].shared
        and not mismatches(shown[a].run, shown[b].run)
    )


def report_of(folder: Path) -> Path | None:
    """The report of a run, if it was made."""
    path = folder / DEFAULT_NAME
    return path if path.is_file() else None


def _report(folder: Path, page: Path | None, number: int) -> str | None:
    path = report_of(folder)
    if path is None:
        return None
    if page is None:
        return f"report/{number}"
    return quote(Path(os.path.relpath(path.resolve(), page.resolve().parent)).as_posix())


def _gained(metric: Metric, differences: Values, scenes: Numbers) -> Json | None:
    there = ~np.isnan(differences)
    return _value(estimate(differences[there], scenes[there], difference_kind(metric)), metric)


def _value(value: Estimate | None, metric: Metric) -> Json | None:
    found = value_of(value, metric)
    return None if found is None else asdict(found)


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _mean(summary: Summary) -> float:
    value = summary.metrics["SR"]
    return -1.0 if value is None else value.mean
