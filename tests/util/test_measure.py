from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from vlnbench.util import measure as vram

MIB = 2**20
ROOT = Path(__file__).parents[2]


def has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_its_peaks_are_none_and_the_hosts_is_there() -> None:
    watch = vram.start()
    peaks = watch.peaks()
    watch.stop()
    assert (peaks.allocated, peaks.reserved, peaks.device, peaks.capacity) == (None, None, None, None)
    assert (peaks.alloc_retries, peaks.ooms, peaks.gpu) == (None, None, None)
    assert peaks.host > 10 * MIB
    assert json.loads(json.dumps(asdict(peaks)))["allocated"] is None


def test_peak_host_memory_stays_after_it_is_freed() -> None:
    """In a process of its own, whose peak is small."""
    code = """
from vlnbench.util import measure as vram
before = vram.peak_host_bytes()
block = b"1" * (before + 64 * 2**20)
del block
after = vram.peak_host_bytes()
assert after >= before + 64 * 2**20
assert vram.peak_host_bytes() == after
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_command_is_measured_with_its_children() -> None:
    """The child, not the command itself, takes the memory."""
    child = "import time; block = bytearray(200 * 2**20); time.sleep(0.5)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); raise SystemExit(3)"
    found = vram.measure_command([sys.executable, "-c", parent])
    assert found.exit_code == 3
    assert found.seconds >= 0.5
    assert 200 * MIB <= found.host < 400 * MIB
    assert json.loads(json.dumps(asdict(found)))["exit_code"] == 3


def test_a_command_that_will_not_end_is_killed_with_its_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vram, "GRACE_S", 0.3)
    deaf = "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    child = f"{deaf}print(os.getpid(), flush=True); time.sleep(600)"
    command = [sys.executable, "-c", f"{deaf}subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"]
    path = tmp_path / "log"
    with path.open("wb") as log:
        found = vram.measure_command(command, output=log.fileno(), stop=lambda: path.stat().st_size > 0)
    assert found.exit_code == -signal.SIGKILL
    status = Path("/proc", path.read_text().strip(), "stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


class Nvml:
    """A driver that answers nothing."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> object:  # noqa: N802
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:  # noqa: N802
        raise self.NVMLError("Not Found")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1


def test_a_driver_that_does_not_tell_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vram, "_nvml", Nvml)
    assert vram._Sampler.of_this_process(["GPU-0"]) is None
    found = vram.measure_command([sys.executable, "-c", "import time; time.sleep(0.3)"])
    assert (found.exit_code, found.device) == (0, {})


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a CUDA device")
def test_peaks_of_a_gpu() -> None:
    import torch

    watch = vram.start()
    block = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
    del block
    peaks = watch.peaks()
    assert peaks.allocated is not None
    assert peaks.reserved is not None
    assert 256 * MIB <= peaks.allocated < 300 * MIB
    assert peaks.reserved >= peaks.allocated
    assert (peaks.ooms, peaks.alloc_retries) == (0, 0)
    assert peaks.device is None or peaks.device > 256 * MIB
    watch.start()
    again = watch.peaks()
    assert again.allocated is not None
    assert again.allocated < 256 * MIB
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
    assert watch.peaks().ooms == 1
    watch.stop()
