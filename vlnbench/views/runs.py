"""Runs as a view shows them, and how each two of them differ, paired by episode."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vlnbench.errors import UsageError
from vlnbench.evaluation.costs import hours
from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.recorded import RecordedRun
from vlnbench.evaluation.stats import Estimate, estimate
from vlnbench.evaluation.summary import METRICS, Metric, Summary, difference_kind, summarize
from vlnbench.leaderboard.committed import read_run
from vlnbench.leaderboard.compare import by_key
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
    """A run with its table. name: what it is called in the view, unlike all others."""

    run: RecordedRun
    summary: Summary
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
            run, entry = read_run(folder, trajectories=False)
            summary = summarize(run.rows.values(), list(run.rows), run.identity)
        except UsageError as error:
            problems.append(str(error))
            continue
        found.append((run, summary, entry.name))
    names = [name for _, _, name in found]
    shown = [
        NamedRun(run, summary, name if names.count(name) == 1 else f"{name} ({run.folder})")
        for run, summary, name in found
    ]
    return sorted(shown, key=lambda each: (each.group, -_mean(each.summary), each.name)), problems


def run_json(shown: NamedRun, page: Path | None, number: int) -> Json:
    """A run for the page. page: where it is written, for links; None: it is served, with reports by number."""
    run, identity = shown.run, shown.run.identity
    took = hours(run.rows.values(), run.attempts)
    labels = ["PARTIAL"] if len(run.rows) < identity.planned else []
    labels += [identity.choice] if identity.choice else []
    labels += ["privileged"] if run.manifest.get("agent_privileged") else []
    labels += ["split is not whole"] if identity.partial else []
    return {
        "name": shown.name,
        "agent": identity.agent,
        "folder": str(run.folder),
        "done": len(run.rows),
        "planned": identity.planned,
        "episodes": f"{len(run.rows)} of {identity.split_size * identity.repeats}",
        "running": in_use(run.folder),
        "labels": labels,
        "simulator": identity.simulator,
        "errors": shown.summary.n_errors,
        "metrics": {label: _value(shown.summary.metrics[label], _BY_LABEL[label]) for label in SHOWN},
        "hours": {name: _rounded(value) for name, value in asdict(took).items()},
        "report": _report(run.folder, page, number),
        "seed": identity.seed,
    }


def pairs(shown: Sequence[NamedRun]) -> list[Json]:
    """For each two runs of the same episodes, the difference of the second minus the first, by metric.

    Over the episodes that both have; n says how many.
    """
    by_shared: dict[tuple[object, ...], list[int]] = {}
    for i, each in enumerate(shown):
        by_shared.setdefault(each.shared, []).append(i)
    values = {label: [by_key(_BY_LABEL[label], each.run) for each in shown] for label in PAIRED}
    found = []
    for members in by_shared.values():
        for a, b in combinations(members, 2):
            pair = {label: _paired(_BY_LABEL[label], of[a], of[b]) for label, of in values.items()}
            if all(value is None for value in pair.values()):
                continue
            found.append({"a": a, "b": b, **pair, **_wins(values["SR"][a], values["SR"][b])})
    return found


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


def _wins(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> Json:
    both = [(a[key][1], b[key][1]) for key in a if key in b]
    return {"wins": sum(y > x for x, y in both), "losses": sum(y < x for x, y in both)}


def _paired(metric: Metric, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> Json | None:
    keys = sorted(key for key in a if key in b)
    differences = [b[key][1] - a[key][1] for key in keys]
    found = estimate(differences, [a[key][0].scene_id for key in keys], difference_kind(metric))
    return _value(found, metric)


def _value(value: Estimate | None, metric: Metric) -> Json | None:
    if value is None:
        return None
    numbers = (value.mean, value.se, value.low, value.high)
    mean, se, low, high = (None if x is None else round(x * metric.scale, 4) + 0.0 for x in numbers)
    return {"mean": mean, "se": se, "low": low, "high": high, "n": value.n}


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _mean(summary: Summary) -> float:
    value = summary.metrics["SR"]
    return -1.0 if value is None else value.mean
