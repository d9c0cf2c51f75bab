"""What `vlnbench doctor` finds: a line per check, and statements that are tried in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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
    return (_BEGUN[code] if code in _BEGUN else _tried([code], timeout_s)[0]).result()


_BEGUN: dict[str, Future[str]] = {}


@contextmanager
def begun(chains: Sequence[Sequence[str]]) -> Iterator[None]:
    """Tries statements beforehand; `probe` then answers with what came out, as soon as that is known.

    Those of a chain run one after the other in one process, as what they import loads once, and the chains side by
    side. After one that crashes or hangs the rest of its chain goes on in a new process.
    """
    with ThreadPoolExecutor(max(1, len(chains))) as pool:
        for chain in chains:
            futures: list[Future[str]] = [Future() for _ in chain]
            _BEGUN.update(zip(chain, futures, strict=True))
            pool.submit(_run, chain, futures, IMPORT_TIMEOUT_S)
        try:
            yield
        finally:
            _BEGUN.clear()


def _tried(chain: Sequence[str], timeout_s: float) -> list[Future[str]]:
    futures: list[Future[str]] = [Future() for _ in chain]
    _run(chain, futures, timeout_s)
    return futures


_START = """
import contextlib, io, json, os, sys, traceback
sys.path[:] = json.loads(sys.argv[1])
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for code in json.loads(sys.argv[2]):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(code, {"__name__": "__main__"})
        answer = [True, (said.getvalue().strip().splitlines() or [""])[-1]]
    except Exception as error:
        answer = [False, traceback.format_exception_only(error)[-1].strip().splitlines()[-1]]
    print(json.dumps(answer), file=answers, flush=True)
"""


def _run(chain: Sequence[str], futures: Sequence[Future[str]], timeout_s: float) -> None:
    """Try the statements of a chain; every future gets its answer or the reason why there is none."""
    done = 0
    while done < len(chain):
        arguments = [json.dumps(sys.path), json.dumps(list(chain[done:]))]
        command = [sys.executable, "-W", "ignore", "-c", _START, *arguments]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=_quiet())
            text, reason = result.stdout, _ended(result)
        except subprocess.TimeoutExpired as error:
            text, reason = (error.stdout or b"").decode(), f"no answer within {timeout_s:.0f} s"
        for good, said in map(json.loads, text.splitlines()):
            futures[done].set_result(said) if good else futures[done].set_exception(ProbeError(said))
            done += 1
        if done < len(chain):
            futures[done].set_exception(ProbeError(reason))
            done += 1


def _ended(result: subprocess.CompletedProcess[str]) -> str:
    """How a process ended that did not answer."""
    if result.returncode < 0:
        return f"crashed with signal {-result.returncode}"
    lines = result.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {result.returncode}"


def _quiet() -> dict[str, str]:
    """The environment with what keeps libraries from chatting."""
    return {**os.environ, "PYTHONWARNINGS": "ignore", "GLOG_minloglevel": "2", "MAGNUM_LOG": "quiet"}
