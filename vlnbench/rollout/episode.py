"""One episode: environment and agent take turns until STOP or the step budget ends it."""

from __future__ import annotations

import hashlib
import math
import operator
import time
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from textwrap import shorten
from typing import Any, Literal, Protocol

from vlnbench.interfaces import Action, Agent, Env, Episode, Pose, Trajectory
from vlnbench.rollout import said
from vlnbench.traits import ActsAhead, Reports, SkipsFrames
from vlnbench.util.loading import describe

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
    """How a task ended: with a rollout, or without one for a reason (one line; `detail`: the stack, if known)."""

    task: Task
    rollout: Rollout | None = None
    status: Literal["ran", "error", "timeout"] = "ran"
    reason: str | None = None
    detail: str | None = None


def run_task(env: Env, agent: Agent, task: Task) -> Rollout:
    """Do what a task asks for, where its environment is."""
    if task.kind is not None:
        return task.kind.run(env, agent, task)
    return run_episode(env, agent, task.episode, seed=task.seed, max_steps=task.max_steps)


def run_episode(env: Env, agent: Agent, episode: Episode, *, seed: int, max_steps: int) -> Rollout:
    """Let `agent` act in `env` for one episode of at most `max_steps` actions.

    The agent sees only the sensors it declared and, unless privileged, no goal, path or distance.
    """
    clock, times = _Clock(), StepTimes()
    with clock.env:
        observation = env.reset(episode)
    with clock.agent:
        agent.reset(SLOT, episode if agent.privileged else episode.for_agent(), seed)
    poses = [said.pose(observation)]
    actions: list[Action] = []
    collided: list[bool] = []
    coming: deque[Action] = deque()
    while len(actions) < max_steps and Action.STOP not in actions[-1:]:
        if not coming:
            before = clock.agent.seconds
            with clock.agent:
                action = agent.act({SLOT: observation.for_agent(agent.sensors)})[SLOT]
                coming.extend(decided(agent, SLOT, action))
            times.add(clock.agent.seconds - before, len(coming))
        actions.append(coming.popleft())
        unseen = coming or actions[-1] is Action.STOP or len(actions) == max_steps
        with clock.env:
            step = env.step_unseen if unseen and isinstance(env, SkipsFrames) else env.step
            observation = step(actions[-1])
        collided.append(bool(observation.collided))
        poses.append(said.pose(observation))
    with clock.env:
        distances = _goal_distances(env, episode, poses)
    trajectory = Trajectory(tuple(poses), tuple(actions), tuple(collided), distances)
    return Rollout(
        trajectory,
        clock.env.seconds,
        clock.agent.seconds,
        reported(agent, SLOT),
        step_seconds=times.by_part(len(actions)),
    )


def decided(agent: Agent, slot: int, action: Action) -> tuple[Action, ...]:
    """The action that an agent has just given, and those that it does after it without looking."""
    ahead = agent.ahead(slot) if isinstance(agent, ActsAhead) else ()
    return as_action(action), *map(as_action, ahead)


def as_action(given: object) -> Action:
    """What an agent returned, as an action. Raises ValueError for what is none."""
    number = given
    with suppress(TypeError):
        number = operator.index(given)  # type: ignore[arg-type]  # numbers of NumPy and PyTorch have one
    try:
        return Action(number)  # type: ignore[arg-type]
    except ValueError:
        names = ", ".join(f"{each.name} ({each.value})" for each in Action)
        raise ValueError(
            f"the agent returned {shorten(repr(given), 60)} for an action; expected one of "
            f"vlnbench.interfaces.Action: {names}"
        ) from None


def reported(agent: Agent, slot: int) -> dict[str, float]:
    """What an agent counted about the episode in a slot; empty for agents that count nothing.

    Raises ValueError for what is no count, and whatever the agent raises.
    """
    return said.counts(agent.report(slot)) if isinstance(agent, Reports) else {}


def failure(task: Task, error: Exception) -> Outcome:
    """The outcome of a task that an exception ended."""
    detail = "".join(traceback.format_exception(error))
    return Outcome(task, status="error", reason=describe(error), detail=detail)


def _goal_distances(env: Env, episode: Episode, poses: list[Pose]) -> tuple[float, ...]:
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
