"""Ends a process that makes no progress, and says where it hangs."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

EXIT_CODE = 124
"""As of `timeout(1)`."""

HANGS = "vlnbench: no progress"
"""How the line before the stacks begins."""

_MARGIN_S = 60.0

_BEFORE_EXIT_S = 10.0
"""Time to end children, which may be what hangs."""

_PAUSED_S = 5.0
"""A thread that only waits is not late by more than this on a busy machine."""


class Watchdog:
    """Ends the process with exit code 124 if `beat` is not called for `limit_s`. Use as a context manager.

    The stacks of all threads go to stderr; `before_exit` should end child processes. Code that hangs without
    letting go of the interpreter stops the watching thread too: then faulthandler does the same a minute later,
    with exit code 1.
    """

    def __init__(self, limit_s: float, before_exit: Callable[[], None]) -> None:
        self._limit_s, self._before_exit = limit_s, before_exit
        self._last_beat = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watchdog:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def beat(self) -> None:
        """Report progress."""
        self._last_beat = time.monotonic()

    def _watch(self) -> None:
        stderr = 2  # sys.stderr may be something without a descriptor
        step, last = min(1.0, self._limit_s / 4), time.monotonic()
        while not self._done.wait(step):
            now = time.monotonic()
            if now - last > step + _PAUSED_S:  # this process was stopped itself
                self._last_beat += now - last
            last = now
            with suppress(Exception):  # whatever fails here, this thread goes on watching
                faulthandler.dump_traceback_later(self._limit_s + _MARGIN_S, exit=True, file=stderr)
            if time.monotonic() - self._last_beat > self._limit_s:
                try:
                    os.write(stderr, f"{HANGS} for {self._limit_s:g} s; it hangs here:\n".encode())
                    faulthandler.dump_traceback(stderr)
                    ending = threading.Thread(target=self._before_exit, daemon=True)
                    ending.start()
                    ending.join(_BEFORE_EXIT_S)
                finally:  # whatever becomes of the children, which die with this process
                    os._exit(EXIT_CODE)
