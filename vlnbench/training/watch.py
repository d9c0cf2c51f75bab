"""Says where a training hangs: which process, in which step and phase, in which call to the other processes.

A start or a step that waits for a process which never comes says nothing of itself for half an hour, or for ever.
Every process watches itself and, when it makes no progress, names what it is doing and ends. What one of them does
and the others do not is what they wait for.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from vlnbench.training.setup import Process
from vlnbench.util.durable.files import write_json
from vlnbench.util.processes.watchdog import EXIT_CODE
from vlnbench.util.progress import say

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)
"""Functions of torch.distributed in which processes wait for each other."""
LOOK_S = 1.0


class HangWatch:
    """Ends the process with exit code 124 if nothing is done for `minutes`; 0 never does. A context manager.

    note: a file that then holds the line: a launcher of several processes hands their exit codes on as 1.

    `at` says what is done from now on, which is progress. The line on stderr names the process, its host and
    device, the step, the phase and the call to other processes that it waits in, or the last one it has made:
    calls on a GPU return before they are done. The stacks of all threads follow.
    """

    def __init__(self, process: Process, minutes: float, note: Path | None = None) -> None:
        self._process, self._limit_s, self._note = process, 60 * minutes, note
        self._what, self._phase, self._since = "starting", "", time.monotonic()
        self._last_call = ""
        self._began = time.monotonic()
        self._first_step = False
        self._done = threading.Event()
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._restore: list[Callable[[], None]] = []

    def __enter__(self) -> HangWatch:
        if self._limit_s:
            self._note_calls()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._limit_s:
            self._thread.join()
        for restore in self._restore:
            restore()

    def at(self, what: str) -> None:
        """Say what is done from now on."""
        self._what, self._phase, self._since = what, "", time.monotonic()

    def phase(self, name: str) -> None:
        """Say which phase of it begins."""
        self._phase, self._since = name, time.monotonic()

    def first_step(self, step: int, seconds: float) -> None:
        """Say, once and on the first process, that a step is done: from here on it is known to work."""
        if self._first_step:
            return
        self._first_step = True
        if self._process.first:
            before = time.monotonic() - self._began - seconds
            others = f" on {self._process.world_size} processes" if self._process.world_size > 1 else ""
            say(f"step {step} is done{others}: {before:.0f} s to start, {seconds:.1f} s for the step")

    def line(self) -> str:
        """What this process is doing, in one line."""
        process, where = self._process, f", phase {self._phase}" if self._phase else ""
        call = _collective(sys._current_frames().get(self._main or 0))
        waits = f"waits in {call}" if call else f"last call to others: {self._last_call or 'none'}"
        return (
            f"vlnbench: rank {process.rank} of {process.world_size} ({socket.gethostname()}, {process.device}) "
            f"makes no progress for {time.monotonic() - self._since:.0f} s: {self._what}{where}; {waits}"
        )

    def _look(self) -> None:
        while not self._done.wait(min(LOOK_S, self._limit_s / 4)):
            if time.monotonic() - self._since > self._limit_s:
                os.write(2, f"{self.line()}\n".encode())
                faulthandler.dump_traceback(2)
                if self._note is not None:
                    with suppress(OSError):
                        write_json(self._note, {"rank": self._process.rank, "line": self.line()})
                os._exit(EXIT_CODE)

    def _note_calls(self) -> None:
        """Remember the last call to other processes: on a GPU it is over before the others have come."""
        self._restore = wrap_collectives(self._noting)

    def _noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def noting(*arguments: Any, **named: Any) -> Any:
            self._last_call = name
            return original(*arguments, **named)

        return noting


def wrap_collectives(wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> list[Callable[[], None]]:
    """Put `wrap(name, function)` in the place of every function by which processes wait for each other.

    DeepSpeed keeps some of them from when it is started. Returns what takes them back, in any order.
    """
    restore: list[Callable[[], None]] = []
    for name in COLLECTIVES:
        original = getattr(torch.distributed, name, None)
        if original is not None:
            setattr(torch.distributed, name, wrap(name, original))
            restore.append(partial(setattr, torch.distributed, name, original))
    return restore


def _collective(frame: FrameType | None) -> str:
    """The innermost function of torch.distributed that a stack is in, "" if it is in none."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d":
            name = frame.f_code.co_name
            if name in COLLECTIVES:
                return name
        frame = frame.f_back
    return ""
