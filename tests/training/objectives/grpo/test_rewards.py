from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.training.objectives.grpo import doubles
from vlnbench.errors import RunError, UsageError
from vlnbench.interfaces import Action, Episode, Trajectory
from vlnbench.training.objectives.grpo.rewards import Completion, Rewards, Walked, _rehearsal

FORWARD, LEFT, RIGHT = Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT
DOUBLES = f"{doubles.__name__}:"


def value(text: str, kind: str, completion: Completion) -> float:
    made = Rewards([text], kind)  # type: ignore[arg-type]
    return made.total(made.of(completion, "a test"))


def test_matches_by_hand() -> None:
    wanted = (FORWARD, LEFT, LEFT, FORWARD)
    completion = Completion(1.0, (FORWARD, RIGHT, LEFT), wanted)
    assert value("match-exact", "steps", Completion(1.0, wanted, wanted)) == 1.0
    assert value("match-exact", "steps", completion) == 0.0
    assert value("match-decayed", "steps", completion) == pytest.approx((1 + 0.25) / (1 + 0.5 + 0.25 + 0.125))
    longer = Completion(1.0, (*wanted, FORWARD), wanted)
    assert value("match-decayed", "steps", longer) == pytest.approx(1.875 / 1.9375)


def test_walks_by_hand() -> None:
    """3 m to go: the right walk takes all 12 steps of 0.25 m and stops, the wrong one stops after the first."""
    right, wrong = _rehearsal("episodes")
    for name, near, far in (
        ("success", 1.0, 1.0),  # 2.75 m from the goal is a success, too
        ("success-near", 1.0, 1 - 2.75 / 3),
        ("spl", 1.0, 1.0),
        ("near", 1.0, 1 - 2.75 / 6),
        ("format", 1.0, 1.0),
        ("ndtw", 1.0, None),
        ("sdtw", 1.0, None),
    ):
        assert value(name, "episodes", right) == pytest.approx(near), name
        if far is not None:
            assert value(name, "episodes", wrong) == pytest.approx(far), name
    assert 0 < value("ndtw", "episodes", wrong) < 1


def test_what_is_near_depends_on_the_benchmark() -> None:
    """A success 2.75 m from the goal, where 6 m are near enough; and one beyond 3 m is never below a failure."""
    (_, wrong) = _rehearsal("episodes")
    assert wrong.walk is not None
    wide = replace(wrong, walk=replace(wrong.walk, success_m=6.0))
    assert value("success-near", "episodes", wide) == pytest.approx(1 - 2.75 / 6)
    assert value("success", "episodes", wide) == 1.0


def test_the_end_without_a_way_counts_as_the_farthest_that_is_known() -> None:
    (right, _) = _rehearsal("episodes")
    assert right.walk is not None
    moved = right.walk.trajectory
    lost = Trajectory(moved.poses, moved.actions, moved.collided, (*moved.goal_distances[:-1], math.inf))
    from vlnbench.evaluation.metrics import score

    walk = Walked(lost, right.walk.episode, score(lost, right.walk.episode), 3.0)
    assert walk.distance == 3.0


def test_weights_and_own_functions_are_added() -> None:
    made = Rewards(["format:0.5", f"{DOUBLES}actions:2"], "steps")
    completion = Completion(1.0, (FORWARD, LEFT), (LEFT,))
    assert made.of(completion, "a test") == [1.0, 2.0]
    assert made.total([1.0, 2.0]) == 4.5


@pytest.mark.parametrize(
    ("texts", "kind", "message"),
    [
        (["sucess"], "episodes", "unknown reward 'sucess': did you mean 'success'"),
        (["success"], "steps", "--rewards success: nothing to be rewarded there with --rollouts steps"),
        (["match-exact"], "episodes", "--rewards match-exact: nothing to be rewarded"),
        (["format:0"], "steps", "--rewards format:0: expected a weight"),
        (["format:nan"], "steps", "--rewards format:nan: expected a weight"),
        (["format", "format:2"], "steps", "--rewards: format stands twice"),
        ([f"{DOUBLES}undefined"], "steps", "it returned nan; expected a finite number"),
        ([f"{DOUBLES}broken"], "steps", "it raised KeyError: 'speed'"),
        ([f"{DOUBLES}missing"], "steps", "has no 'missing'"),
        ([f"{DOUBLES}CUT_OFF"], "steps", "expected a function from a Completion"),
    ],
)
def test_bad_rewards_are_one_line_before_anything_runs(texts: list[str], kind: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Rewards(texts, kind)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_reward_that_breaks_later_names_the_rollout() -> None:
    made = Rewards([f"{DOUBLES}actions"], "steps")
    wrong = Completion(1.0, None, ())  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"reward .*actions: for window 3 it raised TypeError"):
        made.of(wrong, "window 3")


def test_rewards_that_look_at_reference_walks_say_so() -> None:
    assert Rewards(["success", "ndtw", "sdtw:2"], "episodes").needs_ground_truth == ["ndtw", "sdtw"]
    assert isinstance(_rehearsal("episodes")[0].walk.episode, Episode)  # type: ignore[union-attr]
