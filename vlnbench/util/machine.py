"""What work was done on and by: processor, GPUs, versions. Asks the driver, so that no GPU memory is taken."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from vlnbench.version import __version__

PACKAGES = ("torch", "deepspeed", "transformers", "numpy", "habitat-lab")

CORES = "VLNBENCH_CORES"
"""Variable that tells a process how many of the machine's cores are its share."""

_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names by which a machine speaks with itself."""


@dataclass(frozen=True)
class Gpu:
    """A GPU: name and memory in MiB, as the driver says; None where it does not, as of cards without their own."""

    name: str
    memory_mib: int | None


def gpus() -> list[Gpu]:
    """All GPUs in the driver's order; none where it does not answer."""
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = (line.rpartition(",") for line in answer.splitlines() if line.strip())
    return [Gpu(name.strip(), int(memory) if memory.strip().isdecimal() else None) for name, _, memory in lines]


def visible(found: list[Gpu]) -> tuple[str, ...]:
    """Names of the GPUs that this process may use, for CUDA_VISIBLE_DEVICES."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return tuple(map(str, range(len(found))))
    return tuple(name.strip() for name in given.split(",") if name.strip()) if found else ()


def memory() -> int | None:
    """Bytes of this machine's memory, None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def free_space(path: Path) -> tuple[int, Path]:
    """Bytes that are free where a path lies or would lie, and the folder above it that is there."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free, there


def cores() -> int:
    """Processor cores that this process may use: those of the machine, or its share of them (`CORES`)."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get(CORES, "")
    return min(there, int(share)) if share.isdecimal() and int(share) else there


def describe(found: list[Gpu]) -> dict[str, Any]:
    """Machine and program for a record; null for what cannot be found out."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "gpus": [gpu.name for gpu in found],
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in PACKAGES},
        "vlnbench": __version__,
        "git": git_revision(),
    }


def hardware(device: str) -> dict[str, Any]:
    """Processor, cores and, for a device of CUDA, the first GPU of this process; null for what is not known."""
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None and torch.cuda.is_initialized():
        # The name, whatever order the driver has; how PyTorch takes memory, by the new name and the old.
        settled = [os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")]
        return {
            "cpu": _cpu(),
            "cores": cores(),
            "gpu": torch.cuda.get_device_name(),
            "allocator": next(filter(None, settled), None),
        }
    found = gpus() if device.startswith("cuda") else []
    used = next((name for name in visible(found) if name.isdecimal() and int(name) < len(found)), None)
    return {"cpu": _cpu(), "cores": cores(), "gpu": None if used is None else found[int(used)].name}


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def c_compiler() -> str | None:
    """The C compiler that triton calls for kernels of torch.compile, None where there is none."""
    named = os.environ.get("CC")
    found = (shutil.which(each) for each in ([named] if named else ["gcc", "clang"]))
    return next(filter(None, found), None)


def installed_version(package: str) -> str | None:
    """Version of an installed distribution, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """Commit of the vlnbench checkout, `+dirty` if it has changes; None when installed without one."""
    here = Path(__file__).parent
    try:
        commands = (["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no"])
        head, status = (
            subprocess.run(
                command, cwd=here, capture_output=True, text=True, check=True, timeout=60
            ).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+dirty" if status else "")
