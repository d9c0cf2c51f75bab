"""Handles of simulator processes."""

from __future__ import annotations

import os
from typing import Any

from vlnbench.rollout.channel import Frames, Observed, Ready, Setup, open_shared_memory
from vlnbench.util.child import Child

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Simulator processes share the cores; a pool of threads in each would only get in the others' way."""


class Worker(Child):
    """A simulator process.

    ready: it has made its environment. preload: import string of something to call at once, while the arguments
    of the environment are not known yet.
    """

    def __init__(self, preload: str = "") -> None:
        self._memory = open_shared_memory()
        self.ready = False
        self._setup: Setup
        self._frames: Frames
        threads = {name: "1" for name in _ONE_THREAD if name not in os.environ}
        arguments = (self._memory, preload)
        super().__init__("simulator", "vlnbench.rollout.worker_main", arguments, [self._memory], threads)

    def set_up(self, setup: Setup) -> None:
        """Send what the environment is made from; `Ready` is the answer."""
        self.ready, self._setup = False, setup
        self.send(setup)

    def receive(self) -> Any:
        """The next message; an `Observed` comes as an `Observation`. Raises EOFError if the process has died."""
        message = super().receive()
        if isinstance(message, Ready):
            self._frames = Frames(self._memory, message.embodiment, self._setup.sensors)
            self.ready = True
        if isinstance(message, Observed):
            return self._frames.take(message)
        return message

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._memory)
