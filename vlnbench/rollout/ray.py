"""Replicas on the machines of a Ray cluster (`--ray ADDRESS`).

Each replica is the process that it is on one machine, held by an actor that passes calls on. So a crash of the
agent shows as on one machine, and the end of an actor means that its machine is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.rollout.replicas import LocalRemote, Remote, ReplicaLostError, Replicas

_MAX_DEFAULT_ENVS = 4

_GONE = (
    exceptions.RayActorError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.OutOfMemoryError,
)
"""What Ray raises when the machine of an actor is lost, or the actor to a shortage of memory there."""


def open_replicas(address: str, agents: int | None, envs: int | None, preload: str, gpu: bool) -> Replicas:
    """Replicas on a cluster that runs already.

    agents: how many; None: one for each GPU, without GPUs one for each machine. envs: simulators of each; None: as
    many as a machine has CPUs for, at most 4. gpu: whether agents are to have a GPU each, where there are any.
    Raises UsageError if no cluster answers or none of its machines has room for a replica.
    """
    _connect(address)
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines) if gpu else 0
    count = agents or gpus or len(machines)
    if envs is None:
        best = max(machines, key=lambda machine: float(machine.get("CPU", 0)))
        replicas = int(best.get("GPU", 0)) if gpus else -(-count // len(machines))
        envs = max(1, min(_MAX_DEFAULT_ENVS, int(best.get("CPU", 0)) // max(1, replicas) - 1))
    needs = {"CPU": envs + 1, "GPU": min(1, gpus)}
    if not any(all(machine.get(name, 0) >= n for name, n in needs.items()) for machine in machines):
        ray.shutdown()
        raise UsageError(
            f"--ray {address}: no machine of the cluster has {needs['CPU']} CPUs{' and a GPU' if gpus else ''}, "
            "as an agent and its simulators need; choose a smaller --envs"
        )
    return Replicas(RayLauncher(envs, preload, needs), count, envs)


def _connect(address: str) -> None:
    """Connect to a cluster. Raises UsageError if none answers."""
    handler = signal.getsignal(signal.SIGTERM)  # Ray sets its own
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"--ray {address}: no Ray cluster answers there ({reason})") from error
    finally:
        signal.signal(signal.SIGTERM, handler)


class RayLauncher:
    """Replicas that Ray places. needs: CPU and GPU of each."""

    def __init__(self, envs: int, preload: str, needs: Mapping[str, int]) -> None:
        self._arguments = (envs, preload, os.getcwd())
        self._holder = ray.remote(_Holder).options(
            num_cpus=needs["CPU"], num_gpus=needs["GPU"], max_restarts=0, scheduling_strategy="SPREAD"
        )

    def open(self, index: int) -> RayRemote:
        return RayRemote(self._holder.remote(*self._arguments))

    def wait(self, remotes: Sequence[Remote], limit_s: float) -> list[Remote]:
        calls = {remote.answer: remote for remote in remotes if isinstance(remote, RayRemote)}
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=limit_s)
        return [calls[each] for each in ready]

    def close(self) -> None:
        ray.shutdown()


class RayRemote:
    """The parent's end of a replica on some machine. answer: what Ray will know the result of the call by."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._begun = actor.call.remote("", ())
        self.answer: Any

    @property
    def placed(self) -> bool:
        return bool(ray.wait([self._begun], timeout=0)[0])

    def call(self, method: str, *arguments: Any) -> None:
        self.answer = self._actor.call.remote(method, arguments)

    def result(self) -> Any:
        try:
            answer = ray.get(self.answer)
        except _GONE as error:
            reason = " ".join(str(error).split())
            raise ReplicaLostError(f"the machine of an agent was lost: {reason}", guilty=False) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        with contextlib.suppress(exceptions.RayError):
            ray.kill(self._actor)


class _Holder:
    """The actor: holds a replica's process on its machine. folder: where the user works, if it is there too."""

    def __init__(self, envs: int, preload: str, folder: str) -> None:
        self._replica = LocalRemote(envs, preload, folder if Path(folder).is_dir() else os.getcwd(), {})

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Pass a call on; an exception that the parent knows is returned, not raised. No method: no call."""
        if not method:
            return None
        self._replica.call(method, *arguments)
        try:
            return self._replica.result()
        except (UsageError, RunError, GpuMemoryError, ReplicaLostError) as error:
            return error
