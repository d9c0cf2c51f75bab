"""Every shipped agent with a network, whole, on the pretended GPU: no tensor on the wrong device, same actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.table import AGENTS, FAMILIES
from tests.cuda.pretended import pretended
from tests.fakes import make_episode
from vlnbench.interfaces import Action, Agent, Observation, Pose
from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.rollout.agents import load_agent
from vlnbench.traits import KeepsMemory
from vlnbench.util.loading import import_string

SLOTS, STEPS = 3, 6
PRESETS = {
    "streamvln-tiny": "",
    "cma-tiny": "",
    "seq2seq-tiny": "",
    "janusvln": "janusvln-tiny",
    "qwen_vl": "qwen-vl-tiny",
    "navila": "navila-tiny",
    "uninavid": "uninavid-tiny",
}
"""By agent the small network that it is given; empty: its own."""
KEEP = ("streamvln-tiny", "janusvln")
"""Agents whose episodes take memory of a GPU from turn to turn."""


def make(name: str, folder: Path, device: str) -> Agent:
    kind = import_string(AGENTS[name].options)
    given = {"device": device, "max_batch": SLOTS, "dtype": "float32", "max_new_tokens": 6}
    options: CheckpointOptions = kind(**{key: given[key] for key in given if key in kind.__dataclass_fields__})
    if PRESETS[name]:
        base = folder / "base"
        if not base.exists():
            spec = import_string(FAMILIES[AGENTS[name].family])
            spec.load_checkpoints().create(PRESETS[name], base, ["Walk past the sofa and stop."], 0)
        options = replace(options, checkpoint=base)
    return load_agent(name, options)


def seen(agent: Agent, slot: int, step: int) -> Observation:
    size = (agent.expects.height or 480, agent.expects.width or 640)
    noise = np.random.default_rng(100 * slot + step)
    return Observation(
        instruction=f"Walk past {slot + 1} sofas and stop.",
        step=step,
        rgb=noise.integers(0, 256, (*size, 3), dtype=np.uint8),
        depth=noise.random(size, dtype=np.float32) * 10,
        pose=Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
    ).for_agent(agent.sensors)


def walk(agent: Agent) -> list[Mapping[int, Action]]:
    for slot in range(SLOTS):
        agent.reset(slot, make_episode(slot).for_agent(), slot)
    running, done = set(range(SLOTS)), []
    for step in range(STEPS):
        done.append(agent.act({slot: seen(agent, slot, step) for slot in sorted(running)}))
        running -= {slot for slot, action in done[-1].items() if action is Action.STOP}
        if not running:
            break
    agent.close()
    return done


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", PRESETS)
def test_agents_act_on_a_gpu_as_on_the_cpu(name: str, tmp_path: Path) -> None:
    expected = walk(make(name, tmp_path, "cpu"))
    with pretended() as device:
        agent = make(name, tmp_path, "cuda")
        assert agent.identity["device"] == "cuda"
        if name in KEEP:
            assert isinstance(agent, KeepsMemory)
            assert agent.episode_bytes > 0
        device.reset()
        assert walk(agent) == expected
        assert sum(device.launches.values()) > 0
