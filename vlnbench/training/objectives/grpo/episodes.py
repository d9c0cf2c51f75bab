"""Rollouts in simulators: walks of the network from the starts of a split's episodes, through an executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from vlnbench.data.benchmarks import get_benchmark, misfit
from vlnbench.data.episodes import load_split
from vlnbench.data.generate import ensure_data
from vlnbench.errors import RunError, UsageError
from vlnbench.evaluation.metrics import score
from vlnbench.interfaces import Action, Trajectory
from vlnbench.rollout.episode import Outcome, Task, episode_seed
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.processes import Processes
from vlnbench.training.family.policy import Policy
from vlnbench.training.family.trains import Trains
from vlnbench.training.objectives.grpo.options import GRPOOptions
from vlnbench.training.objectives.grpo.prefix import ExpertFirst
from vlnbench.training.objectives.grpo.rewards import Completion, Rewards, Walked
from vlnbench.training.objectives.grpo.rollouts import Rollout, RolloutRequest

WALK_TIMEOUT_S = 600.0
"""A simulator or an agent of which nothing is heard for so long hangs."""


class Episodes:
    """`Rollouts` whose prompts are episodes."""

    def __init__(self, options: GRPOOptions, trains: Trains) -> None:
        self.rewards = Rewards(options.rewards, "episodes")
        self._options = options
        self._benchmark = get_benchmark(options.benchmark)
        ensure_data(self._benchmark, options.data_root, options.split)
        self._split = load_split(
            self._benchmark, options.split, options.data_root, allow_partial=options.allow_partial
        )
        self._episodes = self._split.episodes
        self._check()
        self.prompts = len(self._episodes)
        self.longest = options.step_cap
        self._executor: Processes | None = None

    def _check(self) -> None:
        """Every episode has what rewards and caps look at."""
        options, path = self._options, self._split.path
        first = next((each for each in self._episodes if not each.goals), None)
        if first is not None:
            raise UsageError(
                f"{path}: episode {first.episode_id} has no goal, so no walk in it can be judged; choose a split "
                "with public goals"
            )
        asking = [f"--rewards {name}" for name in self.rewards.needs_ground_truth]
        asking += ["--stop-beyond"] * (options.stop_beyond is not None)
        asking += ["--expert-prefix"] * bool(options.expert_prefix)
        without = next((each for each in self._episodes if each.ground_truth is None), None)
        if asking and without is not None:
            raise UsageError(
                f"{path}: episode {without.episode_id} has no reference walk, which {asking[0]} looks at; put the "
                "split's _gt file beside it"
            )

    def manifest(self) -> Mapping[str, Any]:
        return {
            "benchmark": self._benchmark.name,
            "fingerprint": self._benchmark.fingerprint,
            "split": self._split.split,
            "dataset_sha256": self._split.sha256,
        }

    def describe(self) -> str:
        return f"walks from {len(self._episodes)} episodes of {self._split.path}, {self._options.most_actions}"

    def counts(self) -> Mapping[str, Any]:
        return {"episodes": len(self._episodes)}

    def texts(self) -> Iterator[str]:
        for each in self._episodes:
            yield each.instruction

    def begin(self, policy: Policy, beat: Callable[[], None]) -> None:
        """Start simulators with the policy's agent. Raises UsageError for an agent that does not fit the body."""
        options, benchmark = self._options, self._benchmark
        self._policy, self._beat, agent = policy, beat, policy.agent()
        if wrong := misfit(benchmark, agent.expects):
            raise UsageError(f"--benchmark {benchmark.name}: the network does not fit its body: {wrong}")
        self._executor = executor = Processes(options.envs, options.env)
        executor.use(agent, "policy")
        scenes_dir = self._split.scenes_dir.absolute()
        arguments = (benchmark.body, scenes_dir, agent.sensors, options.sim)
        executor.set_up(EnvSetup(options.env, arguments, agent.sensors, needs=(scenes_dir,)))
        self.simulator = executor.simulator

    def make(self, requests: Sequence[RolloutRequest], update: int) -> list[Rollout]:
        assert self._executor is not None
        tasks = [self._task(request, update) for request in requests]
        order = {(task.episode.episode_id, task.seed): place for place, task in enumerate(tasks)}
        made: dict[int, Rollout] = {}
        limits = Limits(self._options.envs, WALK_TIMEOUT_S)
        with closing(self._executor.run(tasks, limits)) as outcomes:
            for outcome in outcomes:
                self._beat()
                task = outcome.task
                made[order[task.episode.episode_id, task.seed]] = self._judged(outcome)
        return [made[place] for place in range(len(tasks))]

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()

    def _task(self, request: RolloutRequest, update: int) -> Task:
        """A walk: where it begins, its seed, and how long it may be."""
        options, episode = self._options, self._episodes[request.prompt]
        steps = min(options.step_cap, self._benchmark.max_steps)
        reference = () if episode.ground_truth is None else episode.ground_truth.actions
        if options.stop_beyond is not None:
            steps = min(steps, math.ceil(options.stop_beyond * len(reference)))
        shown = min(math.floor(self.prefix_share(update) * len(reference)), steps - 1)
        prefix = tuple(Action(action) for action in reference[:shown] if action != Action.STOP)
        seed = episode_seed(options.seed, f"{request.draw}/{episode.episode_id}", request.member)
        return Task(episode, request.member, seed, steps, ExpertFirst(prefix) if prefix else None)

    def prefix_share(self, update: int) -> float:
        """Which share of the expert's actions walks of an update begin behind."""
        options = self._options
        updates = options.prefix_updates or max(1, (options.steps or 1) // options.iterations // 2)
        return options.expert_prefix * max(0.0, 1 - (update - 1) / updates)

    def _judged(self, outcome: Outcome) -> Rollout:
        task, rollout = outcome.task, outcome.rollout
        what = f"a walk in episode {task.episode.episode_id}"
        try:
            recorded = self._policy.recorded(task.episode.episode_id, task.seed)
        except KeyError:  # the simulator failed before the network was asked
            recorded = None
        if rollout is None:
            return Rollout(None, missing="failed", note=f"{what}: {outcome.reason}")
        if recorded is None:
            raise RunError(f"{what} ended without a record of it")
        trajectory = _without_last_stop(rollout.trajectory) if recorded.cut else rollout.trajectory
        steps, seconds = len(trajectory.actions), rollout.env_seconds
        if not math.isfinite(trajectory.goal_distances[0]):
            return Rollout(
                recorded, steps=steps, simulator_s=seconds, missing="unreachable", note=f"{what}: no path"
            )
        success_m = self._benchmark.success_distance_m
        scores = score(trajectory, task.episode, success_m)
        walk = Walked(trajectory, task.episode, scores, success_m)
        completion = Completion(recorded.formed / max(1, recorded.answers), walk=walk)
        values, stopped = self.rewards.of(completion, what), trajectory.stopped
        return Rollout(
            recorded, tuple(values), steps, stopped, bool(scores.success), seconds, completion=completion
        )


def _without_last_stop(trajectory: Trajectory) -> Trajectory:
    """A walk whose answers were used up, and which did not stop of itself."""
    if not trajectory.stopped:
        return trajectory
    return replace(
        trajectory,
        poses=trajectory.poses[:-1],
        actions=trajectory.actions[:-1],
        collided=trajectory.collided[:-1],
        goal_distances=trajectory.goal_distances[:-1],
    )
