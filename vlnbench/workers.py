"""Handles of simulator processes: start, talk, end, and find out what one died of."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from typing import Any

from vlnbench.channel import Frames, Observed, Ready, Setup, open_shared_memory

_START = (
    "import sys; fd, memory, preload, *sys.path = sys.argv[1:]; "
    "from vlnbench.worker_main import main; main(int(fd), int(memory), preload)"
)

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Simulator processes share the cores; a pool of threads in each would only get in the others' way."""

_LAST_LINES, _LAST_BYTES = 6, 16384

_GRACE_S = 0.25
"""Time for a hanging process to say where it is, and before a SIGKILL is believed to have been meant for the
simulator alone: whoever ends a whole job kills its processes one by one."""

_END_S = 10.0


class Worker:
    """A simulator process. It may die at any moment: `send` ignores that, `receive` raises EOFError.

    ready: it has made its environment. preload: import string of something to call at once, while the arguments
    of the environment are not known yet.
    """

    def __init__(self, preload: str = "") -> None:
        self._connection, theirs = Pipe()
        self._memory = open_shared_memory()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        self.ready = self.closed = False
        self._setup: Setup
        self._frames: Frames
        numbers = (theirs.fileno(), self._memory)
        with theirs:
            # Not multiprocessing's spawn, which imports the main module again and adds a helper process.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, numbers), preload, *sys.path],
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**dict.fromkeys(_ONE_THREAD, "1"), **os.environ},
            )

    def fileno(self) -> int:
        """What to wait for: readable when there is a message, or the process has died."""
        return self._connection.fileno()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def set_up(self, setup: Setup) -> None:
        """Send what the environment is made from; `Ready` is the answer."""
        self.ready, self._setup = False, setup
        self.send(setup)

    def send(self, message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(message)

    def poll(self, limit_s: float) -> bool:
        """Wait for a message, or for the end of the process; whether there is one."""
        return self._connection.poll(limit_s)

    def receive(self) -> Any:
        """The next message; an `Observed` comes as an `Observation`. Raises EOFError if the process has died."""
        try:
            message = self._connection.recv()
        except ConnectionResetError as error:
            raise EOFError from error
        if isinstance(message, Ready):
            self._frames = Frames(self._memory, message.embodiment, self._setup.sensors)
            self.ready = True
        if isinstance(message, Observed):
            return self._frames.take(message)
        return message

    def cause_of_death(self) -> str:
        """Exit code or signal, and what it last said. Call when the connection has ended."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it has closed the connection and lives on
            self._process.kill()
            code = self._process.wait()
        ending = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            time.sleep(_GRACE_S)
            ending += " (out of memory, or from outside)"
        return "; ".join([f"the simulator process ended: {ending}", *_last_words(self._written(0))])

    def stack(self) -> str:
        """Where a hanging process is, innermost call first; empty if it cannot tell."""
        before = os.fstat(self._log.fileno()).st_size
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(_GRACE_S)
        return "; ".join(self._written(before)[1 : _LAST_LINES + 1])

    def close(self) -> None:
        """End the process at once: it holds nothing to lose, and a simulator's own ending may hang."""
        if self.closed:
            return
        self.closed = True
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._log.close()
        os.close(self._memory)

    def _written(self, start: int) -> list[str]:
        """Lines of stdout and stderr from a byte on."""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), _LAST_BYTES, max(start, size - _LAST_BYTES))
        lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
        return [line for line in lines if line]


def _last_words(lines: list[str]) -> list[str]:
    """The last lines; of a crash, its name and the innermost calls, which come first."""
    crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if crash is None:
        return lines[-_LAST_LINES:]
    stack = next((i for i in range(crash, len(lines)) if lines[i].startswith("Current thread")), crash)
    return [lines[crash], *lines[stack + 1 : stack + _LAST_LINES]]
