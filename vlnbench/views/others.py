"""Trainings, matrices and the leaderboard as a view shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.evaluation.status import TRAINING_LOG, read_status
from vlnbench.evaluation.summary import METRICS
from vlnbench.leaderboard.board import OURS, load, make_tables
from vlnbench.matrix.rows import DOCUMENT
from vlnbench.matrix.statistics.effects import COMPARED
from vlnbench.util.durable.fields import NUMBER
from vlnbench.util.durable.files import read_jsonl, read_object

Json = dict[str, Any]

MOST_POINTS = 400
"""Points of a curve; a longer one is thinned out evenly, its last point is kept."""

_SCALE = {metric.label: metric.scale for metric in METRICS}


def training_json(folder: Path) -> Json:
    """A training: how far it is, and its curves by name as [step, value]. Raises UsageError if it is broken."""
    status = read_status(folder)
    curves: dict[str, list[list[float]]] = {}
    for _, entry in read_jsonl(folder / TRAINING_LOG):
        for name, value in _numbers(entry):
            curves.setdefault(name, []).append([entry["step"], value])
    return {
        "name": folder.parent.name if folder.name == "run" else folder.name,
        "folder": str(folder),
        **{name: status[name] for name in ("running", "planned", "done", "loss", "steps_per_h", "seconds_left")},
        "curves": {name: _thinned(points) for name, points in curves.items() if len(points) > 1},
    }


_NO_CURVES = ("step", "epoch", "learning_rates", "seconds")


def _numbers(entry: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The numbers of a line of the log that may change from step to step."""
    inner = [(name, value) for name in ("learning_rates", "seconds") for name, value in _pairs(name, entry)]
    flat = [(name, value) for name, value in entry.items() if name not in _NO_CURVES]
    return [(name, float(value)) for name, value in [*flat, *inner] if NUMBER.fits(value)]


def _pairs(name: str, entry: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found = entry.get(name)
    return [(f"{name} {part}", value) for part, value in found.items()] if isinstance(found, dict) else []


def _thinned(points: list[list[float]]) -> list[list[float]]:
    step = math.ceil(len(points) / MOST_POINTS)
    return [*points[:-1][::step], points[-1]]


def matrix_json(folder: Path) -> Json:
    """A matrix: its settings and references with results by split, memory, parameters and hours."""
    document = read_object(folder / DOCUMENT)
    try:
        rows = [(row, "setting") for row in document["rows"]]
        rows += [(row, "reference") for row in document.get("references", ())]
        return {
            "name": document["name"],
            "folder": str(folder),
            "axes": list(document["axes"]),
            "splits": list(document["splits"]),
            "rows": [_setting(row, kind, document["splits"]) for row, kind in rows],
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{folder / DOCUMENT}: lacks {error}; run the matrix again to make it anew") from error


def _setting(row: Mapping[str, Any], kind: str, splits: Sequence[str]) -> Json:
    vram = row.get("vram") or {}
    measured = next((vram[name] for name in ("device", "reserved", "allocated") if vram.get(name)), None)
    seconds = row.get("seconds") or {}
    return {
        "name": row["name"],
        "kind": kind,
        "labels": row.get("labels") or {},
        "status": row["status"],
        "results": {split: _result((row.get("results") or {}).get(split)) for split in splits},
        "facts": {
            "GPU memory, measured (GB)": _billion(measured),
            "GPU memory, planned (GB)": _billion(vram.get("planned")),
            "host memory (GB)": _billion(row.get("host")),
            "tuned parameters (M)": _million(row.get("trainable_parameters")),
            "parameters (M)": _million(row.get("parameters")),
            "training (h)": None if not seconds.get("train") else round(seconds["train"] / 3600, 4),
            "loss": row.get("loss"),
        },
    }


def _result(found: Mapping[str, Any] | None) -> Json | None:
    if not found:
        return None
    metrics = {label: found["metrics"].get(label) for label in COMPARED}
    return {
        label: value
        and {name: None if value.get(name) is None else value[name] * _SCALE[label] for name in _PARTS}
        | {"n": value.get("n")}
        for label, value in metrics.items()
    }


_PARTS = ("mean", "se", "low", "high")


def _billion(value: float | None) -> float | None:
    return None if not value else round(value / 1e9, 4)


def _million(value: float | None) -> float | None:
    return None if value is None else round(value / 1e6, 4)


def board_json(results: Path) -> list[Json]:
    """The leaderboard's tables, those with most rows first: published rows and committed runs."""
    tables = sorted(make_tables(*load(results)), key=lambda table: -len(table.rows))
    return [
        {
            "title": f"{table.dataset} {table.split}",
            "protocol": table.protocol,
            "languages": table.languages,
            "description": table.description,
            "rows": [
                {
                    **{name: value for name, value in asdict(row).items() if name not in ("metrics", "hours")},
                    "ours": row.evidence == OURS,
                    "metrics": {label: asdict(value) for label, value in row.metrics.items()},
                    "hours": None if row.hours is None else row.hours.wall,
                }
                for row in table.rows
            ],
        }
        for table in tables
    ]


def read_all(folders: Sequence[Path], read: Any) -> tuple[list[Any], list[str]]:
    """What `read` makes of each folder, and what could not be read, one line each."""
    found, problems = [], []
    for folder in folders:
        try:
            found.append(read(folder))
        except (UsageError, OSError) as error:
            problems.append(str(error))
    return found, problems
