"""What `vlnbench doctor` finds: a line per check, and statements that are tried in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "FAIL"]

IMPORT_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `advice` says what to do where the level is not "ok"."""

    level: Level
    name: str
    detail: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<4}  {self.name:<16}  {self.detail}"
        return line + (f"; {self.advice}" if self.advice else "")


class ProbeError(Exception):
    """A statement failed in its own process; the message is the last line of its traceback."""


def probe(code: str, timeout_s: float = IMPORT_TIMEOUT_S) -> str:
    """Run Python statements in a process of their own, with this one's import path; returns the last line printed.

    Raises ProbeError with the reason if they raise, crash or hang.
    """
    start = f"import json, sys; sys.path[:] = json.loads(sys.argv[1])\n{code}"
    command = [sys.executable, "-W", "ignore", "-c", start, json.dumps(sys.path)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=_quiet())
    except subprocess.TimeoutExpired as error:
        raise ProbeError(f"no answer within {timeout_s:.0f} s") from error
    if result.returncode < 0:
        raise ProbeError(f"crashed with signal {-result.returncode}")
    lines = (result.stderr if result.returncode else result.stdout).strip().splitlines()
    if result.returncode:
        raise ProbeError(lines[-1] if lines else f"exit code {result.returncode}")
    return lines[-1] if lines else ""


def _quiet() -> dict[str, str]:
    """The environment with what keeps libraries from chatting."""
    return {**os.environ, "PYTHONWARNINGS": "ignore", "GLOG_minloglevel": "2", "MAGNUM_LOG": "quiet"}
