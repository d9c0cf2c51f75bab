"""A simulator process as the engine sees it: where it comes from, what is sent to it, what it answers."""

from __future__ import annotations

import os
from typing import Any

from vlnbench.rollout.simulators.channel import Frames, Observed, Ready, Setup, Watched, open_shared_memory
from vlnbench.util.processes.child import Child
from vlnbench.util.processes.fork_server import ForkServer, can_fork

START_TIMEOUT_S = 600.0
"""A simulator that takes so long before it is ready will not get ready."""

_WHAT, _MODULE = "simulator", "vlnbench.rollout.simulators.main"

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Simulator processes share the cores; a pool of threads in each would only get in the others' way."""


def start_fork_server(preload: str) -> ForkServer | None:
    """What simulator processes come from, already importing; None where there can be none.

    preload: as of `Worker`.
    """
    if not can_fork():
        return None
    return ForkServer(_WHAT, f"{_MODULE}:load_ahead", preload, _one_thread(), START_TIMEOUT_S)


def _one_thread() -> dict[str, str]:
    return {name: "1" for name in _ONE_THREAD if name not in os.environ}


class Worker(Child):
    """A simulator process.

    ready: it has made its environment. preload: import string of the factory that it will be asked for, to be
    imported while the arguments of the environment are not known yet; empty if that is not known either.
    fork_server: where it comes from, None: a new interpreter.
    """

    def __init__(self, preload: str = "", fork_server: ForkServer | None = None) -> None:
        self._memory = open_shared_memory()
        self.ready = False
        self._setup: Setup
        self._frames: Frames
        super().__init__(_WHAT, _MODULE, (preload,), [self._memory], _one_thread(), fork_server)

    def set_up(self, setup: Setup) -> None:
        """Send what the environment is made from; the answer is `Ready`, after any number of `Preparing`."""
        self.ready, self._setup = False, setup
        self.send(setup)

    def receive(self) -> Any:
        """The next message; an `Observed` comes as an `Observation`, also inside of `Watched`.

        Raises EOFError if the process has died.
        """
        message = super().receive()
        if isinstance(message, Ready):
            self._frames = Frames(self._memory, message.embodiment, self._setup.sensors)
            self.ready = True
        if isinstance(message, Observed):
            return self._frames.take(message)
        if isinstance(message, Watched):
            return Watched(self._frames.take(message.observed))
        return message

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._memory)
