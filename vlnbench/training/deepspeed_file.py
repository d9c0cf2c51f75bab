"""DeepSpeed's settings: those that follow from the options, and those that a file of `--deepspeed` adds.

What DeepSpeed would pass over without a word is refused: keys that it does not know, at any depth, and those that
have no effect here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vlnbench.errors import UsageError, check_installed, unknown
from vlnbench.training.options import PlanOptions, StepOptions, TrainOptions
from vlnbench.util.durable.limits import regular

_RATES = "would override the learning rates of the parts; use --optimizer, --learning-rate, --schedule"
_INSTEAD = {
    "optimizer": _RATES,
    "scheduler": _RATES,
    "activation_checkpointing": "has no effect here; remove it and use --gradient-checkpointing",
    "amp": "is Apex, which is not used; remove it and use --dtype",
    "data_efficiency": "has no effect here; remove it",
    "curriculum_learning": "has no effect here; remove it",
    "compression_training": "has no effect here; remove it",
    "elasticity": "has no effect here; remove it",
    "autotuning": "has no effect here; remove it and use `vlnbench plan`",
}
"""Blocks that DeepSpeed reads and that would do nothing here, or harm."""
_KNOWN = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "gradient_predivide_factor",
        "prescale_gradients",
        "sparse_gradients",
        "communication_data_type",
        "seq_parallel_communication_data_type",
        "disable_allgather",
        "bf16",
        "fp16",
        "torch_autocast",
        "data_types",
        "zero_optimization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "aio",
        "checkpoint",
        "compile",
        "steps_per_print",
        "wall_clock_breakdown",
        "memory_breakdown",
        "dump_state",
        "comms_logger",
        "flops_profiler",
        "tensorboard",
        "wandb",
        "csv_monitor",
    }
)
"""DeepSpeed's own, at the top (https://www.deepspeed.ai/docs/config-json/)."""


_UNPLANNED = {
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
    "mics_shard_size": -1,
    "zenflow": None,
    "contiguous_gradients": True,
}
"""What of ZeRO is not planned with another value than this."""


def deepspeed_config(options: TrainOptions, dtype: torch.dtype) -> dict[str, Any]:
    """DeepSpeed's settings for the options, and whatever `--deepspeed` adds to them.

    The optimizer is handed over as an object: an `optimizer` block would make one group of all parameters and
    lose the parts' learning rates. Raises UsageError where the file contradicts an option.
    """
    settings = _settings(options, dtype) | {"gradient_clipping": options.clip}
    if options.dtype == "mixed":
        settings["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    if options.deepspeed is not None:
        _take_over(settings, options.deepspeed)
    return settings


def planned_zero(options: PlanOptions, dtype: torch.dtype) -> Any:
    """DeepSpeed's settings of ZeRO (`DeepSpeedZeroConfig`) by a file, None without one.

    Raises UsageError as training would, and for settings that take memory and are not planned.
    """
    if options.deepspeed is None:
        return None
    check_installed("deepspeed", "train")
    found = _take_over(settings := _settings(options, dtype), options.deepspeed)
    zero = settings["zero_optimization"]
    strange = [f"zero_optimization.{name}" for name, usual in _UNPLANNED.items() if zero.get(name, usual) != usual]
    strange += [name for name in ("data_types", "torch_autocast") if name in settings]
    strange += [
        f"zero_optimization.{block}"
        for block in ("offload_optimizer", "offload_param")
        if _device(zero, block) == "nvme" or zero.get(block, {}).get("ratio", 1) != 1
    ]
    if found.overlap_comm and options.zero == 1:  # gradients are reduced as in stage 2, and stay
        strange.append("zero_optimization.overlap_comm with --zero 1")
    if strange:
        raise UsageError(f"--deepspeed {options.deepspeed}: {strange[0]}: is not planned; remove it for a plan")
    return found


def _settings(options: StepOptions, dtype: torch.dtype) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": options.zero}
    if options.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if options.offload_parameters:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.accumulation,
        "bf16": {"enabled": dtype is torch.bfloat16},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1 << 30,
    }


def _take_over(settings: dict[str, Any], path: Path) -> Any:
    """Add a file to settings; returns those of ZeRO as DeepSpeed reads them. Raises UsageError."""
    _merge(settings, read_deepspeed_file(path), path)
    return _read_zero(settings["zero_optimization"], path)


def read_deepspeed_file(path: Path) -> dict[str, Any]:
    """A DeepSpeed JSON file without optimizer and scheduler."""
    try:
        found = json.loads(regular(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--deepspeed {path}: cannot be read as JSON ({error})") from error
    if not isinstance(found, dict):
        raise UsageError(f"--deepspeed {path}: expected a JSON object")
    for block, instead in _INSTEAD.items():
        if block in found:
            raise UsageError(f"--deepspeed {path}: {block}: {instead}")
    strange = next((key for key in found if key not in _KNOWN), None)
    if strange is not None:
        raise UsageError(f"--deepspeed {path}: {unknown('key', strange, _KNOWN)}")
    half = found.get("fp16")
    if isinstance(half, dict) and half.get("enabled") is True:
        raise UsageError(f"--deepspeed {path}: fp16.enabled true contradicts --dtype; use bfloat16 or float32")
    return found


def _read_zero(zero: Mapping[str, Any], path: Path) -> Any:
    """`zero_optimization` as DeepSpeed reads it. Raises UsageError for what it does not know, or passes over."""
    from pydantic import ValidationError

    with _quiet():  # it warns of a machine without a GPU, on which plans are made
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # loaded late: half a second

    where = f"--deepspeed {path}: zero_optimization"
    if zero["stage"] < 3 and _device(zero, "offload_param") != "none":
        raise UsageError(f"{where}.offload_param: works with --zero 3 alone; this is --zero {zero['stage']}")
    if zero["stage"] < 1 and _device(zero, "offload_optimizer") != "none":
        raise UsageError(f"{where}.offload_optimizer: works from --zero 1 on; this is --zero 0")
    try:
        return DeepSpeedZeroConfig(**zero)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{where}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _device(zero: Mapping[str, Any], block: str) -> str:
    found = zero.get(block)
    return str(found.get("device", "none")) if isinstance(found, dict) else "none"


def _merge(settings: dict[str, Any], found: Mapping[str, Any], path: Path, above: str = "") -> None:
    for key, value in found.items():
        name = f"{above}{key}"
        if value == "auto":
            continue  # the Hugging Face trainer's word for "as the options say"
        if key not in settings:
            settings[key] = value
        elif isinstance(settings[key], dict) and isinstance(value, dict):
            _merge(settings[key], value, path, f"{name}.")
        elif settings[key] != value:
            raise UsageError(
                f"--deepspeed {path}: {name} {json.dumps(value)} contradicts the options, which make it "
                f"{json.dumps(settings[key])}"
            )
