"""Every shipped agent with a network, whole, on the pretended GPU: no tensor on the wrong device, same actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.common.decoders.generate import Generator
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


def make(name: str, folder: Path, device: str, **more: Any) -> Agent:
    kind = import_string(AGENTS[name].options)
    given = {"device": device, "max_batch": SLOTS, "dtype": "float32", "max_new_tokens": 6}
    options: CheckpointOptions = kind(**{key: given[key] for key in given if key in kind.__dataclass_fields__})
    options = replace(options, **more)
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


@pytest.mark.parametrize("name", ["streamvln-tiny", "janusvln", "qwen_vl", "navila", "uninavid"])
def test_agents_act_with_graphs_as_without(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And wait for the GPU at most once for every pass, and once for every look at frames."""
    passes = 0
    keep = Generator._keep

    def counting(own: Generator, *passed: Any) -> None:
        nonlocal passes
        passes += 1
        keep(own, *passed)

    expected = walk(make(name, tmp_path, "cpu"))
    monkeypatch.setattr(Generator, "_keep", counting)
    with pretended() as device:
        agent = make(name, tmp_path, "cuda", cuda_graphs=True)
        assert agent.identity["cuda_graphs"] is True
        device.reset()
        assert walk(agent) == expected
        assert device.launches["graph"] > 0
        assert device.blocking.total() <= passes + STEPS, +device.blocking
        assert device.waits.total() <= STEPS, +device.waits
