"""A training that hangs says where, on every process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.janusvln.walks import write_trajectories
from tests.training.driver import ROOT
from vlnbench.training.objectives.spec import ObjectiveSpec
from vlnbench.training.run.folder import HANG
from vlnbench.util.processes.watchdog import EXIT_CODE


def sleeping(options, trains, process):  # type: ignore[no-untyped-def]
    """The usual objective, but one process never comes back from its second step, for which all have 4 s.

    Until then they have as long as a busy machine takes to start.
    """
    import gc
    import time

    from vlnbench.training.objectives.supervised import Supervised
    from vlnbench.training.watch import HangWatch

    class Sleeping(Supervised):
        def losses(self, step):  # type: ignore[no-untyped-def]
            if step == 2:
                (watch,) = (each for each in gc.get_objects() if isinstance(each, HangWatch))
                watch._limit_s = 4.0
                time.sleep(600 * process.rank)
            yield from super().losses(step)

    return Sleeping(options, trains, process)


SLEEPING = ObjectiveSpec("sleeping", f"{__name__}:sleeping")


@pytest.mark.slow
def test_every_process_names_its_step_and_what_it_waits_in(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "sets/R2R", (4, 3))
    options = f"""train --checkpoint preset:janusvln-tiny --trajectories {tmp_path}/sets
        --objective {__name__}:SLEEPING
        --out {tmp_path}/out --steps 3 --accumulation 1 --zero 0 --workers 0 --no-gradient-checkpointing
        --log-every 1 --hang-minutes 5"""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*launcher, "-m", "vlnbench", *options.split()],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode != 0
    assert "makes no progress" in result.stderr, result.stderr[-3000:]
    assert re.search(r"step 1 is done on 2 processes: \d+ s to start, \d+\.\d s for the step", result.stderr)
    told = re.findall(r"vlnbench: rank (\d) of 2 \(\S+, cpu\) makes no progress for \d+ s: (.*)", result.stderr)
    assert told, result.stderr[-2000:]
    found = dict(told)
    if "0" in found:  # the launcher ends the others when the first has ended
        assert re.match(r"(step 2|what step 1 gave).*; waits in (all_reduce|barrier|broadcast)", found["0"])
    if "1" in found:
        assert re.match(r"step 2; last call to others: \w+", found["1"])
    assert f"exitcode  : {EXIT_CODE}" in result.stderr
    note = json.loads((tmp_path / "out" / HANG).read_text())  # what the launcher's own exit code does not tell
    assert f"rank {note['rank']} of 2" in note["line"]


def test_the_line_names_process_step_phase_and_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from vlnbench.training.setup import Process
    from vlnbench.training.watch import HangWatch

    original = lambda tensor: tensor  # noqa: E731
    monkeypatch.setattr(torch.distributed, "all_reduce", original)
    with HangWatch(Process(3, 1, 8, torch.device("cpu")), minutes=60) as watch:
        watch.at("step 12")
        watch.phase("backward")
        assert watch.line().endswith("step 12, phase backward; last call to others: none")
        torch.distributed.all_reduce("tensor")
        assert watch.line().startswith("vlnbench: rank 3 of 8 (")
        assert watch.line().endswith("step 12, phase backward; last call to others: all_reduce")
        watch.at("step 13")
        assert ": step 13; last call" in watch.line()
    assert torch.distributed.all_reduce is original, "put back"
