"""Runs side by side: only runs of one protocol, data version, split and simulator may share a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.recorded import RecordedRun, load_run
from vlnbench.evaluation.stats import Estimate
from vlnbench.evaluation.summary import METRICS, Metric, Summary, shown, shown_label, summarize

COLUMNS = ("SR", "SPL", "OS", "NE", "nDTW", "SDTW")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A run without its rows, and its summary. privileged: the agent saw what agents are not meant to see."""

    run: RecordedRun
    summary: Summary
    privileged: bool


def rank(folders: Sequence[Path]) -> list[Ranked]:
    """Runs by SR, best first. Raises UsageError naming the differing fields if they cannot share a table."""
    ranked: list[Ranked] = []
    for folder in folders:
        run = load_run(folder, trajectories=False)
        check_comparable([*(each.run for each in ranked[:1]), run])
        check_complete(run)
        summary = summarize(run.rows.values(), list(run.rows), run.identity)
        bare = replace(run, rows={})  # not all rows of all runs at once
        ranked.append(Ranked(bare, summary, bool(run.manifest.get("agent_privileged"))))
    return sorted(ranked, key=lambda entry: -_mean(entry.summary.metrics["SR"]))


def check_complete(run: RecordedRun) -> None:
    """Raise UsageError if planned episodes of a run are missing."""
    if len(run.rows) != run.n_planned * run.repeats:
        raise UsageError(
            f"{run.folder}: {len(run.rows)} of {run.n_planned * run.repeats} planned episodes are done; "
            "finish it with the command it was started with (without --until)"
        )


def check_comparable(runs: Sequence[RecordedRun]) -> None:
    """Raise UsageError for the first run that differs from the first one in a field of `SHARED`."""
    first = runs[0]
    for other in runs[1:]:
        found = first.identity.differences(other.identity)
        differing = [name for name in SHARED if name in found]
        if differing:
            changes = ", ".join(f"{name} {found[name][0]!r} / {found[name][1]!r}" for name in differing)
            raise UsageError(f"{first.folder} and {other.folder} cannot share a table: {changes}")


def format_ranking(ranked: Sequence[Ranked]) -> str:
    """Table of means with 95 % intervals; privileged agents are marked."""
    identity = ranked[0].run.identity
    metrics = [metric for metric in METRICS if metric.label in COLUMNS]
    rows = []
    for entry in ranked:
        name = f"{entry.run.identity.agent}{' (privileged)' if entry.privileged else ''}"
        cells = [_cell(entry.summary.metrics[metric.label], metric, entry.summary.n_done) for metric in metrics]
        rows.append([name, *cells, entry.summary.n_done, entry.summary.n_errors])
    head = f"{identity.benchmark} {identity.split}, episodes {identity.episodes_of}, {identity.simulator}"
    headers = ["agent", *map(shown_label, metrics), "n", "n_errors"]
    table = tabulate(rows, headers=headers, disable_numparse=True)
    return f"{head}; mean ± SE [95 % interval], clustered by scene\n\n{table}"


def _cell(value: Estimate | None, metric: Metric, n_done: int) -> str:
    mean, se, interval, n = shown(value, metric)
    if value is None:
        return mean
    return f"{mean} ± {se} {interval}" + (f" (n {n})" if n != n_done else "")


def _mean(value: Estimate | None) -> float:
    return -1.0 if value is None else value.mean
