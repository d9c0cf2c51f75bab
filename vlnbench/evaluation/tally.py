"""What is known of a run before its end: success so far, speed, time left, where the time goes, memory."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from vlnbench.evaluation.records import Row
from vlnbench.evaluation.stats import estimate_sums
from vlnbench.evaluation.summary import METRICS, estimate_kind, shown
from vlnbench.util import measure
from vlnbench.util.monitor import KINDS

_RUNNING = [metric for metric in METRICS if metric.label in ("SR", "SPL")]
"""What is followed of a run; progress lines show the first."""


class Tally:
    """What is known of a run before its end; speed counts the episodes of this attempt only."""

    def __init__(self, kept: Sequence[Row]) -> None:
        self._counts: Counter[str] = Counter()
        self._sums = {metric.field: defaultdict[str, float](float) for metric in _RUNNING}
        self._errors = self._new = 0
        self._spent = {"agent": 0.0, "simulator": 0.0}
        self._steps = 0
        self._start = time.monotonic()
        for row in kept:
            self._count(row)

    def add(self, row: Row) -> None:
        """Count a row of this attempt."""
        self._new += 1
        self._count(row)
        self._spent["agent"] += row.seconds.get("agent", 0.0)
        self._spent["simulator"] += row.seconds.get("env", 0.0)
        self._steps += int(row.scores.get("steps") or 0)

    def values(self, peaks: Iterable[Mapping[str, Any]] = ()) -> dict[str, float]:
        """What trackers are sent; rates over the episodes so far, in [0, 1].

        peaks: of agents on GPUs, as of `Timings.memory`; without any, of this process.
        """
        scored = self._counts.total()
        rates = {m.label: sum(self._sums[m.field].values()) / scored for m in _RUNNING} if scored else {}
        speed = {"episodes_per_h": 3600 / self._seconds, "steps_per_s": self._steps_per_s}
        spent = {f"seconds/{name}": seconds for name, seconds in self._spent.items()}
        most: Mapping[str, Any] = reduce(measure.highest, peaks, {}) or {"host": measure.peak_host_bytes()}
        memory = {f"memory/{kind}": float(most[kind]) for kind in KINDS if most.get(kind) is not None}
        return {**rates, "errors": float(self._errors), **speed, **spent, **memory}

    @property
    def _steps_per_s(self) -> float:
        """Steps of all episodes of this attempt per second of wall-clock time."""
        return self._steps / (self._seconds * self._new)

    @property
    def _seconds(self) -> float:
        """Wall-clock seconds per episode of this attempt."""
        return (time.monotonic() - self._start) / self._new

    def note(self, left: int) -> str:
        """SR so far, errors if any, speed and time left for `left` episodes: with their number 80 columns at most.

        `vlnbench status` and trackers tell the rest.
        """
        parts = [self._success() if self._counts else "no scores"]
        if self._errors:
            parts.append(f"{self._errors} error{'s' * (self._errors != 1)}")
        minutes, seconds = divmod(round(self._seconds * left), 60)
        time_left = f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"
        return ", ".join([*parts, f"{3600 / self._seconds:.0f} episodes/h", time_left])

    def _success(self) -> str:
        metric = _RUNNING[0]
        sums = [self._sums[metric.field][scene] for scene in self._counts]
        value = estimate_sums(sums, list(self._counts.values()), estimate_kind(metric))
        mean, _, interval, _ = shown(value, metric)
        return f"{metric.label} {mean} %" + (f" {interval}" if interval.startswith("[") else "")

    def _count(self, row: Row) -> None:
        self._errors += row.failed
        if row.status == "unscored":
            return
        self._counts[row.scene_id] += 1
        for name, sums in self._sums.items():
            sums[row.scene_id] += float(row.scores.get(name) or 0.0)
