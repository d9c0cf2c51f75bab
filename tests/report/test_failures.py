from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from tests.fakes import make_episode
from tests.report.made import row_of, walk
from vlnbench.evaluation.metrics import FAILURES
from vlnbench.interfaces import Action
from vlnbench.report.failures import Ending, how_ended, kinds

F, L, S = Action.MOVE_FORWARD, Action.TURN_LEFT, Action.STOP
EPISODE = make_episode(0, distance=10.0)  # straight ahead
AROUND = [L] * 12


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([F] * 29 + [S], "success"),  # 2.75 m away
        ([F] * 28 + [S], "stopped_short"),  # 3.00 m away: not closer than 3 m
        ([F] * 29, "passed_goal"),
        ([F] * 54 + [S], "passed_goal"),  # 3.5 m behind the goal
        ([F] * 20 + [S], "stopped_short"),  # 5.00 m away, half of the start's distance
        ([F] * 19 + [S], "never_near"),
        ([F] * 20 + AROUND + [F] * 60 + [S], "stopped_short"),  # the closest pose counts
        ([S], "never_near"),
        ([*AROUND, *[F] * 30, S], "never_near"),
        ([F] * 10 + [L] * 490, "out_of_steps"),  # turns at the end, but does not try to move
        ([*AROUND, *[F] * 488], "out_of_steps"),
    ],
)
def test_endings(actions: list[int], expected: str) -> None:
    assert how_ended([row_of(EPISODE, walk(EPISODE, actions))])[0] == expected


def test_an_agent_that_pushes_at_a_wall_until_the_end_is_stuck() -> None:
    trajectory = walk(EPISODE, [F] * 40, blocked=frozenset(range(10, 40)))
    assert how_ended([row_of(EPISODE, trajectory)])[0] == "stuck"


def test_a_goal_without_a_path_is_unreachable_whatever_the_agent_did() -> None:
    trajectory = walk(EPISODE, [F] * 40 + [S])
    trajectory = replace(trajectory, goal_distances=(float("inf"),) * len(trajectory.poses))
    assert how_ended([row_of(EPISODE, trajectory)])[0] == "unreachable"


@pytest.mark.parametrize("status", ["error", "timeout", "unscored"])
def test_episodes_without_scores(status: str) -> None:
    assert how_ended([row_of(EPISODE, None, status, "it broke")])[0] == status


def test_kinds_refine_those_of_the_summary_and_are_all_defined() -> None:
    found = kinds(3.0)
    assert tuple(found) == get_args(Ending)
    assert {kind.part_of for kind in found.values()} - {None} == set(FAILURES)
    assert "closer than 2.5 m" in kinds(2.5)["success"].definition
