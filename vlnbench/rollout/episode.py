"""One episode: environment and agent take turns until STOP or the step budget ends it."""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol

from vlnbench.interfaces import Action, Agent, Env, Episode, Pose, Trajectory
from vlnbench.rollout import said
from vlnbench.rollout.answers import Answered, Kept
from vlnbench.traits import ActsAhead, Reports, SkipsFrames
from vlnbench.util.loading import describe, stack

SLOT = 0
"""The only slot of an agent that drives one environment."""


class TaskKind(Protocol):
    """What is done with an episode. It travels with the task to the process of the environment, by pickle."""

    def run(self, env: Env, agent: Agent, task: Task) -> Rollout:
        """Do it, as `run_episode` does: reset the agent in SLOT, and show it no more than its sensors.

        The agent may be far away; what can be asked of it is `act` and, if it has that, `watch`. It need not be
        asked at all.
        """
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """An episode to run: once per repeat, with a seed of its own, for at most `max_steps` actions.

    kind: None: the agent acts until it stops. Several tasks of one episode differ in `repeat` and `seed`.
    """

    episode: Episode
    repeat: int
    seed: int
    max_steps: int
    kind: TaskKind | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Episode id and repeat."""
        return self.episode.episode_id, self.repeat


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished episode and where its wall-clock seconds went.

    report: what the agent has to tell of it. product: what a task of some kind made beside. step_seconds: of the
    agent's time, what its steps took, see `StepTimes.by_part`; empty where it was not asked at every step.
    """

    trajectory: Trajectory
    env_seconds: float
    agent_seconds: float
    report: Mapping[str, float] = field(default_factory=dict)
    step_seconds: tuple[float, ...] = ()
    product: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended: with a rollout, or without one for a reason (one line; `detail`: the stack, if known).

    answers: what the agent's model said up to there, where that is kept.
    """

    task: Task
    rollout: Rollout | None = None
    status: Literal["ran", "error", "timeout"] = "ran"
    reason: str | None = None
    detail: str | None = None
    answers: tuple[Answered, ...] = ()


def run_task(env: Env, agent: Agent, task: Task, kept: Kept | None = None) -> Rollout:
    """Do what a task asks for, where its environment is. kept: as of `run_episode`."""
    if task.kind is not None:
        return task.kind.run(env, agent, task)
    return run_episode(env, agent, task.episode, seed=task.seed, max_steps=task.max_steps, kept=kept)


def run_episode(
    env: Env, agent: Agent, episode: Episode, *, seed: int, max_steps: int, kept: Kept | None = None
) -> Rollout:
    """Let `agent` act in `env` for one episode of at most `max_steps` actions.

    The agent sees only the sensors it declared and, unless privileged, no goal, path or distance. kept: takes in
    what its model says.
    """
    clock, times, ahead = _Clock(), StepTimes(), acts_ahead(agent)
    with clock.env:
        observation, pose = said.observation(env.reset(episode))
    with clock.agent:
        agent.reset(SLOT, episode if agent.privileged else episode.for_agent(), seed)
    poses = [pose]
    actions: list[Action] = []
    collided: list[bool] = []
    coming: deque[Action] = deque()
    while len(actions) < max_steps and Action.STOP not in actions[-1:]:
        if not coming:
            before = clock.agent.seconds
            with clock.agent:
                answers = said.answers(agent, {SLOT: observation.for_agent(agent.sensors)})
                coming.extend(decided(ahead, SLOT, answers[SLOT]))
            took = clock.agent.seconds - before
            times.add(took, len(coming))
            if kept is not None:
                kept.add(agent, SLOT, tuple(coming), took)
        actions.append(coming.popleft())
        unseen = coming or actions[-1] is Action.STOP or len(actions) == max_steps
        with clock.env:
            step = env.step_unseen if unseen and isinstance(env, SkipsFrames) else env.step
            observation, pose = said.observation(step(actions[-1]))
        collided.append(observation.collided)
        poses.append(pose)
    with clock.env:
        distances = goal_distances(env, episode, poses)
    trajectory = Trajectory(tuple(poses), tuple(actions), tuple(collided), distances)
    return Rollout(
        trajectory,
        clock.env.seconds,
        clock.agent.seconds,
        reported(agent, SLOT),
        step_seconds=times.by_part(len(actions)),
    )


def acts_ahead(agent: Agent) -> ActsAhead | None:
    """The same agent if it has that trait; to be asked once, as that takes as long as a step of a small agent."""
    return agent if isinstance(agent, ActsAhead) else None


def decided(agent: ActsAhead | None, slot: int, answer: object) -> tuple[Action, ...]:
    """The action that an agent has just given, and those that it does after it without looking. agent: one that
    acts ahead."""
    return (said.action(answer),) if agent is None else (said.action(answer), *said.ahead(agent.ahead(slot)))


def reported(agent: Agent, slot: int) -> dict[str, float]:
    """What an agent counted about the episode in a slot; empty for agents that count nothing.

    Raises ValueError for what is no count, and whatever the agent raises.
    """
    return said.counts(agent.report(slot)) if isinstance(agent, Reports) else {}


def failure(task: Task, error: BaseException) -> Outcome:
    """The outcome of a task that an exception ended."""
    return Outcome(task, status="error", reason=describe(error), detail=stack(error))


def goal_distances(env: Env, episode: Episode, poses: list[Pose]) -> tuple[float, ...]:
    """Geodesic distance to the nearest goal at every pose; asked again only where the agent moved."""
    if not episode.goals:
        return ()
    distances: list[float] = []
    for i, pose in enumerate(poses):
        if i and pose.position == poses[i - 1].position:
            distances.append(distances[-1])
        else:
            distances.append(said.distance(env.geodesic_distance(pose.position, episode.goals)))
    return tuple(distances)


class _Stopwatch:
    """Adds up the seconds spent inside its `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._start


class _Clock:
    def __init__(self) -> None:
        self.env = _Stopwatch()
        self.agent = _Stopwatch()


STEP_PARTS = (10, 25, 50, 100, 150, 200, 300, 400, 500)
"""Last steps of the parts of an episode by which an agent's time is told; one more part is what follows."""


class StepTimes:
    """What each step of an episode took of an agent's time.

    A call that decides on several actions is divided evenly among them, one that acts for several episodes among
    these.
    """

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def add(self, seconds: float, actions: int) -> None:
        """Count a call that decided on so many actions of this episode."""
        self._seconds += [seconds / actions] * actions

    def by_part(self, steps: int) -> tuple[float, ...]:
        """Seconds of every part (`STEP_PARTS`) that an episode of so many steps has reached.

        What was decided and not done any more counts with the last step.
        """
        bounds = [0, *(last for last in STEP_PARTS if last < steps), steps]
        sums = [math.fsum(self._seconds[first:last]) for first, last in pairwise(bounds)]
        return (*sums[:-1], sums[-1] + math.fsum(self._seconds[steps:])) if steps else ()


def episode_seed(seed: int, episode_id: str, repeat: int) -> int:
    """Seed of one episode: independent of order, workers and of which other episodes run."""
    return int(digest("seed", seed, episode_id, repeat)[:8], 16)


def digest(*parts: object) -> str:
    """Hash of a few values: what is drawn with it depends on nothing else."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()
