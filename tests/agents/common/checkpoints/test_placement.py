from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ModuleSpec

import pytest
import torch

from agents.common.checkpoints import placement
from agents.common.checkpoints.placement import place
from vlnbench.errors import UsageError

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes this machine look as if it had some CUDA devices, and flash attention or not."""

    def pretend(devices: int, capability: tuple[int, int] = (9, 0), flash: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(placement, "_flash_fails", lambda *_: None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla")
        spec = ModuleSpec("flash_attn", None) if flash else None
        monkeypatch.setattr(placement, "find_spec", lambda name: spec)

    return pretend


def placed(checkpoint: torch.dtype = torch.bfloat16, **options: str) -> tuple[str, str, str]:
    found = place(**{"device": "auto", "dtype": "auto", "attn": "auto", **options}, checkpoint_dtype=checkpoint)
    return str(found.device), found.dtype_name, found.attn


def test_the_cpu_computes_in_float32(machine: Machine) -> None:
    machine(0, flash=True)
    assert placed() == ("cpu", "float32", "sdpa")
    assert placed(dtype="bfloat16", attn="eager") == ("cpu", "bfloat16", "eager")


def test_a_gpu_computes_in_the_checkpoints_precision(machine: Machine) -> None:
    machine(2, flash=True)
    assert placed() == ("cuda:0", "bfloat16", "flash_attention_2")
    assert placed(torch.float32) == ("cuda:0", "float32", "sdpa")
    assert placed(device="cuda:1", attn="sdpa") == ("cuda:1", "bfloat16", "sdpa")
    assert placed(device="cpu") == ("cpu", "float32", "sdpa")
    machine(1)
    assert placed(device="cuda") == ("cuda:0", "bfloat16", "sdpa")


@pytest.mark.parametrize(
    ("machinery", "options", "message"),
    [
        ({"devices": 0}, {"device": "cuda"}, "--device cuda: this machine has 0 CUDA devices"),
        ({"devices": 2}, {"device": "cuda:2"}, "--device cuda:2: this machine has 2 CUDA devices"),
        ({"devices": 1, "capability": (7, 5)}, {}, "--dtype bfloat16: Tesla cannot do it"),
        ({"devices": 1}, {"attn": "flash_attention_2"}, "needs the package flash_attn"),
        (
            {"devices": 1, "flash": True},
            {"attn": "flash_attention_2", "dtype": "float32"},
            "needs --dtype bfloat16 or float16",
        ),
        ({"devices": 0, "flash": True}, {"attn": "flash_attention_2"}, "needs a CUDA device"),
        ({"devices": 0}, {"dtype": "float16"}, "--dtype float16: not on the CPU"),
        ({"devices": 1}, {"dtype": "mixed"}, "--dtype mixed: is for a CPU"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(machine: Machine, machinery, options, message: str) -> None:
    machine(**machinery)
    with pytest.raises(UsageError, match=message):
        placed(**options)
