"""Starts replicas: the protocol, and replicas on this machine.

Replicas on a Ray cluster: `vlnbench.rollout.ray`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any, Literal, Protocol

from vlnbench.util.child import Child
from vlnbench.util.watchdog import EXIT_CODE

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


class ReplicaLostError(Exception):
    """A replica has ended. guilty: what it was running may have done that; otherwise its machine was lost."""

    def __init__(self, reason: str, status: Literal["error", "timeout"] = "error", guilty: bool = True) -> None:
        super().__init__(reason, status, guilty)
        self.reason, self.status, self.guilty = reason, status, guilty


class Remote(Protocol):
    """The parent's end of one replica. placed: it has a process; otherwise it waits for a machine with room."""

    @property
    def placed(self) -> bool: ...

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of `replica_main.Replica`; one at a time."""
        ...

    def result(self) -> Any:
        """What the call returned. Raises what it raised, and ReplicaLostError if the replica is no more."""
        ...

    def close(self) -> None:
        """End it at once. Safe to call twice."""
        ...


class Launcher(Protocol):
    """Starts replicas somewhere."""

    def open(self, index: int) -> Remote:
        """Start the process of a replica."""
        ...

    def wait(self, remotes: Sequence[Remote], limit_s: float) -> list[Remote]:
        """Those whose calls have ended; waits for the first."""
        ...

    def close(self) -> None:
        """Leave the place where replicas are; they have been closed."""
        ...


class LocalRemote:
    """A replica on this machine."""

    placed = True

    def __init__(self, envs: int, preload: str, folder: str, environment: Mapping[str, str]) -> None:
        self._child = Child(
            "agent", "vlnbench.rollout.replica_main", (envs, preload, folder), environment=environment
        )

    def fileno(self) -> int:
        return self._child.fileno()

    def call(self, method: str, *arguments: Any) -> None:
        self._child.send((method, arguments))

    def result(self) -> Any:
        try:
            answer = self._child.receive()
        except EOFError:
            status: Literal["error", "timeout"] = "timeout" if self._child.exit_code() == EXIT_CODE else "error"
            raise ReplicaLostError(self._child.cause_of_death(), status) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._child.close()


class LocalLauncher:
    """Replicas on this machine.

    envs: simulators of each; preload: as of `engine.Worker`. gpus: names for CUDA_VISIBLE_DEVICES, for the
    replicas in turn; none: as they are.
    """

    def __init__(self, envs: int, preload: str = "", gpus: Sequence[str] = ()) -> None:
        self._envs, self._preload, self._gpus = envs, preload, gpus

    def open(self, index: int) -> LocalRemote:
        environment = {GPU_VARIABLE: self._gpus[index % len(self._gpus)]} if self._gpus else {}
        return LocalRemote(self._envs, self._preload, os.getcwd(), environment)

    def wait(self, remotes: Sequence[Remote], limit_s: float) -> list[Remote]:
        return wait(remotes, limit_s)  # type: ignore[arg-type, return-value]

    def close(self) -> None:
        """Nothing to leave."""
