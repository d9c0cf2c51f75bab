"""Agents that decide on several actions at once: the same episodes, fewer frames."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.fakes import PlaneEnv, make_episode
from vlnbench.interfaces import Action, Observation
from vlnbench.rollout.episode import SLOT, run_episode

PLAN = [Action.MOVE_FORWARD, Action.TURN_LEFT, Action.MOVE_FORWARD, Action.MOVE_FORWARD, Action.STOP]


class Ahead:
    privileged = False
    sensors = frozenset({"rgb"})

    def __init__(self, group: int) -> None:
        self.group, self.looks, self.done = group, list[int](), 0

    def reset(self, *_: object) -> None:
        self.looks, self.done = [], 0

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        self.looks.append(observations[SLOT].step)
        self.done += 1
        return {SLOT: PLAN[self.done - 1]}

    def ahead(self, slot: int) -> list[Action]:
        more = PLAN[self.done : self.done + self.group - 1]
        self.done += len(more)
        return more


class Skipping(PlaneEnv):
    def __init__(self) -> None:
        super().__init__()
        self.unseen: list[Action] = []

    def step_unseen(self, action: Action) -> Observation:
        self.unseen.append(action)
        return self.step(action)


@pytest.mark.parametrize("max_steps", [2, 3, 4, 20])
def test_the_episode_is_the_same_and_only_frames_that_are_looked_at_are_drawn(max_steps: int) -> None:
    one_by_one, ahead, env = Ahead(1), Ahead(3), Skipping()
    wanted = run_episode(PlaneEnv(), one_by_one, make_episode(0), seed=0, max_steps=max_steps).trajectory  # type: ignore[arg-type]
    found = run_episode(env, ahead, make_episode(0), seed=0, max_steps=max_steps).trajectory  # type: ignore[arg-type]
    assert found == wanted
    assert ahead.looks == list(range(0, len(found.actions), 3))
    drawn = len(found.actions) - len(env.unseen)
    assert drawn == len(ahead.looks) - 1  # a frame after each group but the last, and the first by the reset
