"""Run folders of training.

A run folder holds `train.json` (what is trained on what; written first), `counts.json` (parameters and data),
`train_log.jsonl`, `state/` (what a resumed run needs, of the last save only), after an attempt for which a GPU was
too small `out_of_memory.json`, and, when the run is complete, `model/`, a checkpoint that agents load.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.training import data
from vlnbench.training.options import TrainOptions
from vlnbench.training.setup import Process
from vlnbench.util.folder import Kind, differences, open_folder, refuse_another

FORMAT = 1
MANIFEST, LOG, BASE, STATE, MODEL = "train.json", "train_log.jsonl", "base", "state", "model"
KIND = Kind("training", MANIFEST)
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


@contextmanager
def open_run(options: TrainOptions, manifest: dict[str, Any]) -> Iterator[None]:
    """Make the run folder, or find it begun by the same options on the same files, and hold its lock.

    Raises UsageError if it holds another run or anything else, is in use, or cannot be written.
    """

    def check(found: dict[str, Any]) -> None:
        options_then = found.get("options")
        differing = {
            **differences({**found, "options": None}, {**manifest, "options": None}),
            **differences(options_then if isinstance(options_then, dict) else {}, manifest["options"]),
        }
        refuse_another(options.out, KIND, {k: v for k, v in differing.items() if k not in EXECUTION})

    with open_folder(options.out, KIND, manifest, check):
        try:
            (options.out / STATE).mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"{options.out}: cannot be written ({error.strerror})") from error
        yield
