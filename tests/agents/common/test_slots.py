from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.base import EpisodeAgent
from agents.common.slots import LARGE_BYTES
from tests.fakes import make_set
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Observation

SEEN = Observation("Go.", 0)


class Holds(EpisodeAgent):
    """Writes to everything that it holds, and says how often it did."""

    of_class: list[int] = []  # noqa: RUF012 - as people write it

    def __init__(self) -> None:  # without super().__init__()
        self.net = torch.nn.GRUCell(2, 2)
        self.net.register_buffer("state", torch.zeros(2))
        self.net.register_buffer("table", torch.zeros(LARGE_BYTES // 4))
        self.net.cache = []
        self.numbers, self.draws = np.zeros(2), np.random.default_rng(0)
        self.generator = torch.Generator()
        self.nested: dict[str, Any] = {"list": []}
        self.alias = self.nested["list"]
        self.method = self.count

    def count(self) -> int:
        self.alias.append(1)
        return len(self.nested["list"])

    def act_one(self, observation: Observation) -> Action:
        self.net.state += 1
        self.numbers += 1
        self.of_class.append(1)
        self.net.cache.append(1)
        counted = {
            self.method(),
            len(self.of_class),
            len(self.net.cache),
            int(self.net.state[0]),
            int(self.numbers[0]),
        }
        self.counted = max(counted) if len(counted) == 1 else -1
        self.drawn = (float(self.draws.random()), float(torch.rand(1, generator=self.generator)))
        return Action.MOVE_FORWARD


def act(agent: EpisodeAgent, slots: int = 3, steps: int = 2) -> list[Any]:
    for slot in range(slots):
        agent.reset(slot, make_set("set", 1).episodes[0], 7)
    for _ in range(steps):
        agent.act(dict.fromkeys(range(slots), SEEN))
    return [agent._running[slot] for slot in range(slots)]


def test_an_episode_has_its_own_of_whatever_self_and_class_hold() -> None:
    agent = Holds()
    for _ in range(2):  # a slot begins each time as the agent was made
        running = act(agent)
        assert [each.counted for each in running] == [2, 2, 2]
        assert len({each.drawn for each in running}) == 1
    assert agent.alias == [] == Holds.of_class
    assert not hasattr(agent, "counted")


def test_weights_are_shared() -> None:
    agent = Holds()
    first, *_ = act(agent)
    assert first.net is not agent.net
    assert first.net.weight_hh is agent.net.weight_hh
    assert first.net.table is agent.net.table
    assert first.net.state is not agent.net.state


def test_what_shared_names_is_shared() -> None:
    class Client(Holds):
        shared = ("file", "numbers")

        def __init__(self) -> None:
            super().__init__()
            self.file, self.other = io.BytesIO(), Path("x")

    agent = Client()
    first, *_ = act(agent)
    assert first.file is agent.file
    assert first.numbers is agent.numbers


def test_a_name_without_a_tuple_is_one_name() -> None:
    class Alone(Holds):
        shared = "numbers"  # type: ignore[assignment]

    agent = Alone()
    assert act(agent, slots=1, steps=0)[0].numbers is agent.numbers


class Learns(Holds):
    def act_one(self, observation: Observation) -> Action:
        with torch.no_grad():
            self.net.bias_hh += 1
        return Action.STOP


class Opens(Holds):
    def __init__(self) -> None:
        super().__init__()
        self.log = (number for number in range(3))


class Compiled(Holds):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.compile(self.net)


class Absent(Holds):
    shared = ("client",)


class Misspelled(EpisodeAgent):
    def act_on(self, observation: Observation) -> Action:
        return Action.STOP


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Absent, "agent Absent: shared names 'client', which is not in self"),
        (Learns, "agent Learns: a tensor (6,) of a module in self was changed by an episode"),
        (
            Opens,
            "agent Opens: self.log cannot be copied for each episode (cannot pickle",
        ),
        (Compiled, "agent Compiled: self.net cannot be copied for each episode (it is compiled"),
        (
            Misspelled,
            "agent Misspelled: define act_one(self, observation)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of compiling
def test_what_would_mix_episodes_is_refused(kind: type[EpisodeAgent], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        act(kind())
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
