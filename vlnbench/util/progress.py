"""Progress of long work: a live bar on a terminal, a plain line now and then elsewhere. Writes to stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from vlnbench.util.visible import visible

PLAIN_INTERVAL_S = 10.0
FIRST_BEAT_S, LAST_BEAT_S = 15.0, 120.0
"""Until something is said of work of which nothing has ended yet, the first time and later."""


class Progress:
    """Progress of one task. Use as a context manager and call `update` as often as you like.

    label: what is going on; without one, notes that say how long it takes have the whole line. waiting: what is
    said now and then, with the seconds so far, until the first update.
    """

    def __init__(self, label: str = "", waiting: str = "") -> None:
        self._label, self._waiting = label, waiting
        self._began = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._live = sys.stderr.isatty()
        self._last_line = 0.0
        self._start = time.monotonic()

    def __enter__(self) -> Progress:
        if self._waiting:
            self._heart.start()
        if self._live:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                TextColumn,
                TimeElapsedColumn,
            )
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Bar(
                *(columns if self._label else (BarColumn(bar_width=8), MofNCompleteColumn())),
                TextColumn("{task.fields[note]}", markup=False),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self._label, total=None, note="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._began.set()
        if self._live:
            self._bar.stop()

    def _beat(self) -> None:
        wait = FIRST_BEAT_S
        while not self._began.wait(wait):
            self.say(f"{self._waiting} after {time.monotonic() - self._start:.0f} s")
            wait = min(2 * wait, LAST_BEAT_S)

    def update(self, done: int, total: int | None, note: str = "") -> None:
        """Report that `done` of `total` units are finished (total None: unknown)."""
        self._began.set()
        if self._live:
            self._bar.update(self._task, completed=done, total=total, note=visible(note))
            return
        now = time.monotonic()
        if done == total or now - self._last_line >= PLAIN_INTERVAL_S:
            self._last_line = now
            count = f"{done}" if total is None else f"{done}/{total}"
            if self._label:
                say(f"{self._label}: {count} after {now - self._start:.0f} s {note}".rstrip())
            else:
                say(f"{count}, {note}")

    def say(self, line: str) -> None:
        """A line that stays, above the bar where there is one."""
        if self._live:
            self._bar.console.print(visible(line), markup=False, highlight=False)
        else:
            say(line)


class StepProgress:
    """Shows the steps by which a simulator is made ready; shows nothing where there are none."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._count = 0

    def __enter__(self) -> Callable[[str], None]:
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.__exit__()

    def _show(self, step: str) -> None:
        if self._progress is None:
            self._progress = Progress("getting the simulator ready (first run only)").__enter__()
        self._progress.update(self._count, None, step)
        self._count += 1


def say(line: str) -> None:
    """One line for the user, on stderr: stdout carries results only."""
    print(visible(line), file=sys.stderr, flush=True)
