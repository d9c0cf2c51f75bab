"""A sample of what `python -m tests.crash.points` enumerates."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.crash.points import ROOT

pytestmark = [
    pytest.mark.slow,  # runs whole commands, each twice
    pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="looks at /proc"),
]

SAMPLES = {
    "eval": ("2", "5"),
    "collect": ("4", "9"),
    "leaderboard": ("3", "11"),
    "matrix": ("4", "27"),
    "report": ("1", "1"),
    "train": ("9", "13"),
}
"""First change and distance of those tried: beginnings of manifests, temporary files, renames, rows, lines."""


@pytest.mark.parametrize("name", SAMPLES)
def test_killed_before_a_change_and_resumed_it_ends_alike(name: str) -> None:
    first, every = SAMPLES[name]
    command = [sys.executable, "-m", "tests.crash.points", name, "--first", first, "--every", every]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tried = [line for line in done.stdout.splitlines() if " of " in line and line.lstrip()[0].isdigit()]
    assert len(tried) >= 3
