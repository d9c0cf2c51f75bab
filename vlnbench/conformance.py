"""The contracts of `Agent`, `Env`, `Executor` and `ModelFamily` as tests to inherit.

A test class derives from one of the mixins and says how to make the thing under test; pytest then collects the
inherited tests. Only plain asserts are used, so the module imports without pytest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vlnbench import __version__
from vlnbench.errors import UsageError
from vlnbench.interfaces import (
    Action,
    ActsAhead,
    Agent,
    Describes,
    Env,
    Episode,
    Observation,
    Pose,
    Remarks,
    Reports,
    Represents,
    Scalar,
    SkipsFrames,
    StandsFor,
    Trajectory,
    Watches,
)
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.episode import SLOT, Outcome, Rollout, Task
from vlnbench.rollout.executor import EnvSetup, Executor, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.training.conformance import FamilyConformance as FamilyConformance  # among its like


class EnvConformance:
    """Every `Env` passes these. Override `make_env` and `make_episode`; `env` must offer rgb and depth."""

    def make_env(self) -> Env:
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
        before = _pose(env.reset(self.make_episode()))
        left = _pose(env.step(Action.TURN_LEFT))
        right = _pose(env.step(Action.TURN_RIGHT))
        turn = math.radians(env.embodiment.turn_deg)
        assert math.isclose(math.remainder(left.yaw - before.yaw, math.tau), turn, abs_tol=1e-4)
        assert math.isclose(math.remainder(right.yaw - before.yaw, math.tau), 0.0, abs_tol=1e-4)
        env.close()

    def test_forward_moves_along_the_heading_or_collides(self) -> None:
        env = self.make_env()
        pose = _pose(env.reset(self.make_episode()))
        moved = False
        for _ in range(math.ceil(360 / env.embodiment.turn_deg)):
            observation = env.step(Action.MOVE_FORWARD)
            after = _pose(observation)
            step = np.subtract(after.position, pose.position)[[0, 2]]
            assert np.linalg.norm(step) <= env.embodiment.forward_m + 1e-3
            if not observation.collided and np.linalg.norm(step) > 0.9 * env.embodiment.forward_m:
                heading = np.array([-math.sin(pose.yaw), -math.cos(pose.yaw)])
                assert step @ heading > 0.85 * env.embodiment.forward_m
                moved = True
            pose = _pose(env.step(Action.TURN_LEFT))
        assert moved
        env.close()

    def test_stop_leaves_the_agent_in_place(self) -> None:
        env = self.make_env()
        before = _pose(env.reset(self.make_episode()))
        observation = env.step(Action.STOP)
        assert _pose(observation) == before
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
        pose = _pose(env.reset(episode))
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


class AgentConformance:
    """Every `Agent` passes these. Override `make_agent`; `make_episode` and `observe` fit most agents."""

    def make_agent(self) -> Agent:
        raise NotImplementedError

    def make_episode(self) -> Episode:
        return Episode(
            episode_id="1",
            trajectory_id="1",
            scene_id="scene.glb",
            start_position=(0.0, 0.0, 0.0),
            start_rotation=(0.0, 0.0, 0.0, 1.0),
            instruction="Walk past the sofa and stop at the door.",
            goals=((0.0, 0.0, -3.0),),
        )

    def observe(self, agent: Agent, step: int) -> Observation:
        """An observation with every sensor filled in, cut down to what the agent may see."""
        camera = agent.expects
        height, width = camera.height or 48, camera.width or 64
        noise = np.random.default_rng(step)
        full = Observation(
            instruction=self.make_episode().instruction,
            step=step,
            rgb=noise.integers(0, 256, (height, width, 3), dtype=np.uint8),
            depth=noise.random((height, width), dtype=np.float32) * 10,
            pose=Pose((0.0, 0.0, -0.25 * step), (0.0, 0.0, 0.0, 1.0)),
            oracle_action=Action.MOVE_FORWARD,
        )
        return full.for_agent(agent.sensors)

    def run(self, agent: Agent, slots: tuple[int, ...], steps: int = 5, seed: int = 7) -> dict[int, list[Action]]:
        """Actions per slot, all slots in the same episode; a slot ends when it stops."""
        episode = self.make_episode() if agent.privileged else self.make_episode().for_agent()
        for slot in slots:
            agent.reset(slot, episode, seed)
        taken: dict[int, list[Action]] = {slot: [] for slot in slots}
        for step in range(steps):
            running = [slot for slot in slots if Action.STOP not in taken[slot]]
            if not running:
                break
            actions = agent.act({slot: self.observe(agent, step) for slot in running})
            assert set(actions) == set(running), "one action for every slot that was given, and no other"
            for slot, action in actions.items():
                taken[slot].append(Action(action))
        return taken

    def test_implements_the_protocol(self) -> None:
        assert isinstance(self.make_agent(), Agent)

    def test_acts_in_every_slot(self) -> None:
        agent = self.make_agent()
        assert all(self.run(agent, (0, 3)).values())
        agent.close()

    def test_a_slot_does_not_feel_its_neighbors(self) -> None:
        agent = self.make_agent()
        alone = self.run(agent, (0,))[0]
        together = self.run(agent, (0, 1, 2))
        assert list(together.values()) == [alone] * 3
        agent.close()

    def test_the_same_seed_gives_the_same_actions(self) -> None:
        first, second = self.make_agent(), self.make_agent()
        assert self.run(first, (0,)) == self.run(second, (0,))
        first.close()
        second.close()

    def test_its_identity_is_what_a_manifest_can_hold(self) -> None:
        agent = self.make_agent()
        assert json.loads(json.dumps(dict(agent.identity), allow_nan=False)) == dict(agent.identity)
        assert all(isinstance(value, Scalar) for value in agent.identity.values())
        agent.close()

    def test_traits_that_it_has_keep_their_types(self) -> None:
        agent = self.make_agent()
        self.run(agent, (0, 3))
        if isinstance(agent, Describes):
            assert isinstance(agent.description, str)
        if isinstance(agent, Remarks):
            assert isinstance(agent.remarks, str)
        if isinstance(agent, Represents):
            assert isinstance(agent.stands_for, StandsFor)
        if isinstance(agent, Reports):
            for slot in (0, 3):
                assert all(isinstance(name, str) for name in agent.report(slot))
                assert all(math.isfinite(count) for count in agent.report(slot).values())
        agent.close()

    def test_what_it_does_ahead_is_what_it_would_have_done(self) -> None:
        agent = self.make_agent()
        if isinstance(agent, ActsAhead):
            asked = self.run(agent, (0,), steps=40)[0]
            agent.reset(0, self.make_episode().for_agent(), 7)
            taken: list[Action] = []
            while len(taken) < 40 and Action.STOP not in taken:
                taken.append(Action(agent.act({0: self.observe(agent, len(taken))})[0]))
                taken += agent.ahead(0)
            assert taken[: len(asked)] == asked
        agent.close()

    def test_closing_twice_is_harmless(self) -> None:
        agent = self.make_agent()
        agent.close()
        agent.close()


class ExecutorConformance:
    """Every `Executor` passes these. Override `make_executor`, `make_setup` and `make_episodes`.

    The agent is called by its name: one that draws its actions from the seed, and can be overruled.
    """

    agent = "random"
    max_steps = 20

    def make_executor(self) -> Executor:
        raise NotImplementedError

    def make_setup(self) -> EnvSetup:
        """An environment that the agent needs no sensors in."""
        raise NotImplementedError

    def make_episodes(self) -> Sequence[Episode]:
        """At least five, of two scenes."""
        raise NotImplementedError

    def make_tasks(self) -> list[Task]:
        return [Task(episode, 0, i, self.max_steps) for i, episode in enumerate(self.make_episodes())]

    def ready(self) -> Executor:
        executor = self.make_executor()
        executor.load(self.agent, AgentOptions())
        executor.set_up(self.make_setup())
        return executor

    def test_implements_the_protocol(self) -> None:
        with self.make_executor() as executor:
            assert callable(executor.run)
            facts = executor.load(self.agent, AgentOptions())
            assert executor.agent == facts
            assert (facts.name, facts.version, facts.watches) == (self.agent, __version__, True)
            executor.set_up(self.make_setup())
            assert isinstance(executor, Executor)
            assert executor.simulator

    def test_an_agent_that_cannot_be_made_is_a_mistake(self) -> None:
        with self.make_executor() as executor:
            mistake = _mistake(lambda: executor.load("no-such-agent", AgentOptions()))
        assert "no-such-agent" in mistake

    def test_every_task_is_run_once_and_as_in_one_process(self) -> None:
        tasks = self.make_tasks()
        with Inline() as inline:
            inline.load(self.agent, AgentOptions())
            inline.set_up(self.make_setup())
            expected = _trajectories(list(inline.run(tasks)))
        with self.ready() as executor:
            executor.check([task.episode for task in tasks])
            for limits in (Limits(), Limits(max_batch=2)):
                assert _trajectories(list(executor.run(tasks, limits))) == expected
            timings = executor.timings()
            assert min(timings.n_agents, timings.n_simulators) >= 1
            assert timings.waited_s >= 0
            assert isinstance(executor.remarks(), str)

    def test_tasks_of_one_episode_differ_in_their_seeds(self) -> None:
        """What groups of rollouts from one start need."""
        episode = self.make_episodes()[0]
        tasks = [Task(episode, repeat, seed, self.max_steps) for repeat, seed in enumerate((5, 6, 5))]
        with self.ready() as executor:
            found = _trajectories(list(executor.run(tasks)))
        first, second, third = (found[episode.episode_id, repeat] for repeat in range(3))
        assert first == third != second

    def test_a_task_that_fails_costs_no_other(self) -> None:
        tasks = self.make_tasks()
        tasks[2] = replace(tasks[2], kind=_Fails())
        with self.ready() as executor:
            outcomes = {outcome.task.key: outcome for outcome in executor.run(tasks)}
        assert len(outcomes) == len(tasks)
        failed = outcomes.pop(tasks[2].key)
        assert (failed.status, failed.rollout) == ("error", None)
        assert str(failed.reason).startswith("ArithmeticError: no ground (")
        assert {outcome.status for outcome in outcomes.values()} == {"ran"}

    def test_a_mistake_of_the_user_ends_the_run(self) -> None:
        task = replace(self.make_tasks()[0], kind=_Fails(usage=True))
        with self.ready() as executor:
            assert _mistake(lambda: list(executor.run([task]))) == "no ground"

    def test_a_run_that_was_left_does_not_disturb_the_next(self) -> None:
        tasks = self.make_tasks()
        with self.ready() as executor:
            left = executor.run(tasks)
            next(left)
            left.close()
            again = list(executor.run(tasks[1:3]))
        assert {outcome.task.key for outcome in again} == {task.key for task in tasks[1:3]}
        assert {outcome.status for outcome in again} == {"ran"}

    def test_tasks_of_a_kind_are_done_where_their_environment_is(self) -> None:
        """With an agent that only looks on, with one that acts too, and without one."""
        tasks = [replace(task, kind=_Overruled(i % 3)) for i, task in enumerate(self.make_tasks())]
        with self.ready() as executor:
            outcomes = list(executor.run(tasks, Limits(max_batch=2)))
        for outcome in outcomes:
            assert outcome.rollout is not None, outcome.reason
            assert outcome.rollout.product == outcome.task.episode.episode_id
            turns = outcome.rollout.trajectory.actions.count(Action.TURN_LEFT)
            assert turns >= 3

    def test_closing_twice_is_harmless(self) -> None:
        executor = self.ready()
        executor.close()
        executor.close()


@dataclass(frozen=True, slots=True)
class _Fails:
    """A task that raises."""

    usage: bool = False

    def run(self, env: Env, agent: Agent, task: Task) -> Rollout:
        raise UsageError("no ground") if self.usage else ArithmeticError("no ground")


@dataclass(frozen=True, slots=True)
class _Overruled:
    """Six steps, of which every second one is a turn to the left whatever the agent thinks.

    shown: 0: nothing to the agent; 1: the steps on which it is overruled; 2: all of them, and the others are its.
    """

    shown: int

    def run(self, env: Env, agent: Agent, task: Task) -> Rollout:
        assert isinstance(agent, Watches)
        observations = [env.reset(task.episode)]
        agent.reset(SLOT, task.episode.for_agent(), task.seed)
        actions = []
        for step in range(6):
            seen = {SLOT: observations[-1].for_agent(agent.sensors)}
            action = Action.TURN_LEFT
            if step % 2 and self.shown == 2:
                action = agent.act(seen)[SLOT]
            elif self.shown:
                agent.watch(seen)
            actions.append(action)
            observations.append(env.step(action))
        collided = tuple(observation.collided for observation in observations[1:])
        trajectory = Trajectory(tuple(map(_pose, observations)), tuple(actions), collided)
        return Rollout(trajectory, 0.0, 0.0, product=task.episode.episode_id)


def _mistake(call: Callable[[], object]) -> str:
    """The message of the UsageError that a call must raise."""
    try:
        call()
    except UsageError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def _trajectories(outcomes: Sequence[Outcome]) -> dict[tuple[str, int], Trajectory]:
    """Trajectories by episode and repeat; every outcome must have one."""
    found = {}
    for outcome in outcomes:
        assert outcome.rollout is not None, outcome.reason
        assert outcome.task.key not in found
        found[outcome.task.key] = outcome.rollout.trajectory
    return found


def _pose(observation: Observation) -> Pose:
    assert observation.pose is not None
    return observation.pose
