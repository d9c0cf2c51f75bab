"""Rows of the result table, from what the stages recorded. What is missing is null."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Any, Literal

from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.costs import hours
from vlnbench.evaluation.records import MANIFEST, Row, read_attempts, read_rows
from vlnbench.evaluation.summary import METRICS, Metric, values
from vlnbench.matrix.execution import Execution
from vlnbench.matrix.fields import HASHED
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.matrix.statistics.effects import COMPARED
from vlnbench.matrix.statistics.outcomes import listed, packed
from vlnbench.matrix.work.folder import EXIT_GPU_MEMORY, EXIT_HANGS, PLANS, RUN, SCORES, read_json, read_summary
from vlnbench.matrix.work.stages import Stage, Stages, stages_of
from vlnbench.matrix.work.watcher import ATTEMPTS, LOG, attempts
from vlnbench.training.run.folder import HANG, OUT_OF_MEMORY
from vlnbench.util.durable.files import read_jsonl, write_json
from vlnbench.util.durable.locks import in_use
from vlnbench.util.measure import highest

DOCUMENT = "matrix.json"

Status = Literal["done", "oom", "crash", "timeout", "skipped", "running", "unfinished", "pending"]


def document(matrix: Matrix, work: Path) -> dict[str, Any]:
    """Everything that is known of a matrix: what the tables and plots are made from."""
    plans = read_json(work / PLANS) or {}
    beside, stages = (
        [stages_of(matrix, work, each) for each in of] for of in (matrix.references, matrix.settings)
    )
    return {
        "format": HASHED,
        "name": matrix.name,
        "key": matrix.key,
        "data_key": matrix.data_key,
        "axes": {axis: list(labels) for axis, labels in matrix.axes.items()},
        "contrasts": [asdict(each) for each in matrix.contrasts],
        "looks": list(matrix.looks),
        "drawn": list(matrix.drawn),
        "splits": list(dict.fromkeys(split for each in matrix.settings for split in each.evaluate["splits"])),
        "episodes": _episodes([*beside, *stages]),
        "references": [reference_row(each) for each in beside],
        "rows": [
            row(each, own, plans.get(each.train_key, {}), matrix.execution)
            for each, own in zip(matrix.settings, stages, strict=True)
        ],
    }


def write_document(matrix: Matrix, work: Path, results: Path) -> dict[str, Any]:
    """Make the document anew and put it in place of the one before."""
    found = document(matrix, work)
    results.mkdir(parents=True, exist_ok=True)
    write_json(results / DOCUMENT, found)
    return found


def row(setting: Setting, stages: Stages, plan: Mapping[str, Any], execution: Execution) -> dict[str, Any]:
    """One setting: what it is, what became of it, what it took and what it reached."""
    assert stages.train is not None
    tried = attempts(stages.train.folder)
    run = stages.train.folder / RUN
    manifest, counts = read_json(run / "train.json") or {}, read_json(run / "counts.json") or {}
    log = [entry for _, entry in read_jsonl(run / "train_log.jsonl")]
    last = tried[-1] if tried else {}
    trainable = counts.get("trainable")
    return {
        "name": setting.name,
        "key": setting.key,
        "train_key": setting.train_key,
        "labels": dict(setting.labels),
        **_status(stages, plan, execution),
        "options": _plain({key: value for key, value in asdict(setting.train).items() if key != "out"}),
        "evaluate": _plain(setting.evaluate),
        "parameters": counts.get("parameters"),
        "trainable": trainable,
        "trainable_parameters": None if trainable is None else sum(trainable.values()),
        "data": counts.get("data"),
        "steps": manifest.get("schedule", {}).get("steps"),
        "steps_done": log[-1]["step"] if log else None,
        "epochs": log[-1]["epoch"] if log else None,
        "loss": log[-1]["loss"] if log else None,
        "learning_rates": log[-1]["learning_rates"] if log else None,
        "windows_per_s": windows_per_s(log, manifest.get("schedule", {}).get("windows_per_step", 0)),
        "cpu_ms_per_window": cpu_ms_per_window(log, manifest.get("schedule", {}).get("windows_per_step", 0)),
        "seconds": {name: _seconds(stage.folder) for name, stage in stages.by_name.items()},
        "vram": _vram(plan, log, read_json(run / OUT_OF_MEMORY), tried, _agents(stages)),
        "host": max((attempt["host"] for attempt in tried), default=None),
        "memory_spread": _widest(log),
        "phases": _phases(log),
        "feature_cache": _hits(log),
        "device_hours": _device_hours(stages, execution.jobs),
        "gpus": last.get("gpus"),
        "machine": last.get("machine"),
        "train": {
            key: manifest.get(key) for key in ("started_from", "data_sha256", "world_size", "dtype", "attn")
        },
        "results": {split: _result(stage.folder) for split, stage in stages.evaluations.items()},
        "offline": _offline(stages.score),
    }


def reference_row(stages: Stages) -> dict[str, Any]:
    """What is evaluated beside the settings: what became of it, what it took and what it reached."""
    return {
        "name": stages.of.name,
        "evaluate": _plain(stages.of.evaluate),
        **_progress(list(stages)),
        "seconds": {split: _seconds(stage.folder) for split, stage in stages.evaluations.items()},
        "results": {split: _result(stage.folder) for split, stage in stages.evaluations.items()},
        "offline": _offline(stages.score),
    }


def _offline(stage: Stage | None) -> dict[str, Any] | None:
    """The scores on held-out walks, or how far they are; None where there are to be none."""
    if stage is None:
        return None
    found = read_json(stage.folder / RUN / SCORES) or {}
    return {**_progress([stage]), "seconds": _seconds(stage.folder), "sets": found.get("sets")}


def _status(stages: Stages, plan: Mapping[str, Any], execution: Execution) -> dict[str, Any]:
    """How far a setting is, and of a failure the stage, the exit code and the last lines."""
    found = _progress(list(stages))
    if found["status"] == "pending" and execution.unfit == "skip" and plan.get("fits") == "no":
        found |= {"status": "skipped", "reason": f"by its plan it does not fit on {plan['gpus']}"}
    return found


def _progress(todo: Sequence[Stage]) -> dict[str, Any]:
    nothing: dict[str, Any] = {"reason": None, "stage": None, "exit_code": None, "log": None, "tail": []}
    for stage in todo:
        if stage.failed:
            return _failure(stage, attempts(stage.folder)[-1])
    first = next((stage for stage in todo if not stage.complete()), None)
    if first is None:
        return {"status": "done", **nothing}
    if in_use(first.folder):
        return {"status": "running", **nothing, "stage": first.name}
    if first is not todo[0] or (first.folder / ATTEMPTS).exists() or (first.folder / LOG).exists():
        return {"status": "unfinished", **nothing, "stage": first.name}
    return {"status": "pending", **nothing}


def _failure(stage: Stage, attempt: Mapping[str, Any]) -> dict[str, Any]:
    code = attempt["exit_code"]
    status: Status = "crash"
    reason = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
    if attempt["outcome"] == "timeout":
        status, reason = "timeout", f"not done after {attempt['timeout_s']:g} s"
    elif code == EXIT_HANGS or (stage.folder / RUN / HANG).exists():
        status, reason = "timeout", "no progress"
    elif code == EXIT_GPU_MEMORY or (stage.folder / RUN / OUT_OF_MEMORY).exists():
        status, reason = "oom", "out of GPU memory"
    return {
        "status": status,
        "reason": f"{stage.name}: {reason}",
        "stage": stage.name,
        "exit_code": code,
        "log": str(stage.folder / LOG),
        "tail": attempt["tail"],
    }


def windows_per_s(log: list[dict[str, Any]], windows_per_step: int) -> float | None:
    """Windows per second over a whole training; of steps that were done twice, the second time counts."""
    entries = {entry["step"]: entry for entry in log}
    seconds, before = 0.0, 0
    for step in sorted(entries):
        seconds += (step - before) * windows_per_step / entries[step]["windows_per_s"]
        before = step
    return round(before * windows_per_step / seconds, 4) if seconds else None


def cpu_ms_per_window(log: list[dict[str, Any]], windows_per_step: int) -> float | None:
    """CPU milliseconds of the first process for each window of all processes, which other work on the machine
    changes little; the median over the lines of the log. None where they do not tell."""
    found, before = [], 0
    for entry in log:
        windows = (entry["step"] - before) * windows_per_step
        if "cpu_seconds" in entry and windows > 0:
            found.append(1000 * entry["cpu_seconds"] / windows)
        before = entry["step"]
    return round(median(found), 3) if found else None


def _seconds(folder: Path) -> float | None:
    """Wall-clock seconds of all attempts."""
    tried = attempts(folder)
    return round(sum(attempt["seconds"] for attempt in tried), 3) if tried else None


def _device_hours(stages: Stages, jobs: int) -> dict[str, Any]:
    """Hours of every stage times its GPUs or, where it had none, its share of the cores; unit: which of these."""
    found: dict[str, Any] = {"unit": None}
    for name, stage in stages.by_name.items():
        used = [_devices(attempt, jobs) for attempt in attempts(stage.folder)]
        units = {unit for unit, _ in used} | ({found["unit"]} - {None})
        if len(units) > 1:  # GPU and CPU do not add up
            return {"unit": None} | dict.fromkeys(stages.by_name)
        found[name] = round(sum(seconds for _, seconds in used) / 3600, 5) if used else None
        found["unit"] = next(iter(units), None)
    return found


def _devices(attempt: Mapping[str, Any], jobs: int) -> tuple[str, float]:
    """Unit of the device-hours of an attempt, and its device-seconds."""
    gpus = len(attempt.get("gpus") or ())
    devices = gpus or attempt["machine"]["cores"] / jobs
    return "GPU-h" if gpus else "CPU-h", devices * attempt["seconds"]


def _vram(
    plan: Mapping[str, Any],
    log: list[dict[str, Any]],
    oom: Mapping[str, Any] | None,
    tried: list[dict[str, Any]],
    agents: list[Mapping[str, Any]],
) -> dict[str, Any]:
    """Bytes of the GPU that took most, of training but for `phases`; what was measured is null without a GPU.

    agents: peaks of all agents of the evaluations.
    """
    ranks = [rank for entry in log for rank in entry["memory"]] + ([dict(oom)] if oom else [])

    def most(name: str, entries: list[dict[str, Any]]) -> Any:
        return max((each[name] for each in entries if each.get(name) is not None), default=None)

    return {
        "planned": plan.get("peak"),
        "planned_low": plan.get("low"),
        "planned_high": plan.get("high"),
        "planned_for": plan.get("gpus"),
        "fits": plan.get("fits"),
        "allocated": most("allocated", ranks),
        "reserved": most("reserved", ranks),
        "device": most("device", [*ranks, *tried]),
        "card": most("card", ranks),
        "phases": _peaks_by_phase([*ranks, *agents]),
        "capacity": most("capacity", ranks),
        "gpu": next((rank["gpu"] for rank in ranks if rank.get("gpu")), None),
    }


def _peaks_by_phase(processes: list[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes that were allocated at most in each phase: load, engine, steps, what an objective does, evaluation."""
    found: Mapping[str, int] = reduce(highest, (each.get("phases") or {} for each in processes), _NOTHING)
    return dict(found)


