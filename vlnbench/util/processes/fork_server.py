"""A process that imports what is slow to import once, and forks the processes that need it.

Ten simulators would otherwise import the same libraries ten times, at seconds and hundreds of megabytes each.
`ForkServer` is the side of whoever wants processes; `main` is the process they come from.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import NoReturn

from vlnbench.util.loading import import_string
from vlnbench.util.processes.child import Child, HungUp, Line, Process, live_and_die_with_parent
from vlnbench.util.progress import say

_TASKS = Path("/proc/self/task")

_ANSWER_S = 60.0
"""Time for an answer of a process that has nothing to prepare."""


def can_fork() -> bool:
    """Whether this system has what is needed: forks, and a hold on a process that is not one's own child."""
    return hasattr(os, "pidfd_open") and _TASKS.is_dir()


@dataclass(frozen=True, slots=True)
class _Fork:
    """To the process: fork one that runs `module.main(*descriptors, *arguments)`. They and a log follow.

    Answered by the number of the new process, which is followed by a hold on it, or by None if there is none.
    """

    module: str
    arguments: tuple[object, ...]
    descriptors: int


@dataclass(frozen=True, slots=True)
class _Ended:
    """To the process: a process that it forked has ended; answered by its exit code."""

    pid: int


class ForkServer:
    """Starts at once and imports by calling `prepare` (import string) with `argument`; see `Forks`.

    what, environment: as of `Child`. timeout_s: how long it may take to prepare. If it dies, or cannot fork, it
    starts nothing any more.
    """

    def __init__(
        self, what: str, prepare: str, argument: str, environment: Mapping[str, str], timeout_s: float
    ) -> None:
        self._process = Child(
            what, "vlnbench.util.processes.fork_server", (prepare, argument), environment=environment
        )
        self._timeout_s = timeout_s

    def fork(
        self, module: str, descriptors: Sequence[int], arguments: Sequence[object], log: int
    ) -> Process | None:
        """As `Forks.fork`; waits until it is prepared."""
        if self._process.closed or self._process.deaf:
            return None
        try:
            self._process.send(_Fork(module, tuple(arguments), len(descriptors)))
            self._process.send_descriptors([*descriptors, log])
            if not self._process.answers(self._timeout_s):
                say("the process that starts simulators does not answer; they are started without it")
                return None  # those that it has forked live on
            pid = self._process.receive()
            if pid is not None and self._process.answers(_ANSWER_S):
                return _Forked(self._process, pid, *self._process.receive_descriptors(1))
        except (EOFError, OSError):
            pass
        self.close()
        return None

    def close(self) -> None:
        """End the process, and with it those that it forked."""
        self._process.close()


class _Forked:
    """A process that the fork server has forked; see `Process`. hold: a descriptor that stands for it."""

    def __init__(self, fork_server: Child, pid: int, hold: int) -> None:
        self._fork_server, self.pid, self._hold = fork_server, pid, hold
        self._code: int | None = None

    def poll(self) -> int | None:
        return self.wait(0) if self._code is not None or self._ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            if not self._ended(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self._code = self._asked()
            os.close(self._hold)
        return self._code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._hold, sig)

    def _ended(self, timeout: float | None) -> bool:
        return bool(wait([self._hold], timeout))

    def _asked(self) -> int:
        """Its exit code; that of a killed process if the fork server is no more, or does not answer."""
        try:
            if not self._fork_server.deaf:
                self._fork_server.send(_Ended(self.pid))
                if self._fork_server.answers(_ANSWER_S):
                    code: int = self._fork_server.receive()
                    return code
        except (EOFError, OSError):
            pass
        return -signal.SIGKILL


def main(descriptor: int, prepare: str, argument: str) -> None:
    """Prepare, then fork for the process at the other end of the pipe until it closes it."""
    live_and_die_with_parent()
    line = Line(descriptor)
    with contextlib.suppress(Exception):  # whoever is forked tries again, and says what is wrong
        import_string(prepare)(argument)
    gc.collect()
    gc.freeze()  # forked processes share what is there as long as nobody writes to it
    with contextlib.suppress(HungUp):
        while True:
            request: _Fork | _Ended = line.receive()
            if isinstance(request, _Ended):
                line.send(os.waitstatus_to_exitcode(os.waitpid(request.pid, 0)[1]))
                continue
            descriptors = line.receive_descriptors(request.descriptors + 1)
            if len(list(_TASKS.iterdir())) > 1:  # a fork would be without the other threads, but with their locks
                line.send(None)
                continue
            pid = os.fork()
            if pid == 0:
                _live(line, request, descriptors)
            for each in descriptors:
                os.close(each)
            hold = os.pidfd_open(pid)
            line.send(pid)
            line.send_descriptors([hold])
            os.close(hold)


def _live(line: Line, request: _Fork, descriptors: Sequence[int]) -> NoReturn:
    """What a forked process does, from its first moment to its last."""
    code = 1
    try:
        line.close()
        *inherited, log = descriptors
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        os.close(log)
        if "numpy" in sys.modules:  # Python's own generator sees to it itself
            sys.modules["numpy"].random.seed()
        importlib.import_module(request.module).main(*inherited, *request.arguments)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
