from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import PlaneEnv, make_episode
from vlnbench.interfaces import Action, Observation

pytest.importorskip("gymnasium", reason="gymnasium is not installed (extra gym)")

from gymnasium.utils.env_checker import check_env

from vlnbench.gymnasium_env import SUCCESS_REWARD, VLNEnv, make


class SeeingPlane(PlaneEnv):
    """The plane with frames that show the step."""

    def _observe(self) -> Observation:
        rgb = np.full((6, 8, 3), self.count % 256, dtype=np.uint8)
        depth = np.full((6, 8), 2.5, dtype=np.float32)
        return replace(super()._observe(), rgb=rgb, depth=depth)


def made(**options: Any) -> VLNEnv:
    episodes = [make_episode(i, distance=4.0 + i) for i in range(3)]
    return VLNEnv(SeeingPlane(), episodes, ("rgb", "depth"), **options)


def test_gymnasium_finds_nothing_wrong_with_it() -> None:
    check_env(made(render_mode="rgb_array"), skip_render_check=True)


def test_rewards_are_the_way_to_the_goal_and_success() -> None:
    """Straight ahead into the goal: what is walked and the reward of success, no more."""
    env = made()
    seen, info = env.reset(options={"episode_id": "1"})
    assert seen["instruction"] == "Walk 5.0 meters ahead."
    assert (seen["rgb"].shape, seen["depth"].shape) == ((6, 8, 3), (6, 8, 1))
    assert info == {"episode_id": "1", "distance_to_goal": 5.0}
    rewards = [env.step(Action.MOVE_FORWARD)[1] for _ in range(12)]
    assert rewards == [pytest.approx(0.25)] * 12
    turned = env.step(Action.TURN_LEFT)
    assert turned[1:4] == (pytest.approx(0.0), False, False)
    _, reward, terminated, truncated, info = env.step(Action.STOP)
    assert (reward, terminated, truncated) == (pytest.approx(SUCCESS_REWARD), True, False)
    assert info["scores"]["success"] == 1.0
    assert info["scores"]["distance_to_goal"] == pytest.approx(2.0)
    assert info["scores"]["steps"] == len(env.trajectory.actions) == 14


def test_a_stop_too_far_away_and_the_end_of_the_budget() -> None:
    env = made(max_steps=2)
    env.reset(options={"episode_id": "0"})
    _, reward, terminated, _, info = env.step(Action.STOP)
    assert (reward, terminated, info["scores"]["success"]) == (0.0, True, 0.0)
    env.reset(options={"episode_id": "0"})
    assert env.step(Action.TURN_LEFT)[2:4] == (False, False)
    *_, terminated, truncated, info = env.step(Action.TURN_LEFT)
    assert (terminated, truncated, info["scores"]["failure"]) == (False, True, "never_stopped")


def test_seeds_draw_episodes() -> None:
    env = made()
    drawn = [env.reset(seed=seed)[1]["episode_id"] for seed in range(12)]
    assert drawn == [env.reset(seed=seed)[1]["episode_id"] for seed in range(12)]
    assert set(drawn) == {"0", "1", "2"}
    with pytest.raises(KeyError):
        env.reset(options={"episode_id": "9"})


def test_cameras_and_the_tilting_body_are_in_the_spaces() -> None:
    env = VLNEnv(SeeingPlane(), [make_episode(1)], ())
    assert set(env.observation_space.spaces) == set(env.reset()[0]) == {"instruction"}
    assert env.action_space.n == 4
    plane = SeeingPlane()
    plane.embodiment = replace(plane.embodiment, tilt_deg=30.0)
    assert VLNEnv(plane, [make_episode(1)]).action_space.n == 6
    plane.closed = False
    VLNEnv(plane, [make_episode(1)]).close()
    assert plane.closed


def test_episodes_without_goals_give_no_reward() -> None:
    with pytest.raises(ValueError, match="goals for each"):
        VLNEnv(PlaneEnv(), [replace(make_episode(1), goals=())])


@pytest.mark.slow
def test_houses_are_walked(houses: Path) -> None:
    env = make("houses-r2r", "val_unseen", sensors=("rgb", "depth"), data_root=houses, sim="embedded")
    try:
        seen, info = env.reset(seed=0)
        assert env.observation_space.contains(seen)
        start = info["distance_to_goal"]
        total = 0.0
        for action in (Action.TURN_LEFT, Action.MOVE_FORWARD, Action.MOVE_FORWARD):
            seen, reward, *_, info = env.step(action)
            assert env.observation_space.contains(seen)
            total += reward
        assert total == pytest.approx(start - info["distance_to_goal"])
    finally:
        env.close()