def _agents(stages: Stages) -> list[Mapping[str, Any]]:
    """Peaks of every agent of the evaluations, of all their attempts; loading is training's phase of that name."""
    runs = [stage.folder / RUN for stage in stages.evaluations.values()]
    tried = [each for run in runs if (run / MANIFEST).exists() for each in read_attempts(run)]
    found = [peaks for each in tried for peaks in each.get("memory") or ()]
    return [{**peaks, "phases": {"evaluation": (peaks.get("phases") or {}).get("evaluation")}} for peaks in found]


_NOTHING: Mapping[str, int] = {}


def _widest(log: list[dict[str, Any]]) -> Any:
    """The entry of `memory_spread` in which the ranks' peaks differ most; None with one rank."""
    found = [entry["memory_spread"] for entry in log if entry.get("memory_spread") and len(entry["memory"]) > 1]
    return max(found, key=lambda each: each["spread"], default=None)


def _phases(log: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of the first process by phase, from all that the log has."""
    found: dict[str, float] = {}
    for entry in log:
        for name, seconds in entry.get("seconds", {}).items():
            found[name] = round(found.get(name, 0.0) + seconds, 4)
    return found


def _hits(log: list[dict[str, Any]]) -> dict[str, int] | None:
    """How many features were asked for and found in the cache; None without one."""
    counted = [entry["feature_cache"] for entry in log if "feature_cache" in entry]
    return {name: sum(each[name] for each in counted) for name in ("found", "frames")} if counted else None


def _result(folder: Path) -> dict[str, Any] | None:
    """What a finished evaluation found."""
    summary, manifest = read_summary(folder), read_json(folder / RUN / MANIFEST)
    if summary is None or manifest is None:
        return None
    rows = read_rows(folder / RUN)
    return {
        "episodes": summary["n_done"],
        "n_errors": summary["n_errors"],
        "metrics": summary["metrics"],
        "scenes": {metric.label: _by_scene(metric, rows) for metric in METRICS if metric.label in COMPARED},
        "success": packed(rows),
        "failures": summary["failures"],
        "hours": asdict(hours(table_of(rows), read_attempts(folder / RUN))),
        "identity": summary["identity"],
        "git": manifest["git"],
        "vlnbench": manifest["vlnbench"],
    }


def _episodes(every: Sequence[Stages]) -> dict[str, Any]:
    """The episodes that finished evaluations are of, by the hash of their ids."""
    found: dict[str, Any] = {}
    for folder in (stage.folder for stages in every for stage in stages.evaluations.values()):
        summary = read_summary(folder)
        if summary is not None and summary["identity"]["episodes_sha256"] not in found:
            found[summary["identity"]["episodes_sha256"]] = listed(read_rows(folder / RUN))
    return found


def _by_scene(metric: Metric, rows: Sequence[Row]) -> dict[str, list[float]]:
    """For every scene the number of episodes that have a metric, and the sum of their values."""
    found: dict[str, list[float]] = {}
    for row, value in values(metric, rows):
        counted = found.setdefault(row.scene_id, [0, 0.0])
        counted[0] += 1
        counted[1] += value
    return found


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
