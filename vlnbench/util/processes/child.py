"""Child processes at the other end of a pipe: start, talk, end, and find out what one died of.

`Child` is the parent's side; `Line` and `live_and_die_with_parent` are the child's. `fork_server` starts many that
are alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from vlnbench.util.processes.watchdog import HANGS
from vlnbench.util.visible import one_line

_START = (
    "import importlib, json, sys; module, arguments, *sys.path = sys.argv[1:]; "
    "importlib.import_module(module).main(*json.loads(arguments))"
)

_LAST_LINES, _LAST_BYTES = 6, 16384

_GRACE_S = 0.25
"""Time for a hanging process to say where it is, and before a SIGKILL is believed to have been meant for the
child alone: whoever ends a whole job kills its processes one by one."""

_END_S = 10.0

STOPPED_S = 30.0
"""A process that something has stopped for so long is taken for lost."""

_PR_SET_PDEATHSIG = 1


class Process(Protocol):
    """The part of `subprocess.Popen` that is used here."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...

    def send_signal(self, sig: int) -> None: ...


class Forks(Protocol):
    """What starts processes faster than a new interpreter does; see `vlnbench.util.processes.fork_server`."""

    def fork(
        self, module: str, descriptors: Sequence[int], arguments: Sequence[object], log: int
    ) -> Process | None:
        """A process that runs `module.main(*descriptors, *arguments)` and writes to `log`; None: it cannot."""
        ...


