"""Chooses the executor for what a user asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlnbench.errors import require
from vlnbench.rollout.agent_names import is_small
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.executor import Executor
from vlnbench.rollout.processes import MAX_DEFAULT_COUNT, Processes
from vlnbench.rollout.replicas import LocalLauncher, Replicas
from vlnbench.util.machine import cores, gpus
from vlnbench.util.threads import explicit

SMALL_AGENTS = 8
"""At most, where nobody says how many: each is a process with PyTorch of 250 MB."""

SMALL_ENVS = 2
"""Simulators of each: one steps while its agent acts on what the other has seen."""

SMALL_EPISODES = 16
"""As many for each, or starting it takes longer than it saves."""

SMALL_BYTES = 32 * 2**20
"""Weights of a checkpoint that is as small as those that agents bring."""


def small_agents(name: str, options: AgentOptions, episodes: int | None) -> int:
    """How many agents, in processes of their own, are faster than one here: one per core where the agent brings
    or loads a small model, on the CPU; 0: one here. episodes: to be run, None where that is not known."""
    count = min(cores(), SMALL_AGENTS)
    if episodes is not None:
        count = min(count, episodes // SMALL_EPISODES)
    if count < 2 or explicit() or not (is_small(name) or _loads_little(options)):
        return 0
    on_cpu = options.device_choice == "cpu" or (options.device_choice == "auto" and not gpus())
    return count if on_cpu else 0


def _loads_little(options: AgentOptions) -> bool:
    """Whether the checkpoint is one that an agent brings, or a folder of as few weights."""
    checkpoint = getattr(options, "checkpoint", None)
    if checkpoint is None:
        return False
    sizes = [path.stat().st_size for path in Path(checkpoint).glob("model*.safetensors")]  # not adapters
    return is_small(str(checkpoint)) or 0 < sum(sizes) <= SMALL_BYTES


def start_processes(
    preload: str,
    envs: int | None,
    agents: int = 0,
    gpus: Sequence[str] = (),
    most: int | None = None,
    max_batch: int | None = None,
) -> Executor:
    """Simulators on this machine, with one agent in this process or with several in processes of their own.

    preload: import string of what will make the environments. envs: simulators of an agent; None: chosen for it.
    most: never more than these. agents: processes of agents; 0: one agent, here. gpus: names of GPUs for them.
    max_batch: episodes that an agent acts on at once, where that is known.
    """
    if agents:
        count = envs or max(1, min(MAX_DEFAULT_COUNT, cores() // agents))
        count = min(count, most or count)
        return Replicas(LocalLauncher(count, preload, gpus, agents), agents, count)
    return Processes(envs, preload, most, max_batch)


def start_on_ray(preload: str, address: str, agents: int | None, envs: int | None, gpu: bool) -> Executor:
    """Agents with simulators on a Ray cluster; see `vlnbench.rollout.ray.open_replicas`."""
    executor: Executor = require("vlnbench.rollout.ray", "cluster").open_replicas(
        address, agents, envs, preload, gpu
    )
    return executor
