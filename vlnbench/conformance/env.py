"""The contract of `Env` as tests to inherit."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import numpy as np
import pytest

from vlnbench.interfaces import Action, Env, Episode, Observation, Pose
from vlnbench.traits import SkipsFrames


class EnvConformance:
    """Every `Env` passes these. Override `make_env` and `make_episode`; `env` must offer rgb and depth."""

    def make_env(self) -> Env:
        """The environment under test, with the sensors rgb and depth."""
        raise NotImplementedError

    def make_episode(self) -> Episode:
        """An episode whose start has at least a step of free space in some direction."""
        raise NotImplementedError

    def test_implements_the_protocol(self) -> None:
        env = self.make_env()
        assert isinstance(env, Env)
        assert env.simulator
        env.close()

    def test_reset_places_the_agent_at_the_start(self) -> None:
        env, episode = self.make_env(), self.make_episode()
        observation = env.reset(episode)
        assert observation.step == 0
        assert observation.instruction == episode.instruction
        assert not observation.collided
        assert observation.pose is not None
        np.testing.assert_allclose(observation.pose.position, episode.start_position, atol=1e-5)
        dot = abs(float(np.dot(observation.pose.rotation, episode.start_rotation)))
        assert math.isclose(dot, 1.0, abs_tol=1e-5)
        env.close()

    def test_frames_have_the_size_and_type_of_the_camera(self) -> None:
        env = self.make_env()
        observation = env.reset(self.make_episode())
        body = env.embodiment
        depth_camera = body.depth_camera or body.camera
        assert observation.rgb is not None
        assert observation.depth is not None
        assert observation.rgb.shape == (body.camera.height, body.camera.width, 3)
        assert observation.rgb.dtype == np.uint8
        assert observation.depth.shape == (depth_camera.height, depth_camera.width)
        assert observation.depth.dtype == np.float32
        low, high = env.embodiment.depth_range_m
        assert low <= observation.depth.min()
        assert observation.depth.max() <= high
        env.close()

    def test_turns_change_the_heading_by_the_turn_angle(self) -> None:
        env = self.make_env()
        before = pose_of(env.reset(self.make_episode()))
        left = pose_of(env.step(Action.TURN_LEFT))
        right = pose_of(env.step(Action.TURN_RIGHT))
        turn = math.radians(env.embodiment.turn_deg)
        assert math.isclose(math.remainder(left.yaw - before.yaw, math.tau), turn, abs_tol=1e-4)
        assert math.isclose(math.remainder(right.yaw - before.yaw, math.tau), 0.0, abs_tol=1e-4)
        env.close()

    def test_forward_moves_along_the_heading_or_collides(self) -> None:
        env = self.make_env()
        pose = pose_of(env.reset(self.make_episode()))
        moved = False
        for _ in range(math.ceil(360 / env.embodiment.turn_deg)):
            observation = env.step(Action.MOVE_FORWARD)
            after = pose_of(observation)
            step = np.subtract(after.position, pose.position)[[0, 2]]
            assert np.linalg.norm(step) <= env.embodiment.forward_m + 1e-3
            if not observation.collided and np.linalg.norm(step) > 0.9 * env.embodiment.forward_m:
                heading = np.array([-math.sin(pose.yaw), -math.cos(pose.yaw)])
                assert step @ heading > 0.85 * env.embodiment.forward_m
                moved = True
            pose = pose_of(env.step(Action.TURN_LEFT))
        assert moved
        env.close()

    def test_each_observation_is_of_its_own_step(self) -> None:
        env, episode = self.make_env(), self.make_episode()
        actions = [Action.TURN_LEFT, Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT]
        seen, first = [env.reset(episode)], []
        for action in actions:
            first.append([each.copy() for each in images(seen[-1])])
            seen.append(env.step(action))
            assert seen[-1].step == len(seen) - 1
            assert seen[-1].instruction == episode.instruction
            np.testing.assert_array_equal(
                images(seen[-1])[0], env.render(pose_of(seen[-1])), "not seen from its pose"
            )
        for observation, as_it_was in zip(seen, first, strict=False):
            for image, before in zip(images(observation), as_it_was, strict=True):
                np.testing.assert_array_equal(image, before, "a later step wrote to an observation")
        env.close()

    def test_depth_is_in_meters_along_the_optical_axis(self) -> None:
        """Straight ahead it falls by as much as a step covers."""
        env = self.make_env()
        if (env.embodiment.depth_camera or env.embodiment.camera).pitch_deg:
            pytest.skip("the camera does not look straight ahead")
        low, high = env.embodiment.depth_range_m
        before, fallen = env.reset(self.make_episode()), []
        for _ in range(2 * math.ceil(360 / env.embodiment.turn_deg)):
            after = env.step(Action.MOVE_FORWARD)
            covered = math.dist(pose_of(before).position, pose_of(after).position)
            was, now = ahead(before), ahead(after)
            if not after.collided and low < now and was < high and covered > 0.9 * env.embodiment.forward_m:
                fallen.append((was - now) / covered)
            before = env.step(Action.TURN_LEFT)
        assert not fallen or 0.7 < median(fallen) < 1.4, "depth ahead does not fall by what a step covers"
        env.close()

    def test_walls_stop_it_and_it_says_so(self) -> None:
        env, forward = self.make_env(), self.make_env().embodiment.forward_m
        before = pose_of(env.reset(self.make_episode()))
        for count in range(400):
            observation = env.step(Action.MOVE_FORWARD)
            after = pose_of(observation)
            if observation.collided:
                assert count > 0 or math.dist(before.position, after.position) < forward
                break
            covered = math.dist(before.position, after.position)
            assert covered > 0.9 * forward, f"it went {covered:.2f} m of {forward} and did not collide"
            before = after
        else:
            raise AssertionError("400 steps straight on, and nothing in the way")
        env.close()

    def test_stop_leaves_the_agent_in_place(self) -> None:
        env = self.make_env()
        before = pose_of(env.reset(self.make_episode()))
        observation = env.step(Action.STOP)
        assert pose_of(observation) == before
        assert observation.step == 1
        assert not observation.collided
        env.close()

    def test_the_same_actions_give_the_same_episode(self) -> None:
        env, episode = self.make_env(), self.make_episode()
        actions = [Action.TURN_LEFT, Action.MOVE_FORWARD, Action.MOVE_FORWARD, Action.TURN_RIGHT]
        first = [env.reset(episode), *map(env.step, actions)]
        second = [env.reset(episode), *map(env.step, actions)]
        for a, b in zip(first, second, strict=True):
            assert (a.pose, a.collided) == (b.pose, b.collided)
            for image, again in ((a.rgb, b.rgb), (a.depth, b.depth)):
                assert image is not None
                assert again is not None
                np.testing.assert_array_equal(image, again)
        env.close()

    def test_steps_that_nobody_sees_lead_to_the_same_place(self) -> None:
        env, episode = self.make_env(), self.make_episode()
        if isinstance(env, SkipsFrames):
            actions = [Action.TURN_LEFT, Action.MOVE_FORWARD, Action.MOVE_FORWARD]
            seen = [env.reset(episode), *map(env.step, actions), env.step(Action.TURN_RIGHT)]
            unseen = [env.reset(episode), *map(env.step_unseen, actions), env.step(Action.TURN_RIGHT)]
            for a, b in zip(seen, unseen, strict=True):
                assert (a.step, a.pose, a.collided) == (b.step, b.pose, b.collided)
            assert all(each.rgb is None and each.depth is None for each in unseen[1:-1])
            np.testing.assert_array_equal(seen[-1].rgb, unseen[-1].rgb)  # type: ignore[arg-type]
            np.testing.assert_array_equal(seen[-1].depth, unseen[-1].depth)  # type: ignore[arg-type]
        env.close()

    def test_geodesic_distance_is_a_distance(self) -> None:
        env, episode = self.make_env(), self.make_episode()
        env.reset(episode)
        start, goal = episode.start_position, episode.goals[0]
        there = env.geodesic_distance(start, [goal])
        assert math.isclose(there, env.geodesic_distance(goal, [start]), rel_tol=0.02)
        assert there >= math.dist(start, goal) - 0.05
        assert env.geodesic_distance(start, [goal, start]) <= 0.05
        env.close()

    def test_the_map_shows_where_the_agent_stands(self) -> None:
        env, episode = self.make_env(), self.make_episode()
        pose = pose_of(env.reset(episode))
        plan = env.top_down_map(pose.position[1])
        column = int((pose.position[0] - plan.origin[0]) / plan.meters_per_pixel)
        row = int((pose.position[2] - plan.origin[1]) / plan.meters_per_pixel)
        assert plan.navigable[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2].any()
        assert not plan.navigable.all()
        env.close()

    def test_closing_twice_is_harmless(self) -> None:
        env = self.make_env()
        env.reset(self.make_episode())
        env.close()
        env.close()


def pose_of(observation: Observation) -> Pose:
    """The pose in an observation, which every environment reports."""
    assert observation.pose is not None
    return observation.pose


def images(observation: Observation) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Its RGB and depth."""
    assert observation.rgb is not None
    assert observation.depth is not None
    return observation.rgb, observation.depth


def ahead(observation: Observation) -> float:
    """Depth in the middle of the image, in meters."""
    _, depth = images(observation)
    height, width = depth.shape
    return float(depth[(height - 1) // 2 : height // 2 + 1, (width - 1) // 2 : width // 2 + 1].mean())