class Child:
    """A process that runs `module.main(descriptor of a pipe, *descriptors, *arguments)`.

    It may die at any moment: `send` ignores that, `receive` raises EOFError. what: what to call it in messages;
    descriptors: files that it inherits beside the pipe; environment: variables set beside this process's own,
    unless it comes from a fork server, which has its own.
    """

    def __init__(
        self,
        what: str,
        module: str,
        arguments: Sequence[object],
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        fork_server: Forks | None = None,
    ) -> None:
        self.closed = self.deaf = False
        self._what = what
        self._connection, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        with theirs:
            inherited = (theirs.fileno(), *descriptors)
            forked = fork_server and fork_server.fork(module, inherited, arguments, self._log.fileno())
            # Not multiprocessing's spawn, which imports the main module again and adds a helper process.
            self._process: Process = forked or subprocess.Popen(
                [sys.executable, "-c", _START, module, json.dumps([*inherited, *arguments]), *sys.path],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, **(environment or {})},
            )

    def fileno(self) -> int:
        """What to wait for: readable when there is a message, or the process has died."""
        return self._connection.fileno()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def send(self, message: object) -> None:
        """Send a message; one to a process that has died is lost, and `receive` says so."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(message)

    def send_descriptors(self, descriptors: Sequence[int]) -> None:
        """Hand over open files, after a message that says how many; OSError if the process has died."""
        with socket.fromfd(self.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as line:
            reduction.sendfds(line, list(descriptors))

    def receive_descriptors(self, count: int) -> list[int]:
        """Open files that the process hands over. Raises EOFError if it has died."""
        return _received(self.fileno(), count)

    def poll(self, limit_s: float) -> bool:
        """Wait for a message, or for the end of the process; whether there is one."""
        return self._connection.poll(limit_s)

    def answers(self, limit_s: float) -> bool:
        """Wait for a message, or for the end of the process. False: neither came in time, or it was stopped.

        It is `deaf` then: a late answer would be taken for the next one, so nothing more may be asked.
        """
        end, stops = time.monotonic() + limit_s, Stops()
        while not self.deaf and not self.poll(max(0.0, min(1.0, end - time.monotonic()))):
            self.deaf = stops.long(self) or time.monotonic() >= end
        return not self.deaf

    @property
    def stopped(self) -> bool:
        """Whether something (SIGSTOP) has stopped the process; one that a debugger looks at is not."""
        try:
            facts = Path(f"/proc/{self._process.pid}/stat").read_bytes()
        except OSError:  # gone, or not Linux
            return False
        return facts.rpartition(b")")[2].split()[0] == b"T"

    def receive(self) -> Any:
        """The next message. Raises EOFError if the process has died."""
        try:
            return self._connection.recv()
        except ConnectionResetError as error:
            raise EOFError from error

    def exit_code(self) -> int:
        """Call when the connection has ended. Negative: the signal that killed it."""
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it has closed the connection and lives on
            self._process.kill()
            return self._end()

    def _end(self) -> int:
        """Wait for a process that was killed. One that a file system holds may outlive that, and is left alone."""
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    def cause_of_death(self) -> str:
        """Exit code or signal, and what it last said. Call when the connection has ended."""
        code = self.exit_code()
        ending = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            time.sleep(_GRACE_S)
            ending += " (out of memory, or from outside)"
        return "; ".join([f"the {self._what} process ended: {ending}", *_last_words(self._written(0))])

    def stack(self) -> str:
        """Where a hanging process is, innermost call first; empty if it cannot tell."""
        before = os.fstat(self._log.fileno()).st_size
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(_GRACE_S)
        return "; ".join(self._written(before)[1 : _LAST_LINES + 1])

    def close(self) -> None:
        """End the process at once: it holds nothing to lose, and its own ending may hang."""
        if self.closed:
            return
        self.closed = True
        self._process.kill()
        self._end()
        self._connection.close()
        self._log.close()

    def _written(self, start: int) -> list[str]:
        """Lines of stdout and stderr from a byte on."""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), _LAST_BYTES, max(start, size - _LAST_BYTES))
        lines = [one_line(line) for line in text.decode(errors="replace").splitlines()]
        return [line for line in lines if line]


class Stops:
    """For how long a process has been found stopped. One that is stopped with this one goes on with it."""

    def __init__(self) -> None:
        self._seen, self._last = 0.0, time.monotonic()

    def long(self, child: Child) -> bool:
        """Whether it has been stopped all the time for `STOPPED_S`; to be asked every second or so."""
        now = time.monotonic()
        self._seen = self._seen + min(2.0, now - self._last) if child.stopped else 0.0
        self._last = now
        return self._seen >= STOPPED_S


def _last_words(lines: list[str]) -> list[str]:
    """The last lines; of a crash or of the watchdog, the first one and the innermost calls, which come first."""
    crashes = [i for i, line in enumerate(lines) if line.startswith(("Fatal Python error", HANGS))]
    if not crashes:
        return lines[-_LAST_LINES:]
    crash = crashes[-1]
    of_crash, of_main = "Current thread", "Thread 0x"  # the thread that watches is current; the main one is last
    hangs = lines[crash].startswith(HANGS)
    stacks = [i for i in range(crash, len(lines)) if lines[i].startswith(of_main if hangs else of_crash)] or [
        crash
    ]
    stack = stacks[-1] if hangs else stacks[0]
    return [lines[crash], *lines[stack + 1 : stack + _LAST_LINES]]


class HungUp(BaseException):
    """The parent is gone."""


class Line:
    """The pipe to the parent. Raises HungUp if it is closed there."""

    def __init__(self, descriptor: int) -> None:
        self._connection: Connection[Any, Any] = Connection(descriptor)

    def send(self, message: object) -> None:
        """Send a message. Raises HungUp."""
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise HungUp from error

    def receive(self) -> Any:
        """Wait for the next message. Raises HungUp."""
        try:
            return self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise HungUp from error

    def send_descriptors(self, descriptors: Sequence[int]) -> None:
        """Hand over open files, after a message that says how many. Raises HungUp."""
        try:
            with socket.fromfd(self._connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as line:
                reduction.sendfds(line, list(descriptors))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise HungUp from error

    def receive_descriptors(self, count: int) -> list[int]:
        """Open files that the parent hands over. Raises HungUp."""
        try:
            return _received(self._connection.fileno(), count)
        except (EOFError, ConnectionResetError) as error:
            raise HungUp from error

    def close(self) -> None:
        """Let go of the pipe."""
        self._connection.close()


def _received(descriptor: int, count: int) -> list[int]:
    with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as line:
        return list(reduction.recvfds(line, count))


def live_and_die_with_parent() -> None:
    """Signals to stop are for the parent, which ends this process; if the parent is killed, so is this one.

    A crash, or SIGUSR1 from the parent that found this one hanging, leaves Python stacks on stderr.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    die_with_parent(os.getppid())


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, whatever that dies of. parent: its number, read before.

    Elsewhere than on Linux the closed pipe ends it, once it listens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended meanwhile
            os.kill(os.getpid(), signal.SIGKILL)
