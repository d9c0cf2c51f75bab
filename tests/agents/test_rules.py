from __future__ import annotations

import numpy as np
import pytest

from agents.rules import BlindAgent, ReadAndLookAgent, WanderAgent, free_ways, plan
from tests.synthetic import heading
from vlnbench.conformance import AgentConformance
from vlnbench.interfaces import Action, Agent, Episode, Observation

F, L, R, S = Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT, Action.STOP


def episode(text: str) -> Episode:
    return Episode("1", "1", "s.glb", (0.0, 0.0, 0.0), tuple(heading(0.0)), text)  # type: ignore[arg-type]


def seeing(depth: np.ndarray, step: int = 0) -> Observation:  # type: ignore[type-arg]
    return Observation("", step, depth=depth.astype(np.float32))


class TestBlind(AgentConformance):
    def make_agent(self) -> Agent:
        return BlindAgent()


class TestWander(AgentConformance):
    def make_agent(self) -> Agent:
        return WanderAgent()


class TestReadAndLook(AgentConformance):
    def make_agent(self) -> Agent:
        return ReadAndLookAgent()


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("Turn left and walk into the hallway. Stop.", [L] * 6),
        ("Bear right, then go into the kitchen. Wait.", [R] * 2),
        ("Turn around. Walk past the bed on your left. Stop near the bed on the right.", [L] * 12),
        ("Walk straight and take the second door on the left. Stop.", [L] * 6),
        ("Go ahead. Stop.", []),
    ],
)
def test_turns_are_read(text: str, turns: list[Action]) -> None:
    actions = plan(text)
    assert [action for action in actions if action != F] == turns
    assert 30 <= actions.count(F) <= 37
    assert S not in actions


def test_the_blind_agent_stops_when_its_plan_is_done() -> None:
    agent = BlindAgent()
    agent.begin(episode("Turn left. Go on."), 0)
    done = [agent.act_one(Observation("", step)) for step in range(50)]
    assert done == [L] * 6 + [F] * 37 + [S] * 7


def open_at(part: int) -> np.ndarray:  # type: ignore[type-arg]
    depth = np.full((60, 90), 0.2)
    depth[:, 30 * part : 30 * (part + 1)] = 5.0
    return depth


def test_free_ways_are_those_of_the_image_thirds() -> None:
    assert free_ways(open_at(0).astype(np.float32)) == pytest.approx((5.0, 0.2, 0.2))
    assert free_ways(open_at(1).astype(np.float32)) == pytest.approx((0.2, 5.0, 0.2))


def test_wander_turns_to_the_open_side_and_keeps_to_it() -> None:
    agent = WanderAgent()
    agent.begin(episode(""), 0)
    assert [agent.act_one(seeing(open_at(part))) for part in (1, 2, 0, 1, 0)] == [F, R, R, F, L]
    assert [agent.act_one(seeing(open_at(1))) for _ in range(36)] == [F] * 35 + [S]


def test_read_and_look_turns_away_from_walls() -> None:
    agent = ReadAndLookAgent()
    agent.begin(episode("Go on."), 0)
    assert [agent.act_one(seeing(open_at(part))) for part in (1, 2, 0, 1)] == [F, R, L, F]
