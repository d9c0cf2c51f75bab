"""A GPU without room for what is asked of it: how that is told from other errors, and how to go on with less."""

from __future__ import annotations

import gc
import os
import re
import sys

from vlnbench.errors import GpuMemoryError
from vlnbench.util.machine import installed_version
from vlnbench.util.progress import say
from vlnbench.util.visible import one_line

_SAID = re.compile(
    r"\b(CUDA|HIP|NCCL|Cuda failure)\b.*out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    r"|\b(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS)_STATUS_ALLOC_FAILED",
    re.DOTALL,
)
"""As PyTorch, CUDA's libraries, NCCL, Triton and a context that cannot be made say it."""

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables that settle how PyTorch takes memory: its name since 2.9, and the one before."""

_shortages: list[str] = []


def settle_allocator() -> None:
    """Let memory of GPUs be taken in segments that can grow, so that what is freed is of use for what is larger.

    To be called before PyTorch is imported. What the user has settled stays.
    """
    if not any(name in os.environ for name in ALLOCATOR):
        new = tuple(map(int, re.findall(r"\d+", installed_version("torch") or "0")[:2])) >= (2, 9)
        os.environ[ALLOCATOR[0 if new else 1]] = "expandable_segments:True"


def is_gpu_memory(error: BaseException) -> bool:
    """Whether an exception says that a GPU's memory did not suffice, whichever library raised it.

    What the host's memory did not suffice for is none of these.
    """
    if isinstance(error, GpuMemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return bool(_SAID.search(one_line(error, 10_000)))


def free_bytes(gpu: str | None) -> int | None:
    """Memory that PyTorch could still take on the GPU of this process, cached blocks included.

    gpu: its name, None where nothing is computed on one; then None.
    """
    torch = sys.modules.get("torch")
    if gpu is None or torch is None or not torch.cuda.is_initialized():
        return None
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(torch.cuda.mem_get_info()[0]) + int(cached)


def make_room() -> None:
    """Give cached memory back to the GPU. Call it outside of `except`: the stack of an exception holds tensors."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def halved(count: int, what: str) -> int:
    """How many of `count` to try next, after making room; a line says so, which `shortages` repeats."""
    fewer = -(-count // 2)
    line = f"out of GPU memory with {count} {what} at once: going on with {fewer}"
    _shortages.append(line)
    say(line)
    make_room()
    return fewer


def shortages() -> list[str]:
    """What has been said since this was asked last, for a run's record."""
    found = list(_shortages)
    _shortages.clear()
    return found


def first_line(error: BaseException) -> str:
    """What an exception says, without the advice that PyTorch adds."""
    return (str(error).splitlines() or [type(error).__name__])[0].split(" If reserved but")[0]
