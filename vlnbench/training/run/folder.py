"""Run folders of training.

A run folder holds `train.json` (what is trained on what; written first), `counts.json` (parameters and data),
`train_log.jsonl`, `state/` (what a resumed run needs, of the last save only), of training by rewards `rollouts/`
(what was done and what it was worth), on a CPU `threads.json` (PyTorch's
threads of a process), after an attempt for which a GPU was too small `out_of_memory.json`, after one that made no
progress `hang.json`, and, when the run is complete, `model/`, a checkpoint that agents load.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.training.family.checkpoints import Placement
from vlnbench.training.options import TrainOptions, defaults, plain
from vlnbench.util.durable.folder import Kind, differences, inner, open_folder, refuse_another, remove_parts

FORMAT = 2
"""2: lists stay lists in the options, and states hold nothing that would have to be unpickled."""
MANIFEST, LOG, BASE, STATE, MODEL = "train.json", "train_log.jsonl", "base", "state", "model"
KIND = Kind("training", MANIFEST)
COUNTS, THREADS = "counts.json", "threads.json"
OUT_OF_MEMORY, HANG = "out_of_memory.json", "hang.json"
EXECUTION = (
    "out",
    "family",
    "workers",
    "prefetch",
    "pin_memory",
    "hang_minutes",
    "log_every",
    "save_every",
    "trajectories",
    "feature_cache",
    "feature_cache_gb",
    "tracker",
)
"""Options that do not change the result: a run may go on with other values. Objectives have further ones."""


def run_manifest(
    options: TrainOptions, started_from: str, objective: Mapping[str, Any], world_size: int, placement: Placement
) -> dict[str, Any]:
    """What `train.json` says: all that can change the result, and the options as given.

    `objective`: what the run's objective says of itself and its data.
    """
    return {
        "format": FORMAT,
        "started_from": started_from,
        **objective,
        "world_size": world_size,
        "dtype": placement.dtype_name,
        **placement.notes,
        "options": plain(options),
    }


@contextmanager
def open_run(options: TrainOptions, manifest: dict[str, Any]) -> Iterator[None]:
    """Make the run folder, or find it begun by the same options on the same files, and hold its lock.

    Raises UsageError if it holds another run or anything else, is in use, or cannot be written.
    """

    def check(found: dict[str, Any]) -> None:
        options_then = found.get("options")
        options_then = defaults(options) | (options_then if isinstance(options_then, dict) else {})
        options_then = {name: value for name, value in options_then.items() if name in manifest["options"]}
        differing = {
            **differences({**found, "options": None}, {**manifest, "options": None}),
            **differences(options_then, manifest["options"]),
        }
        refuse_another(
            options.out, KIND, {k: v for k, v in differing.items() if k not in (*EXECUTION, *options.EXECUTION)}
        )

    with open_folder(options.out, KIND, manifest, check):
        try:
            remove_parts(options.out, BASE, MODEL)
            if (options.out / MODEL).exists():  # complete, and perhaps killed before all of its state was removed
                shutil.rmtree(options.out / STATE, ignore_errors=True)
            else:
                inner(options.out / STATE)
        except OSError as error:
            raise UsageError(f"{options.out}: cannot be written ({error.strerror})") from error
        yield
