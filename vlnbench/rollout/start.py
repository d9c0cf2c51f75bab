"""Chooses the executor for what a user asks for."""

from __future__ import annotations

from collections.abc import Sequence

from vlnbench.errors import require
from vlnbench.rollout.executor import Executor
from vlnbench.rollout.processes import Processes
from vlnbench.rollout.replicas import LocalLauncher, Replicas


def start_processes(preload: str, envs: int, agents: int = 0, gpus: Sequence[str] = ()) -> Executor:
    """Simulators on this machine, with one agent in this process or with several in processes of their own.

    preload: import string of what will make the environments. envs: simulators of an agent. agents: processes of
    agents; 0: one agent, here. gpus: names of GPUs for them.
    """
    if agents:
        return Replicas(LocalLauncher(envs, preload, gpus, agents), agents, envs)
    return Processes(envs, preload)


def start_on_ray(preload: str, address: str, agents: int | None, envs: int | None, gpu: bool) -> Executor:
    """Agents with simulators on a Ray cluster; see `vlnbench.rollout.ray.open_replicas`."""
    executor: Executor = require("vlnbench.rollout.ray", "cluster").open_replicas(
        address, agents, envs, preload, gpu
    )
    return executor
