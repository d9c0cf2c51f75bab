"""What a resumed run needs, saved and taken up by DeepSpeed, but read by a loader that runs nothing.

DeepSpeed reads its files with a full unpickler, which runs whatever a file says. Here they are read as tensors,
numbers and containers, and the few classes of DeepSpeed's own in `_classes`; anything else is refused.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from vlnbench.errors import UsageError
from vlnbench.training.setup import Process, barrier
from vlnbench.util.durable.limits import regular

TAG = "all"


def save_state(engine: Any, folder: Path, step: int, process: Process) -> None:
    """Write the state after a step. The state before it is removed when this one is complete."""
    part = folder / f".step-{step}"
    if process.first:
        shutil.rmtree(part, ignore_errors=True)
    barrier(process)
    engine.save_checkpoint(str(part), tag=TAG, exclude_frozen_parameters=True)
    barrier(process)
    if process.first:
        part.rename(folder / f"step-{step}")
        for stale in folder.iterdir():
            if stale.name != f"step-{step}":
                shutil.rmtree(stale)
    barrier(process)


def load_state(engine: Any, folder: Path) -> int:
    """Take up the last state; returns how many steps are done, 0 if there is none.

    Raises UsageError for a file that is damaged or holds anything that would have to be run to be read.
    """
    steps = [int(path.name[5:]) for path in folder.glob("step-*") if path.name[5:].isdecimal()]
    if not steps:
        return 0
    state, reader = folder / f"step-{max(steps)}", engine.checkpoint_engine
    reader.load = _read
    try:
        engine.load_checkpoint(str(state), tag=TAG, load_module_strict=False)
    except (UsageError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # what DeepSpeed makes of records with other names, kinds or shapes
        raise _damaged(state, f"{type(error).__name__}: {error}") from error
    finally:
        del reader.load
    return max(steps)


def _read(path: str, map_location: Any = None) -> Any:
    """What a file of a state holds, without running any of it."""
    try:
        with torch.serialization.safe_globals(_classes()):
            return torch.load(regular(Path(path)), map_location=map_location, weights_only=True)
    except UsageError as error:
        raise _damaged(Path(path).parents[1], str(error)) from error
    except Exception as error:  # a damaged archive or pickle may raise anything
        raise _damaged(Path(path).parents[1], f"{Path(path).name}: {error or type(error).__name__}") from error


def _damaged(state: Path, why: str) -> UsageError:
    said = " ".join(why.split())[:200]
    return UsageError(f"{state}: no state that training has saved ({said}); delete it to begin again")


def _classes() -> list[Any]:
    """DeepSpeed's classes in its states: plain records without methods that loading would call."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
