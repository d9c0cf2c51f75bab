"""One command of a matrix, watched: `python -m vlnbench.matrix.work.watcher REQUEST`, started by the runner only.

It outlives nobody: when the runner is gone, however it ended, standard input closes and the command is ended. It
writes what became of the command, so that nothing depends on the runner's having seen it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from vlnbench.util.durable.files import append_line, open_for_append, read_jsonl
from vlnbench.util.durable.locks import locked
from vlnbench.util.measure import measure_command

LOG, ATTEMPTS = "log.txt", "attempts.jsonl"
TAIL_LINES, TAIL_BYTES = 50, 1 << 16

INTERRUPTED = (-signal.SIGTERM, -signal.SIGINT, 130, 143)
"""Exit codes of a command that somebody ended on purpose."""

Outcome = Literal["done", "failed", "timeout", "interrupted"]


@dataclass(frozen=True)
class Request:
    """A command to run. Its output goes to the folder's log; `env` is set beside the runner's environment, None
    removes a variable; `notes` go into the record as they are."""

    folder: str
    command: list[str]
    env: dict[str, str | None] = field(default_factory=dict)
    timeout_s: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """The command line that runs it."""
        return [sys.executable, "-m", "vlnbench.matrix.work.watcher", json.dumps(asdict(self))]


def attempts(folder: Path) -> list[dict[str, Any]]:
    """What became of every attempt so far, oldest first."""
    return [entry for _, entry in read_jsonl(folder / ATTEMPTS)]


def run(request: Request, gone: threading.Event) -> Outcome:
    """Run the command to its end, its timeout, or until `gone` is set, and record what became of it."""
    with locked(Path(request.folder), wait=True):  # for one that is being ended
        return _run(request, Path(request.folder), gone)


def _run(request: Request, folder: Path, gone: threading.Event) -> Outcome:
    started, began = datetime.now(timezone.utc), time.monotonic()
    late = threading.Event()

    def stop() -> bool:
        if request.timeout_s is not None and time.monotonic() - began > request.timeout_s and not gone.is_set():
            late.set()
        return gone.is_set() or late.is_set()

    with (folder / LOG).open("ab", buffering=0) as log:
        log.write(f"\n== {started.isoformat(timespec='seconds')} {' '.join(request.command)}\n".encode())
        start = log.tell()
        peaks = measure_command(request.command, env=_environment(request.env), output=log.fileno(), stop=stop)
    outcome: Outcome = "done"
    if peaks.exit_code:
        interrupted = gone.is_set() or peaks.exit_code in INTERRUPTED
        outcome = "timeout" if late.is_set() else "interrupted" if interrupted else "failed"
    entry = {
        "started": started.isoformat(timespec="seconds"),
        "outcome": outcome,
        "exit_code": peaks.exit_code,
        "seconds": round(peaks.seconds, 3),
        "host": peaks.host,
        "device": None if peaks.device is None else max(peaks.device.values(), default=None),
        "timeout_s": request.timeout_s,
        "tail": [] if outcome == "done" else _tail(folder / LOG, start),
        **request.notes,
    }
    with open_for_append(folder / ATTEMPTS) as file:
        append_line(file, entry)
    return outcome


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in changes}
    return kept | {name: value for name, value in changes.items() if value is not None}


def _tail(path: Path, start: int) -> list[str]:
    """The last lines of what an attempt wrote."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [line[:500] for line in lines if line.strip()][-TAIL_LINES:]


def main() -> None:
    """Run the request that the runner gave."""
    gone = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: gone.set())

    def wait_for_the_runner() -> None:
        while os.read(0, 1024):
            pass
        gone.set()

    threading.Thread(target=wait_for_the_runner, daemon=True).start()
    run(Request(**json.loads(sys.argv[1])), gone)


if __name__ == "__main__":
    main()
