"""How far a run is, from its folder alone: evaluations, trainings, and the work folder of a matrix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import read_places, read_table
from vlnbench.evaluation.identity import read_identity
from vlnbench.evaluation.records import MANIFEST, ROWS, read_attempts, read_manifest
from vlnbench.evaluation.stats import Estimate
from vlnbench.evaluation.summary import METRICS, Metric, shown, summarize_table
from vlnbench.util.durable.fields import ANYTHING, COUNT, NUMBER, OBJECT, POSITIVE, check_fields
from vlnbench.util.durable.files import count_lines, read_jsonl, read_object
from vlnbench.util.durable.locks import in_use
from vlnbench.util.monitor import PEAKS, PHASES, shares, training_note

TRAINING, TRAINING_LOG, MATRIX = "train.json", "train_log.jsonl", "matrix.json"

MOST_FAILURES = 100
"""Failed episodes that are named."""

_SECONDS = {"agent": "agent", "simulator": "env"}
_SHOWN = [metric for metric in METRICS if metric.label in ("SR", "SPL")]

Status = dict[str, Any]
"""JSON: `kind`, `folder`, and what `--format json` prints for it; null for what is not known (yet)."""


def read_status(folder: Path, now: datetime | None = None) -> Status:
    """Status of a run folder or of the work folder of a matrix. Raises UsageError if it is neither."""
    now = now or datetime.now(timezone.utc)
    for name, read in ((MANIFEST, _evaluation), (TRAINING, _training), (MATRIX, _matrix)):
        if (folder / name).is_file():
            return {"folder": str(folder), "running": in_use(folder), **read(folder, now)}
    raise UsageError(
        f"{folder}: expected the folder of an evaluation ({MANIFEST}), of a training ({TRAINING}) or of a matrix "
        f"({MATRIX})"
    )


def format_status(status: Status) -> str:
    """The same for people."""
    shapes = {"evaluation": _format_evaluation, "training": _format_training, "matrix": _format_matrix}
    return "\n".join(shapes[status["kind"]](status))


def _evaluation(folder: Path, now: datetime) -> Status:
    identity = read_identity(read_manifest(folder)["identity"], str(folder / MANIFEST))
    table = read_table(folder)
    summary = summarize_table(table, identity)
    attempts = read_attempts(folder)
    attempt = attempts[-1] if attempts else None
    written = count_lines(folder / ROWS)
    last = _changed(folder / ROWS) if written else None
    per_s = None
    if attempt is not None and last is not None:
        spent = (now if in_use(folder) else last) - datetime.fromisoformat(attempt["began"])
        per_s = _rate(written - attempt["rows"], spent.total_seconds())
    return {
        "kind": "evaluation",
        **{name: identity.flat()[name] for name in ("benchmark", "split", "agent", "simulator")},
        "planned": identity.planned,
        "done": len(table),
        "attempt": attempt,
        "last_row": _iso(last),
        "last_row_age_s": None if last is None else round((now - last).total_seconds(), 1),
        "episodes_per_h": None if per_s is None else round(3600 * per_s, 1),
        "seconds_left": _left(identity.planned - len(table), per_s),
        "seconds": {name: round(float(np.nansum(table.seconds[part])), 4) for name, part in _SECONDS.items()},
        "metrics": {m.label: asdict(value) if (value := summary.metrics[m.label]) else None for m in _SHOWN},
        "n_failed": summary.n_errors,
        "failures": [
            {"episode_id": row.episode_id, "repeat": row.repeat, "status": row.status, "reason": row.reason}
            for row in read_places(folder, table, np.flatnonzero(table.having("error", "timeout"))[:MOST_FAILURES])
        ],
    }


def _training(folder: Path, now: datetime) -> Status:
    where = str(folder / TRAINING)
    manifest = read_object(folder / TRAINING)
    check_fields(manifest, {"schedule": OBJECT}, where, needed=frozenset({"schedule"}), others=ANYTHING)
    schedule, counts = manifest["schedule"], dict.fromkeys(("steps", "windows_per_step"), POSITIVE)
    check_fields(schedule, counts, where, needed=frozenset(counts), others=ANYTHING, inside="schedule.")
    entries, told = [], {"step": COUNT, "windows_per_s": POSITIVE, "loss": NUMBER}
    monitored = {"seconds": PHASES, "memory": PEAKS}
    for number, entry in read_jsonl(folder / TRAINING_LOG):
        line = f"{folder / TRAINING_LOG}: line {number}"
        check_fields(entry, told | monitored, line, needed=frozenset(told), others=ANYTHING)
        entries.append(entry)
    last = entries[-1] if entries else None
    time = _changed(folder / TRAINING_LOG) if entries else None
    done = 0 if last is None else last["step"]
    per_s = None if last is None else last["windows_per_s"] / schedule["windows_per_step"]
    return {
        "kind": "training",
        "planned": schedule["steps"],
        "done": done,
        "last_row": _iso(time),
        "last_row_age_s": None if time is None else round((now - time).total_seconds(), 1),
        "steps_per_h": None if per_s is None else round(3600 * per_s, 1),
        "seconds_left": _left(schedule["steps"] - done, per_s),
        "loss": None if last is None else last["loss"],
        **{name: None if last is None else last.get(name) for name in ("seconds", "memory", "memory_spread")},
        "note": None if last is None else training_note(last),
    }


def _matrix(folder: Path, now: datetime) -> Status:
    runs = [path.parent for name in (TRAINING, MANIFEST) for path in sorted(folder.glob(f"*/*/run/{name}"))]
    return {"kind": "matrix", "runs": [read_status(run, now) for run in runs]}


def _format_evaluation(status: Status) -> Iterable[str]:
    failures = status["failures"]
    yield (
        f"{status['benchmark']} {status['split']}: {status['agent']} in {status['simulator']}; "
        f"{_state(status, status['attempt'])}"
    )
    yield f"{status['done']} of {status['planned']} episodes, {status['n_failed']} failed; {_last(status)}"
    yield ", ".join(_metric(metric, status["metrics"][metric.label]) for metric in _SHOWN)
    if status["episodes_per_h"] is not None:
        where = f"; {told}" if (told := shares(status["seconds"])) else ""
        yield f"{status['episodes_per_h']:.0f} episodes/h{_eta(status)}{where}"
    for failure in failures:
        yield f"episode {failure['episode_id']}: {failure['status']}: {failure['reason']}"
    if status["n_failed"] > len(failures):
        yield f"and {status['n_failed'] - len(failures)} more failed"


def _format_training(status: Status) -> Iterable[str]:
    yield f"training: {_state(status)}"
    yield f"{status['done']} of {status['planned']} steps; {_last(status)}"
    if status["steps_per_h"] is not None:
        yield f"{status['steps_per_h']:.0f} steps/h{_eta(status)}; {status['note']}"


def _format_matrix(status: Status) -> Iterable[str]:
    yield f"matrix: {_state(status)}"
    rows = [
        [run["folder"], f"{run['done']}/{run['planned']}", f"{_state(run)}{_eta(run)}", _last(run)]
        for run in status["runs"]
    ]
    yield str(tabulate(rows, headers=["folder", "done", "state", "last"], disable_numparse=True))


def _state(status: Status, attempt: dict[str, Any] | None = None) -> str:
    if status["running"]:
        return f"running on {attempt['host']} (process {attempt['pid']})" if attempt else "running"
    if status.get("planned", -1) == status.get("done"):
        return "complete"
    return "stopped: out of GPU memory" if attempt and attempt.get("status") == "oom" else "not running"


def _last(status: Status) -> str:
    if status["last_row"] is None:
        return "nothing recorded yet"
    return f"last {status['last_row']}, {timedelta(seconds=round(status['last_row_age_s']))} ago"


def _eta(status: Status) -> str:
    left = status["seconds_left"]
    return f", {timedelta(seconds=round(left))} left" if left and status["running"] else ""


def _metric(metric: Metric, value: dict[str, Any] | None) -> str:
    mean, se, interval, n = shown(None if value is None else Estimate(**value), metric)
    return f"{metric.label} {mean} % (SE {se}, {interval}, n {n})"


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None


def _left(count: int, per_s: float | None) -> float | None:
    return None if per_s is None else round(count / per_s, 1)


def _changed(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")
