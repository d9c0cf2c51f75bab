"""A watchdog ends a process that hangs, whatever ending its children does, and none that was stopped itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from vlnbench.util.processes.watchdog import EXIT_CODE, HANGS

_HANGS = """
import sys, time
from vlnbench.util.processes import watchdog
watchdog._BEFORE_EXIT_S = 1.0
def end():
    {end}
with watchdog.Watchdog(1.0, end):
    time.sleep(60)
"""

_WORKS = """
import time
from vlnbench.util.processes import watchdog
watchdog._PAUSED_S = 1.0
with watchdog.Watchdog(3.0, print) as dog:
    print("begun", flush=True)
    for _ in range(10):
        dog.beat()
        time.sleep(0.5)
"""


@pytest.mark.parametrize("end", ["raise RuntimeError('no')", "time.sleep(60)", "sys.exit(0)"])
def test_it_ends_the_process_whatever_ending_children_does(end: str) -> None:
    program = [sys.executable, "-c", _HANGS.format(end=end)]
    result = subprocess.run(program, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == EXIT_CODE
    assert HANGS in result.stderr


@pytest.mark.slow  # 10 s
def test_a_process_that_was_stopped_goes_on() -> None:
    with subprocess.Popen([sys.executable, "-c", _WORKS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(5)
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(50) == 0
