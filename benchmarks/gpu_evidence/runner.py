"""Runs cases one after the other, each in a process of its own: what one of them breaks costs no other."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_evidence.pieces import CannotRunError, Case, Job, Piece
from benchmarks.gpu_evidence.record import FINAL, Record
from vlnbench.util import machine
from vlnbench.util.durable.files import read_object, write_json
from vlnbench.util.measure import measure_command
from vlnbench.util.processes.child import live_and_die_with_parent
from vlnbench.util.progress import say

ROOT = Path(__file__).parents[2]
PATIENCE, MOST_S = 2.5, 480
"""A case may take this many times as long as it should, but no longer than this: a session has ten minutes at most
on some machines, and a case that never ends within one would be begun again and again."""
TOY_S = 1800
"""The same at toy size, where other work may have the processor."""
START_S = 60
"""Seconds that a process may take to begin: imports, and the first look at the GPU."""
LEAST_S = 20
"""A case is not begun with less time than this left."""
OUT_OF_MEMORY = ("CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


@dataclass(frozen=True, slots=True)
class Session:
    """How one session runs. minutes: its limit."""

    toy: bool
    minutes: float


def run(cases: Iterable[tuple[Piece, Case]], record: Record, session: Session) -> int:
    """Run what has not been run; returns how many cases are left for want of time."""
    deadline = time.monotonic() + 60 * session.minutes
    left = 0
    for piece, case in cases:
        entry = record.entry(piece.name, case.name)
        if entry is not None and entry["status"] in FINAL:
            continue
        reason = _obstacle(case, record, session.toy)
        remaining = deadline - time.monotonic()
        if reason is not None:
            found: dict[str, Any] = {"status": "skipped", "reason": reason}
        elif remaining < (LEAST_S if session.toy else max(LEAST_S, 60 * case.minutes)):
            left += 1
            say(f"{piece.name}/{case.name}: left for another session, {remaining / 60:.1f} minutes remain")
            continue
        else:
            say(f"{piece.name}/{case.name}: about {case.minutes:g} minutes …")
            found = start(piece, case, record.path.parent, session.toy, remaining)
            left += found["status"] == "cut off"
        record.keep(piece.name, case.name, found)
        say(f"{piece.name}/{case.name}: {found['status']}" + (f": {found['reason']}" if "reason" in found else ""))
    return left


def _obstacle(case: Case, record: Record, toy: bool) -> str | None:
    """Why a case cannot be run here, None if nothing is known against it."""
    missing = [name for name in case.needs if find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if toy:
        return None
    there = record.content["machine"]["gpus"][0]["memory_mib"] * 2**20 / 1e9
    return f"takes about {case.gb:g} GB, the GPU has {there:.0f}" if case.gb > there else None


def start(piece: Piece, case: Case, folder: Path, toy: bool, remaining: float) -> dict[str, Any]:
    """Run one case to its end, or until its time is over; returns its entry."""
    own = TOY_S if toy else min(MOST_S, START_S + PATIENCE * 60 * case.minutes)
    end = time.monotonic() + min(own, remaining)
    path = folder / f".{piece.name}.{case.name}.json"
    path.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_evidence.runner",
        piece.module,
        case.name,
        str(int(toy)),
        str(path),
    ]
    with (folder / "log.txt").open("ab") as log:
        log.write(f"\n== {piece.name}/{case.name}\n".encode())
        log.flush()
        peaks = measure_command(
            command, env=_environment(toy), output=log.fileno(), stop=lambda: time.monotonic() > end
        )
    entry: dict[str, Any] = read_object(path) if path.exists() else {"status": "cut off", "found": {}}
    path.unlink(missing_ok=True)
    if entry["status"] == "cut off":
        entry |= _ended(peaks.exit_code, time.monotonic() > end, own <= remaining)
    return {**entry, "seconds": round(peaks.seconds, 1), "host": peaks.host}


def _ended(code: int, late: bool, own: bool) -> dict[str, Any]:
    """What became of a process that did not say so itself. own: its own time was over, not the session's."""
    if late:
        return {"status": "timed out", "reason": "took far longer than expected"} if own else {"status": "cut off"}
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return {"status": "failed", "reason": f"the process ended with {name}, see log.txt"}


def _environment(toy: bool) -> dict[str, str]:
    """Of a case's process: this checkout, the first GPU only, an allocator as the trainer has it."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    first = "" if toy else machine.visible(machine.gpus())[0]
    own = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": first, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **own}


def answer(module: str, job: Job) -> None:
    """Run a case in this process and write what became of it."""
    job.save({})
    try:
        found = importlib.import_module(module).run(job)
    except CannotRunError as reason:
        _finish(job, "skipped", str(reason))
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip() or type(error).__name__
        memory = any(mark in text for mark in OUT_OF_MEMORY) or "OutOfMemoryError" in type(error).__name__
        _finish(job, "out of memory" if memory else "failed", f"{type(error).__name__}: {text.splitlines()[0]}")
    else:
        job.save(found, "done")


def _finish(job: Job, status: str, reason: str) -> None:
    """Add how it ended to what was found before."""
    write_json(job.out, {**read_object(job.out), "status": status, "reason": reason})


def main() -> None:
    module, case, toy, out = sys.argv[1:]
    live_and_die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that processes of the case's own are ended, too
    answer(module, Job(case, toy == "1", Path(out)))


if __name__ == "__main__":
    main()
