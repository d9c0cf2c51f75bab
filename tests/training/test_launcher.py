"""Ranks end with the launcher that started them, whatever ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agents.janusvln.walks import write_trajectories
from tests.training.driver import ROOT
from vlnbench.util.durable.locks import in_use


def ranks_of(launcher: int) -> list[int]:
    found = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(number) for number in found if b"vlnbench" in Path(f"/proc/{number}/cmdline").read_bytes()]


def wait_for(done, what: str, limit_s: float = 240.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes end with their parent on Linux")
def test_ranks_end_with_a_launcher_that_is_killed_and_let_go_of_the_folder(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "sets/R2R", (4, 3))
    out = tmp_path / "out"
    options = f"""train --checkpoint preset:janusvln-tiny --trajectories {tmp_path}/sets --out {out} --steps 100000
        --accumulation 1 --zero 0 --workers 0 --no-gradient-checkpointing --log-every 1"""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launcher = subprocess.Popen(
        [*command, "-m", "vlnbench", *options.split()],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ranks: list[int] = []
    try:
        wait_for(lambda: (out / "train_log.jsonl").exists() or launcher.poll() is not None, "no step was done")
        ranks = ranks_of(launcher.pid)
        assert len(ranks) == 2
        assert in_use(out)
        launcher.kill()
        launcher.wait()
        wait_for(lambda: not in_use(out), "the folder is still locked", 20.0)
        wait_for(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), "ranks live on", 20.0)
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        launcher.kill()
        launcher.wait()
