"""Run folders of training.

A run folder holds `train.json` (what is trained on what; written first), `counts.json` (parameters and data),
`train_log.jsonl`, `state/` (what a resumed run needs, of the last save only), after an attempt for which a GPU was
too small `out_of_memory.json`, and, when the run is complete, `model/`, a checkpoint that agents load.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.training import data
from vlnbench.training.options import TrainOptions
from vlnbench.training.setup import Process
from vlnbench.util.files import write_json

FORMAT = 1
MANIFEST, LOG, BASE, STATE, MODEL = "train.json", "train_log.jsonl", "base", "state", "model"
COUNTS, OUT_OF_MEMORY = "counts.json", "out_of_memory.json"
EXECUTION = (
    "out",
    "workers",
    "log_every",
    "save_every",
    "trajectories",
    "feature_cache",
    "feature_cache_gb",
    "tracker",
)
"""Options that do not change the result: a run may go on with other values."""


def run_manifest(
    options: TrainOptions,
    started_from: str,
    sets: list[data.TrainingSet],
    schedule: data.Schedule,
    process: Process,
    place: Any,
) -> dict[str, Any]:
    """What `train.json` says: all that can change the result, and the options as given."""
    chosen = json.loads(json.dumps(asdict(options), default=str))
    return {
        "format": FORMAT,
        "started_from": started_from,
        "data": {each.name: {"windows": each.windows, "weight": each.weight} for each in sets},
        "data_sha256": data.digest(sets),
        "schedule": asdict(schedule),
        "world_size": process.world_size,
        "dtype": place.dtype_name,
        "attn": place.attn,
        "options": chosen,
    }


def open_folder(options: TrainOptions, manifest: dict[str, Any]) -> None:
    """Make the run folder, or find it begun by the same options on the same files.

    Raises UsageError if it holds another run or anything else, or cannot be written.
    """
    path = options.out / MANIFEST
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        differing = [*_differing(found, manifest), *_differing(found["options"], manifest["options"], EXECUTION)]
        if differing:
            raise UsageError(f"{options.out}: holds another run: {', '.join(differing)}; choose another --out")
        return
    if options.out.exists() and any(options.out.iterdir()):
        raise UsageError(f"{options.out}: not empty and not a training run; choose another --out")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / STATE).mkdir()
        write_json(path, manifest)
    except OSError as error:
        raise UsageError(f"{options.out}: cannot write there ({error.strerror}); choose another --out") from error


def _differing(found: dict[str, Any], wanted: dict[str, Any], execution: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{key} {found.get(key)!r} (now {value!r})"
        for key, value in wanted.items()
        if key not in ("options", *execution) and found.get(key) != value
    ]
