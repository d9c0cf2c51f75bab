"""How many agents are started where nobody says how many."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlnbench.rollout import start
from vlnbench.rollout.agent_options import AgentOptions, CheckpointOptions, DeviceOptions
from vlnbench.util.machine import Gpu


@pytest.mark.parametrize(
    ("name", "options", "episodes", "cores", "found", "agents"),
    [
        ("streamvln-tiny", AgentOptions(), None, 2, [], 2),
        ("cma-tiny", DeviceOptions(device="cpu"), 900, 64, [Gpu("card", 80000)], 8),
        ("streamvln-tiny", AgentOptions(), None, 2, [Gpu("card", 80000)], 0),
        ("streamvln-tiny", DeviceOptions(device="cuda"), None, 2, [], 0),
        ("streamvln-tiny", AgentOptions(), None, 1, [], 0),
        ("streamvln-tiny", AgentOptions(), 31, 2, [], 0),
        ("streamvln-tiny", AgentOptions(), 60, 4, [], 3),
        ("streamvln", AgentOptions(), None, 2, [], 0),
        ("my_module:Mine", AgentOptions(), None, 2, [], 0),
        ("streamvln", CheckpointOptions(checkpoint=Path("streamvln-tiny")), None, 2, [], 2),
        ("streamvln", CheckpointOptions(checkpoint=Path("small")), None, 2, [], 2),
        ("streamvln", CheckpointOptions(checkpoint=Path("large")), None, 2, [], 0),
        ("streamvln", CheckpointOptions(checkpoint=Path("adapters")), None, 2, [], 0),
        ("streamvln", CheckpointOptions(checkpoint=Path("absent")), None, 2, [], 0),
    ],
)
def test_agents_with_a_small_model(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    options: AgentOptions,
    episodes: int | None,
    cores: int,
    found: list[Gpu],
    agents: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"small/model": start.SMALL_BYTES, "large/model": start.SMALL_BYTES + 1, "adapters/adapter_model": 9}
    for place, size in sizes.items():
        path = tmp_path / f"{place}.safetensors"
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(size)
    monkeypatch.setattr(start, "cores", lambda: cores)
    monkeypatch.setattr(start, "gpus", lambda: found)
    monkeypatch.setattr(start, "explicit", lambda: None)
    assert start.small_agents(name, options, episodes) == agents
    monkeypatch.setattr(start, "explicit", lambda: "OMP_NUM_THREADS")
    assert start.small_agents(name, options, episodes) == 0
