"""Memory as it was: what a process took of its GPU and of the host, and what a command took in one of its own.

Peaks of a GPU are None where there is none, never 0. PyTorch counts what its allocator handed out and reserved;
NVML, where its Python package is installed (`pip install 'vlnbench[gpu]'`), sees the whole process with its CUDA
context, if it is not in a container, and the whole card.
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
from dataclasses import dataclass, field
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
    NVML or the process's own share is not to be had. card: all that was in use on the GPU, whoever used it, by
    NVML. capacity: the GPU's memory. host: largest resident size of the process since it began, whatever `start`
    says. phases: allocated in each phase.
    """

    allocated: int | None
    reserved: int | None
    alloc_retries: int | None
    ooms: int | None
    device: int | None
    capacity: int | None
    gpu: str | None
    host: int
    card: int | None = None
    phases: Mapping[str, int] = field(default_factory=dict)


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
    """Watches what this process takes of one GPU. One per process; `peaks` may be asked for as often as one likes.

    device: number of the GPU; default PyTorch's current one. torch: None without a GPU. Until `start` it knows
    what PyTorch has counted since the process began.
    """

    def __init__(self, torch: Any, device: int | None = None) -> None:
        self._torch = torch
        self._earlier, self._before = (0, 0), (0, 0)
        self._sampler: _Sampler | None = None
        self._phase = ""
        self.phases: dict[str, int] = {}
        """Largest allocation in bytes inside of each phase that has ended; empty without a GPU."""
        if torch is not None:
            self._device: int = torch.cuda.current_device() if device is None else device
            self._sampler = _Sampler.of_this_process(_names(torch, self._device))

    def start(self) -> Vram:
        """Begin anew: peaks and counts start from here."""
        if self._torch is not None:
            self._torch.cuda.reset_peak_memory_stats(self._device)
            self._before, self._earlier, self._phase, self.phases = self._counts(), (0, 0), "", {}
            if self._sampler is not None:
                self._sampler.start_anew()
        return self

    def peaks(self) -> VramPeaks:
        """What was taken since `start`."""
        host = peak_host_bytes()
        if self._torch is None:
            return VramPeaks(None, None, None, None, None, None, None, host)
        properties = self._torch.cuda.get_device_properties(self._device)
        retries, ooms = (now - then for now, then in zip(self._counts(), self._before, strict=True))
        now, seen = self._now(), (None, None) if self._sampler is None else self._sampler.peaks
        return VramPeaks(
            allocated=max(self._earlier[0], now[0]),
            reserved=max(self._earlier[1], now[1]),
            alloc_retries=retries,
            ooms=ooms,
            device=seen[0],
            capacity=properties.total_memory,
            gpu=properties.name,
            host=host,
            card=seen[1],
            phases=self._with_phase(now[0]),
        )

    @property
    def allocated(self) -> int:
        """Bytes that PyTorch has allocated now; of a machine with a GPU."""
        return int(self._torch.cuda.memory_allocated(self._device))

    def begin(self, phase: str) -> None:
        """Count what is allocated from here on for a phase, too, until the next one begins; "" for none."""
        if self._torch is not None:
            now = self._now()
            self.phases = self._with_phase(now[0])
            self._earlier = max(self._earlier[0], now[0]), max(self._earlier[1], now[1])
            self._torch.cuda.reset_peak_memory_stats(self._device)
        self._phase = phase

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The same for what is inside; afterwards the phase around it goes on."""
        around = self._phase
        self.begin(name)
        try:
            yield
        finally:
            self.begin(around)

    def stop(self) -> None:
        """End the sampling thread."""
        if self._sampler is not None:
            self._sampler.stop()

    def _with_phase(self, allocated: int) -> dict[str, int]:
        """The phases, and the one that is under way."""
        if not self._phase:
            return self.phases
        return {**self.phases, self._phase: max(self.phases.get(self._phase, 0), allocated)}

    def _now(self) -> tuple[int, int]:
        """What PyTorch allocated and reserved at most since it was last told to count anew."""
        cuda = self._torch.cuda
        return cuda.max_memory_allocated(self._device), cuda.max_memory_reserved(self._device)

    def _counts(self) -> tuple[int, int]:
        found = self._torch.cuda.memory_stats(self._device)
        return found.get("num_alloc_retries", 0), found.get("num_ooms", 0)


def start(device: int | None = None) -> Vram:
    """Watch this process from here on."""
    import torch

    return Vram(torch if torch.cuda.is_available() else None, device).start()


def since_the_beginning(phase: str) -> Vram | None:
    """Watch this process, of which all so far is one phase; None where PyTorch has not computed on a GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():  # to ask more would take memory of the GPU
        return None
    watch = Vram(torch)
    watch._phase = phase
    return watch


def highest(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The larger of each number of two `VramPeaks` as mappings, where it is known; one of them may be empty."""
    found = dict(one)
    for name, value in other.items():
        if isinstance(value, Mapping):
            found[name] = highest(found.get(name) or {}, value)
        elif not isinstance(value, int) or (found.get(name) or 0) < value:
            found[name] = found.get(name) if value is None else value
    return found


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


def _names(torch: Any, device: int) -> list[str]:
    """Names that NVML may know a GPU by, whose numbering CUDA_VISIBLE_DEVICES does not change."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    given = visible[device].strip() if device < len(visible) else ""
    part = [given] if given.startswith("MIG-") else []  # a part of a GPU may say the uuid of the whole
    uuid = torch.cuda.get_device_properties(device).uuid
    return [*part, f"GPU-{uuid}", f"MIG-{uuid}"]


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
    """A thread that keeps the largest values of NVML's counts on one GPU: for this process, and for all."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._own = self._all = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vram", daemon=True)
        self._thread.start()

    @classmethod
    def of_this_process(cls, names: Sequence[str]) -> _Sampler | None:
        """A running sampler, None where NVML is missing or does not know the GPU by any of these names."""
        nvml = _nvml()
        if nvml is None:
            return None
        for name in names:
            with suppress(nvml.NVMLError):
                return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(name))
        return None  # one that is lent by a virtual machine's host, perhaps

    @property
    def peaks(self) -> tuple[int | None, int | None]:
        """Bytes of this process and of all; None where NVML does not tell."""
        self._look()
        return self._own or None, self._all or None

    def start_anew(self) -> None:
        self._own = self._all = 0

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self._own = max(self._own, _held(self._nvml, self._handle, {os.getpid()}))
        with suppress(self._nvml.NVMLError):
            self._all = max(self._all, self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
