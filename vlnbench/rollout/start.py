"""Chooses the executor for what a user asks for."""

from __future__ import annotations

from collections.abc import Sequence

from vlnbench.errors import require
from vlnbench.rollout.executor import Executor
from vlnbench.rollout.processes import MAX_DEFAULT_COUNT, Processes
from vlnbench.rollout.replicas import LocalLauncher, Replicas
from vlnbench.util.machine import cores


def start_processes(
    preload: str, envs: int | None, agents: int = 0, gpus: Sequence[str] = (), most: int | None = None
) -> Executor:
    """Simulators on this machine, with one agent in this process or with several in processes of their own.

    preload: import string of what will make the environments. envs: simulators of an agent; None: chosen for it.
    most: never more than these. agents: processes of agents; 0: one agent, here. gpus: names of GPUs for them.
    """
    if agents:
        count = envs or max(1, min(MAX_DEFAULT_COUNT, cores() // agents))
        count = min(count, most or count)
        return Replicas(LocalLauncher(count, preload, gpus, agents), agents, count)
    return Processes(envs, preload, most)


def start_on_ray(preload: str, address: str, agents: int | None, envs: int | None, gpu: bool) -> Executor:
    """Agents with simulators on a Ray cluster; see `vlnbench.rollout.ray.open_replicas`."""
    executor: Executor = require("vlnbench.rollout.ray", "cluster").open_replicas(
        address, agents, envs, preload, gpu
    )
    return executor
