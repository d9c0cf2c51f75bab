"""Memory as it was: what a process took of its GPU and of the host, and what a command took in one of its own.

Peaks of a GPU are None where there is none, never 0. PyTorch counts what its allocator handed out and reserved;
NVML, where its Python package is installed, sees the whole process with its CUDA context.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE_S = 0.1
"""Seconds between looks at NVML and the processes of a command."""

GRACE_S = 10.0
"""Seconds that a command which is told to end may take for it."""

_KIB = 1024


@dataclass(frozen=True, slots=True)
class VramPeaks:
    """What one process took since `start`, in bytes; counts since `start`, too.

    allocated, reserved: PyTorch's allocator. alloc_retries: how often it had to give cached memory back to go on,
    which means that memory is nearly full. ooms: allocations that failed. device: this process by NVML, None where
    NVML or the process's own share is not to be had. capacity: the GPU's memory. host: largest resident size of
    the process since it began, whatever `start` says.
    """

    allocated: int | None
    reserved: int | None
    alloc_retries: int | None
    ooms: int | None
    device: int | None
    capacity: int | None
    gpu: str | None
    host: int


@dataclass(frozen=True, slots=True)
class CommandPeaks:
    """What a command took: exit code, wall-clock seconds, largest resident size of its largest process (bytes).

    device: the largest sum over its processes by NVML, by GPU index; None without NVML.
    """

    exit_code: int
    seconds: float
    host: int
    device: Mapping[int, int] | None


class Vram:
    """Watches this process from `start` on. One per process; `peaks` may be asked for as often as one likes."""

    def __init__(self) -> None:
        self._torch = _torch_with_cuda()
        self._before = self._counts()
        self._sampler: _Sampler | None = None
        self._earlier = (0, 0)
        self.phases: dict[str, int] = {}
        """Largest allocation in bytes inside of each phase so far; empty without a GPU."""

    def start(self) -> Vram:
        """Begin, or begin anew: peaks and counts start from here."""
        if self._torch is None:
            return self
        self._torch.cuda.reset_peak_memory_stats()
        self._before, self._earlier, self.phases = self._counts(), (0, 0), {}
        if self._sampler is not None:
            self._sampler.stop()
        device = self._torch.cuda.current_device()
        self._sampler = _Sampler.of_this_process(_uuid(self._torch, device))
        return self

    def peaks(self) -> VramPeaks:
        """What was taken since `start`."""
        host = peak_host_bytes()
        if self._torch is None:
            return VramPeaks(None, None, None, None, None, None, None, host)
        cuda = self._torch.cuda
        properties = cuda.get_device_properties(cuda.current_device())
        retries, ooms = (now - then for now, then in zip(self._counts(), self._before, strict=True))
        return VramPeaks(
            allocated=max(self._earlier[0], cuda.max_memory_allocated()),
            reserved=max(self._earlier[1], cuda.max_memory_reserved()),
            alloc_retries=retries,
            ooms=ooms,
            device=None if self._sampler is None else self._sampler.peak,
            capacity=properties.total_memory,
            gpu=properties.name,
            host=host,
        )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what is allocated inside on its own as well: `phases`. Phases do not lie in one another."""
        if self._torch is None:
            yield
            return
        self._restart()
        try:
            yield
        finally:
            peak = self._torch.cuda.max_memory_allocated()
            self.phases[name] = max(self.phases.get(name, 0), peak)
            self._restart()

    def _restart(self) -> None:
        """Have PyTorch count anew, and keep what it has counted."""
        cuda = self._torch.cuda
        allocated, reserved = self._earlier
        self._earlier = max(allocated, cuda.max_memory_allocated()), max(reserved, cuda.max_memory_reserved())
        cuda.reset_peak_memory_stats()

    def stop(self) -> None:
        """End the sampling thread."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def _counts(self) -> tuple[int, int]:
        if self._torch is None:
            return 0, 0
        found = self._torch.cuda.memory_stats()
        return found.get("num_alloc_retries", 0), found.get("num_ooms", 0)


def start() -> Vram:
    """Watch this process from here on."""
    return Vram().start()


def current_peaks() -> VramPeaks:
    """What this process has taken since it began; PyTorch is not imported for it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():  # to ask more would take memory of the GPU
        return VramPeaks(None, None, None, None, None, None, None, peak_host_bytes())
    return Vram().peaks()


def peak_host_bytes() -> int:
    """Largest resident size of this process so far."""
    return _peak_of("self") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def measure_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> CommandPeaks:
    """Run a command to its end in a process of its own and watch it.

    output: descriptor of the file that its output goes to; default where this process's goes. stop: asked again
    and again; when it says so, the command is ended, and after `GRACE_S` all its processes are killed.
    """
    nvml = _nvml()
    began = time.monotonic()
    process = subprocess.Popen(
        list(command),
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )
    host, device = 0, dict[int, int]()
    ended: float | None = None
    while process.poll() is None:
        family = _family(process.pid)
        host = max(host, *(_peak_of(str(pid)) or 0 for pid in family))
        for index, used in _used_by(nvml, family).items():
            device[index] = max(device.get(index, 0), used)
        now = time.monotonic()
        if ended is None and stop():
            process.terminate()
            ended = now
        elif ended is not None and now - ended > GRACE_S:
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(SAMPLE_S)
    return CommandPeaks(process.returncode, time.monotonic() - began, host, None if nvml is None else device)


def _peak_of(process: str) -> int | None:
    """The kernel's high-water mark of a process's resident size, None once it is gone or on another system."""
    with suppress(OSError):
        for line in Path("/proc", process, "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIB
    return None


def _family(pid: int) -> set[int]:
    """A process and all its descendants that still run."""
    found = {pid}
    for task in Path("/proc", str(pid), "task").glob("*"):
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found |= _family(int(child))
    return found


def _torch_with_cuda() -> Any:
    """PyTorch, if it sees a GPU."""
    import torch

    return torch if torch.cuda.is_available() else None


def _uuid(torch: Any, device: int) -> str:
    """The GPU's name for NVML, whose numbering CUDA_VISIBLE_DEVICES does not change."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _nvml() -> Any:
    """NVML, started; None where its package or the driver is missing."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _used_by(nvml: Any, family: set[int]) -> dict[int, int]:
    """Bytes that processes hold, by GPU index."""
    if nvml is None:
        return {}
    used = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        held = _held(nvml, nvml.nvmlDeviceGetHandleByIndex(index), family)
        if held:
            used[index] = held
    return used


def _held(nvml: Any, handle: Any, family: set[int]) -> int:
    """Bytes that processes hold on one GPU; 0 where NVML knows none or does not tell, as in containers."""
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return 0
    return sum(each.usedGpuMemory or 0 for each in processes if each.pid in family)


class _Sampler:
    """A thread that keeps the largest value of NVML's count for this process on one GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vram", daemon=True)
        self._thread.start()

    @classmethod
    def of_this_process(cls, uuid: str) -> _Sampler | None:
        """A running sampler, None where NVML is missing or does not know the GPU."""
        nvml = _nvml()
        if nvml is None:
            return None
        try:
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
        except nvml.NVMLError:  # a part of a GPU, or one that is lent by a virtual machine's host
            return None

    @property
    def peak(self) -> int | None:
        """Bytes, None where NVML does not tell this process's share."""
        self._look()
        return self._peak or None

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self._peak = max(self._peak, _held(self._nvml, self._handle, {os.getpid()}))
