"""The contract of `Executor` as tests to inherit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vlnbench.conformance.env import pose_of
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Env, Episode, Trajectory
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.episode import SLOT, Outcome, Rollout, Task
from vlnbench.rollout.executor import EnvSetup, Executor, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.traits import Watches
from vlnbench.version import __version__


class ExecutorConformance:
    """Every `Executor` passes these. Override `make_executor`, `make_setup` and `make_episodes`.

    The agent is called by its name: one that draws its actions from the seed, and can be overruled.
    """

    agent = "random"
    max_steps = 20

    def make_executor(self) -> Executor:
        """The executor under test, with nothing loaded."""
        raise NotImplementedError

    def make_setup(self) -> EnvSetup:
        """An environment that the agent needs no sensors in."""
        raise NotImplementedError

    def make_episodes(self) -> Sequence[Episode]:
        """At least five, of two scenes."""
        raise NotImplementedError

    def make_tasks(self) -> list[Task]:
        """A task for every episode, each with a seed of its own."""
        return [Task(episode, 0, i, self.max_steps) for i, episode in enumerate(self.make_episodes())]

    def ready(self) -> Executor:
        """An executor with agent and environments."""
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
        trajectory = Trajectory(tuple(map(pose_of, observations)), tuple(actions), collided)
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
