"""Waiting for a lock ends, and says for whom it waits."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vlnbench.util.durable import owners
from vlnbench.util.durable.owners import InUseError, Patience, myself


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(owners.time, "monotonic", lambda: now[0])
    return now


def test_whoever_waits_says_for_whom_and_not_all_the_time(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    patience, owner = Patience(Path("/runs")), myself(True)
    for clock[0] in (101.0, 106.0, 107.0, 600.0, 707.0):
        patience.look(owner)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(f"/runs: waiting for {owner}, which is at work there")
    assert second.endswith("which is at work there (10 min)")


def test_nobody_waits_for_ever(clock: list[float]) -> None:
    patience = Patience(Path("/runs"))
    clock[0] += owners.WAIT_S + 1
    with pytest.raises(InUseError, match="/runs: another process is writing there; waited for 12 h") as raised:
        patience.look(None)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # as between processes


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_nobody_waits_for_a_process_that_is_stopped(clock: list[float]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = replace(myself(True), pid=process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        patience = Patience(Path("/runs"))
        patience.look(owner)
        clock[0] += owners.STOPPED_S - 1
        patience.look(owner)
        clock[0] += 2
        with pytest.raises(InUseError, match=rf"it is stopped: let it go on \(kill -CONT {process.pid}\)"):
            patience.look(owner)
        patience.look(replace(owner, boot="another machine"))
        process.kill()
