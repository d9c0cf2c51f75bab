"""Where and in which arithmetic a model runs: the options `device`, `dtype` and `attn`, checked and resolved."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agents.common.checkpoints.files import DTYPES
from agents.common.checkpoints.quantized import elements
from agents.common.options import QuantizeOptions
from vlnbench.errors import UsageError
from vlnbench.interfaces import Scalar
from vlnbench.rollout.agent_options import DeviceOptions
from vlnbench.training.arithmetic import settle_arithmetic
from vlnbench.util.hub import spoken
from vlnbench.util.loading import describe
from vlnbench.util.machine import c_compiler
from vlnbench.util.progress import say


@dataclass(frozen=True, slots=True)
class Placement:
    """Device, precision and attention implementation, all of which this machine can do."""

    device: torch.device
    dtype: torch.dtype
    attn: str

    def loading(self, options: QuantizeOptions) -> dict[str, Any]:
        """How a checkpoint's network is loaded."""
        own = {"dtype": self.dtype, "device": self.device, "attn": self.attn}
        return own | {"trust_pickle": options.trust_pickle, "quantize": options.quantize}

    def identity(self, options: DeviceOptions) -> dict[str, Scalar]:
        """What of a run's identity this is; the number of the device decides nothing."""
        own: dict[str, Scalar] = {"device": self.device.type, "dtype": self.dtype_name, "attn": self.attn}
        return own | self.on_gpu(options)

    def on_gpu(self, options: DeviceOptions) -> dict[str, Scalar]:
        """What of it only a GPU adds.

        Float32 is not rounded to TF32, which runs of before were. In half precision kernels are chosen by the
        number of rows: episodes that share a pass change each other's last digits, and so may close choices.
        """
        if self.device.type != "cuda":
            return {}
        single = self.dtype is torch.float32
        found: dict[str, Scalar] = (
            {"tf32": False} if single else {"episodes_in_a_pass": "one" if options.batch == 1 else "several"}
        )
        return found | ({"deterministic": True} if options.deterministic else {})

    @property
    def dtype_name(self) -> str:
        """The dtype's name as options and config files write it."""
        return str(self.dtype).removeprefix("torch.")

    def describe(self, folder: Path, model: nn.Module, part_of: Callable[[str], str] | None = None) -> str:
        """One line on a checkpoint that is loaded so: how many parameters, also by part, and where they are."""
        counts: Counter[str] = Counter()
        for name, parameter in model.named_parameters():
            counts[part_of(name) if part_of else ""] += elements(parameter)
        parts = ", ".join(f"{part} {count / 1e6:,.1f} M" for part, count in counts.items())
        size = f"{counts.total() / 1e6:,.1f} M parameters" + (f" ({parts})" if part_of else "")
        return f"checkpoint {spoken(folder)}: {size}; {self.dtype_name} on {self.device}, {self.attn} attention"


def place(
    device: str, dtype: str, attn: str, checkpoint_dtype: torch.dtype, deterministic: bool = False
) -> Placement:
    """Resolve the options of these names; `checkpoint_dtype` is what the dtype `auto` means on CUDA.

    On CUDA, how exactly this process computes is settled, too (`settle_arithmetic`). Raises UsageError for what
    this machine cannot do.
    """
    found = _device(device)
    if found.type == "cuda":
        torch.cuda.set_device(found)  # which memory and name are then asked of
    precision = _dtype(dtype, found, checkpoint_dtype)
    if found.type == "cuda":
        settle_arithmetic(precision, deterministic=deterministic)
    return Placement(found, precision, _attn(attn, found, precision))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    kind, colon, index = name.partition(":")
    if name != "cpu" and (kind != "cuda" or (colon and not index.isdecimal())):
        raise UsageError(f"--device {name}: expected auto, cpu, cuda or cuda:N")
    if name == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise UsageError(f"--device {name}: this machine has {count} CUDA devices that torch can use")
    return torch.device("cuda", int(index or 0))


def _dtype(name: str, device: torch.device, checkpoint_dtype: torch.dtype) -> torch.dtype:
    if name == "mixed" and device.type == "cuda":
        raise UsageError("--dtype mixed: is for a CPU; auto is bfloat16 with a float32 master copy on CUDA")
    automatic = checkpoint_dtype if device.type == "cuda" else torch.float32
    dtype = DTYPES.get(name, automatic)
    if dtype is torch.float16 and device.type == "cpu":
        raise UsageError("--dtype float16: not on the CPU; expected float32 or bfloat16 there")
    if dtype is torch.bfloat16 and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise UsageError(
            f"--dtype bfloat16: {torch.cuda.get_device_name(device)} cannot do it; expected float16 or float32"
        )
    return dtype


def _attn(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Flash attention works on CUDA, in half precision, with the package flash_attn."""
    flash = "flash_attention_2"
    if name not in ("auto", flash):
        return name
    obstacle = (
        "needs a CUDA device"
        if device.type != "cuda"
        else "needs --dtype bfloat16 or float16"
        if dtype is torch.float32
        else "needs the package flash_attn (pip install flash-attn)"
        if find_spec("flash_attn") is None
        else None
    )
    if obstacle is None:
        obstacle = _flash_fails(device, dtype)
    if obstacle is None:
        return flash
    if name == "auto" and find_spec("flash_attn") is not None and dtype is not torch.float32:
        say(f"--attn auto: SDPA, as {flash} {obstacle}")
    if name == flash:
        raise UsageError(f"--attn {flash}: {obstacle}; expected sdpa or eager without it")
    return "sdpa"


def _flash_fails(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the installed package cannot be used here, None if it can: it is built for one torch and some cards."""
    try:
        flash: Any = import_module("flash_attn")
        tiny = torch.zeros(1, 1, 1, 64, device=device, dtype=dtype)
        flash.flash_attn_func(tiny, tiny, tiny)
    except Exception as error:
        return f"does not work here ({describe(error)})"
    return None


def compiler_lacking(device: torch.device) -> str | None:
    """What torch.compile misses on this machine, None if nothing."""
    if device.type == "cuda":
        if not find_spec("triton"):
            return "torch.compile needs the package triton on a GPU"
        return None if c_compiler() else "triton needs a C compiler (gcc or clang, or CC names one)"
    compiler = os.environ.get("CXX", "g++")
    return (
        None if shutil.which(compiler) else f"torch.compile needs a C++ compiler on a CPU ({compiler} not found)"
    )
