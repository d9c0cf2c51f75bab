"""What a resumed run needs, saved and taken up by DeepSpeed, but read by a loader that runs nothing.

DeepSpeed reads its files with a full unpickler, which runs whatever a file says. Here they are read as tensors,
numbers and containers, and the few classes of DeepSpeed's own in `_classes`; anything else is refused.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from vlnbench.errors import UsageError
from vlnbench.training.setup import Process, barrier

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
    found = sorted(folder.glob("step-*"), key=lambda path: int(path.name[5:]))
    if not found:
        return 0
    reader = engine.checkpoint_engine
    reader.load = _read
    try:
        engine.load_checkpoint(str(found[-1]), tag=TAG, load_module_strict=False)
    finally:
        del reader.load
    return int(found[-1].name[5:])


def _read(path: str, map_location: Any = None) -> Any:
    """What a file of a state holds, without running any of it."""
    try:
        with torch.serialization.safe_globals(_classes()):
            return torch.load(path, map_location=map_location, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"{path}: no state that training has saved ({first[:200]}); delete the folder "
            f"{Path(path).parents[1]} to begin again"
        ) from error


def _classes() -> list[Any]:
    """DeepSpeed's classes in its states: plain records without methods that loading would call."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
