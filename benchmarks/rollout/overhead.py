"""What the harness itself costs, with an agent that does not think and a simulator that does not simulate.

Run as a script: `python -m benchmarks.rollout.overhead`. Prints milliseconds per step in one process, through
the channel to simulator processes, and through replicas (target: below 0.3); then, for growing numbers of
synthetic episodes, seconds per episode with rows on disk and the peak memory of a process of its own
(targets: constant).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from agents.base import EpisodeAgent
from tests.fakes import PlaneEnv, make_episode, make_set
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.evaluation.evaluate import evaluate, make_plan
from vlnbench.interfaces import Action, Episode, Observation, Pose
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.episode import Task
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.processes import Processes
from vlnbench.rollout.replicas import LocalLauncher, Replicas

HERE = "benchmarks.rollout.overhead"
STEPS = 500


class NullEnv(PlaneEnv):
    """Stays where it is."""

    def reset(self, episode: Episode) -> Observation:
        self._pose = Pose(episode.start_position, episode.start_rotation)
        self._step = 0
        return Observation(episode.instruction, 0, pose=self._pose)

    def step(self, action: Action) -> Observation:
        self._step += 1
        return Observation("", self._step, pose=self._pose)


class NullAgent(EpisodeAgent):
    """Turns left for ever."""

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        return dict.fromkeys(observations, Action.TURN_LEFT)


class TenSteps(EpisodeAgent):
    """Stops after ten steps: most of such an episode is its row."""

    def act_one(self, observation: Observation) -> Action:
        return Action.STOP if observation.step == 9 else Action.TURN_LEFT


def per_step(label: str, rounds: int, episodes: int, run: Callable[[list[Task]], object]) -> None:
    tasks = [Task(make_episode(i), 0, 0, STEPS) for i in range(episodes)]
    run(tasks)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run(tasks)
        best = min(best, time.perf_counter() - start)
    print(f"step, {label:34s} {1e3 * best / (episodes * STEPS):.3f} ms", flush=True)


def overhead(rounds: int) -> None:
    agent = NullAgent()
    per_step("in one process", rounds, 4, lambda tasks: list(Inline(agent, NullEnv()).run(tasks)))
    for envs, batch in ((1, 1), (4, 4)):
        with Processes(envs) as processes:
            processes.use(agent)
            processes.set_up(EnvSetup(f"{HERE}:NullEnv", (), agent.sensors))

            def run(tasks: list[Task], processes: Processes = processes, batch: int = batch) -> object:
                return list(processes.run(tasks, Limits(batch)))

            per_step(f"{envs} simulators, batch {batch}", rounds, 4, run)
    with Replicas(LocalLauncher(2), 1, 2) as replicas:
        loaded = replicas.load(f"{HERE}:NullAgent", AgentOptions())
        replicas.set_up(EnvSetup(f"{HERE}:NullEnv", (), loaded.sensors))
        per_step("1 replica, 2 simulators, batch 2", rounds, 4, lambda tasks: list(replicas.run(tasks, Limits(2))))


def one_size(count: int) -> None:
    """Seconds per episode and peak memory of a run of `count` episodes, in this process."""
    alike = tuple(make_episode(i, scene="abcdefghij"[i % 10]) for i in range(count))
    episodes = replace(make_set("x", 1), episodes=alike)
    plan = make_plan(get_benchmark("houses-r2r"), episodes, "null", count=None, seed=0, repeats=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        evaluate(plan, Inline(TenSteps(), NullEnv()), Path(folder) / "run")
        seconds = time.perf_counter() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{count:6d} episodes: {1e3 * seconds / count:.2f} ms each, peak memory + {grown / 1024:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--size", type=int, help="only this number of episodes, in this process")
    options = parser.parse_args()
    if options.size:
        one_size(options.size)
        return
    overhead(options.rounds)
    for size in options.sizes:
        subprocess.run([sys.executable, "-m", HERE, "--size", str(size)], check=True)


if __name__ == "__main__":
    main()
