"""The fullest steps are rehearsed at the start, and no more episodes are run at once than they leave room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from agents.scripted import RandomAgent
from tests.cuda.pretended import pretended
from tests.cuda.test_agents import KEEP, make, walk
from tests.rollout.test_engine import plan, timeless
from vlnbench.errors import GpuMemoryError
from vlnbench.evaluation.evaluate import Execution, evaluate
from vlnbench.evaluation.records import read_attempts
from vlnbench.interfaces import Action, Episode, Observation
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.processes import Processes, Rehearsed, rehearse, room
from vlnbench.traits import GrowsOnGpu

GB = 10**9
FREE = 40 * GB


class Growing(RandomAgent):
    """Keeps 1 GB of every step of an episode up to the fifth, and takes 2 GB in a pass for each episode."""

    identity: ClassVar[Mapping[str, Any]] = {"device": "cuda"}
    fullest_step = 4
    card: ClassVar[dict[str, int]] = {}
    sizes: ClassVar[list[int]] = []
    passing = 2 * GB

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[int, int] = {}
        self.asked = 0

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        self.take(-self.steps.pop(slot, 0) * GB)
        super().reset(slot, episode, seed)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        for slot in observations:
            if self.steps.setdefault(slot, 0) < 5:
                self.steps[slot] += 1
                self.take(GB)
        self.sizes.append(len(observations))
        self.asked += len(observations)
        self.take(self.passing * len(observations))
        self.take(-self.passing * len(observations))
        return super().act(observations)

    def take(self, count: int) -> None:
        self.card["now"] += count
        self.card["most"] = max(self.card["most"], self.card["now"])
        if self.card["now"] > FREE:
            self.card["now"] -= count
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


class Larger(Growing):
    passing = 36 * GB


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    card = {"now": 0, "most": 0}
    answers = {
        "memory_allocated": lambda *_: card["now"],
        "memory_reserved": lambda *_: card["now"],
        "max_memory_allocated": lambda *_: card["most"],
        "reset_peak_memory_stats": lambda *_: card.update(most=card["now"]),
        "mem_get_info": lambda *_: (FREE - card["now"], FREE),
    }
    with pretended():
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer, raising=False)
        Growing.card = card
        Growing.sizes.clear()
        yield card


def run(name: str, out: Path, envs: int, max_batch: int) -> Processes:
    with Processes(envs, max_batch=max_batch) as processes:
        facts = processes.load(f"{__name__}:{name}", AgentOptions())
        processes.set_up(EnvSetup("tests.faulty:FaultyEnv", (), facts.sensors))
        evaluate(plan(f"{__name__}:{name}"), processes, out, execution=Execution(Limits(max_batch)))
    return processes


def test_as_many_episodes_as_a_rehearsal_allows(gpu: dict[str, int], tmp_path: Path) -> None:
    """5 GB are kept and 2 GB taken in a pass; of 36 GB (90 % of 40) that is six simulators and three at once."""
    processes = run("Growing", tmp_path / "rehearsed", envs=7, max_batch=8)
    assert processes.simulators.count == 6
    (attempt,) = read_attempts(tmp_path / "rehearsed")
    line = next(each for each in attempt["agent"] if each.startswith("rehearsed"))
    assert "keeps 5.00 GB and a pass takes 2.00 more, of 40.0 free: 6 simulators, up to 3 episodes at once" in line
    assert line.endswith("there is no room for 7 and 7")
    assert attempt["memory"][0]["phases"]["rehearsal"] == 7 * GB
    assert "gpu_memory" not in attempt
    assert max(Growing.sizes) <= 3
    gpu.update(now=0, most=0)
    fewer = run("Growing", tmp_path / "fewer", envs=2, max_batch=1)
    assert fewer.simulators.count == 2
    assert timeless(tmp_path / "fewer") == timeless(tmp_path / "rehearsed")


def test_one_episode_for_which_there_is_no_room_ends_before_any_is_run(
    gpu: dict[str, int], tmp_path: Path
) -> None:
    with pytest.raises(GpuMemoryError, match="when one episode was rehearsed: CUDA out of memory"):
        run("Larger", tmp_path / "none", envs=2, max_batch=2)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (Rehearsed(0, 0), (4, 8), (4, 4)),
        (Rehearsed(0, 9 * GB), (12, 8), (12, 4)),
        (Rehearsed(9 * GB, GB), (4, 8), (3, 3)),
        (Rehearsed(35 * GB, 30 * GB), (4, 8), (1, 1)),  # what was rehearsed fits, by however little
    ],
)
def test_room_by_hand(found: Rehearsed, wanted: tuple[int, int], expected: tuple[int, int]) -> None:
    assert room(found, FREE, *wanted) == expected


@pytest.mark.parametrize(
    "name",
    [
        "streamvln-tiny",
        "navila",
        "uninavid",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("janusvln", "qwen_vl")),
    ],
)
def test_a_rehearsal_changes_nothing_of_what_comes_after_it(name: str, tmp_path: Path) -> None:
    expected = walk(make(name, tmp_path, "cpu"))
    agent = make(name, tmp_path, "cpu")
    assert isinstance(agent, GrowsOnGpu)
    counts = {key: value for key, value in vars(agent).items() if isinstance(value, int)}
    steps: list[str] = []
    memory: Any = SimpleNamespace(allocated=0, phases={"rehearsal": 0}, begin=steps.append)
    rehearse(agent, agent.fullest_step if name in KEEP else min(agent.fullest_step, 9), memory)
    assert steps == ["rehearsal", "evaluation"]
    assert {key: value for key, value in vars(agent).items() if isinstance(value, int)} == counts
    assert walk(agent) == expected
