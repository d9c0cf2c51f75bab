from __future__ import annotations

from collections import Counter

import pytest

from agents.base import EpisodeAgent
from agents.scripted import ForwardAgent, GroundTruthReplayAgent, RandomAgent, ShortestPathAgent, StopAgent
from agents.table import AGENTS
from tests.fakes import make_episode
from vlnbench.conformance import AgentConformance
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Episode, Observation
from vlnbench.rollout.agents import load_agent


class TestStop(AgentConformance):
    def make_agent(self) -> Agent:
        return StopAgent()


class TestForward(AgentConformance):
    def make_agent(self) -> Agent:
        return ForwardAgent()


class TestRandom(AgentConformance):
    def make_agent(self) -> Agent:
        return RandomAgent()


class TestShortestPath(AgentConformance):
    def make_agent(self) -> Agent:
        return ShortestPathAgent()


class TestReplay(AgentConformance):
    def make_agent(self) -> Agent:
        return GroundTruthReplayAgent()

    def make_episode(self) -> Episode:
        return make_episode(1)


@pytest.mark.parametrize("name", [name for name, listed in AGENTS.items() if "scripted" in listed.agent])
def test_every_scripted_agent_in_the_table_loads(name: str) -> None:
    assert isinstance(load_agent(name), EpisodeAgent)


def test_random_draws_with_the_documented_frequencies() -> None:
    agent = RandomAgent()
    counts: Counter[Action] = Counter()
    for seed in range(4000):
        agent.reset(0, make_episode(1).for_agent(), seed)
        counts.update(agent.act({0: Observation("", 0)}).values())
    for action, share in zip(RandomAgent._ACTIONS, RandomAgent._WEIGHTS, strict=True):
        assert counts[action] / 4000 == pytest.approx(share, abs=0.025)


def test_random_seeds_give_different_episodes() -> None:
    agent = TestRandom()
    runs = [tuple(agent.run(RandomAgent(), (0,), steps=20, seed=seed)[0]) for seed in range(5)]
    assert len(set(runs)) == 5


def test_replay_without_ground_truth_is_a_user_error() -> None:
    with pytest.raises(UsageError, match="gt-replay needs the split's _gt file"):
        GroundTruthReplayAgent().reset(0, make_episode(1).for_agent(), 0)
