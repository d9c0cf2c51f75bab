"""Speed of runs with simulator processes, as ratios measured side by side in one go.

Run as a script: `python -m benchmarks.rollout.engine [--data-root DATA]`, where DATA holds houses-r2r. Prints
what one step costs through the channel and in one process, how simulation and inference overlap, and episodes per
second with one and two simulators on houses. Rounds of the things compared take turns, and the best one counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.base import EpisodeAgent
from agents.scripted import ShortestPathAgent
from tests.fakes import PlaneEnv, make_episode
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.defaults import ENV
from vlnbench.interfaces import Action, Agent, Camera, Embodiment, Env, Observation
from vlnbench.rollout.episode import Task
from vlnbench.rollout.executor import EnvSetup, Executor, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.processes import Processes

STILL = "benchmarks.rollout.engine:StillEnv"


class StillEnv(PlaneEnv):
    """Shows the same 640x480 frames at every step, which take `delay_s` to draw."""

    def __init__(self, frames: bool = True, delay_s: float = 0.0) -> None:
        super().__init__()
        self.embodiment = Embodiment(camera=Camera(width=640, height=480, hfov=79.0, height_m=1.25))
        rng = np.random.default_rng(0)
        self._rgb = rng.integers(0, 256, (480, 640, 3), dtype=np.uint8) if frames else None
        self._depth = rng.random((480, 640), dtype=np.float32) if frames else None
        self._delay_s = delay_s

    def _observe(self) -> Observation:
        if self._delay_s:
            time.sleep(self._delay_s)
        bare = super()._observe()
        return Observation(bare.instruction, bare.step, self._rgb, self._depth, bare.pose)


class Turner(EpisodeAgent):
    """Turns until the step budget is used up, thinking for `delay_s` about every batch."""

    sensors = frozenset({"rgb", "depth"})

    def __init__(self, delay_s: float = 0.0) -> None:
        super().__init__()
        self._delay_s = delay_s

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        if self._delay_s:
            time.sleep(self._delay_s)
        return dict.fromkeys(observations, Action.TURN_LEFT)


class SeeingOracle(ShortestPathAgent):
    """The oracle with cameras, so that frames are drawn."""

    sensors = frozenset({"rgb", "depth", "oracle_action"})


def seconds_here(env: Env, agent: Agent, tasks: Sequence[Task]) -> float:
    start = time.perf_counter()
    list(Inline(agent, env).run(tasks))
    return time.perf_counter() - start


def seconds_there(executor: Executor, tasks: Sequence[Task], max_batch: int = 1) -> float:
    start = time.perf_counter()
    list(executor.run(tasks, Limits(max_batch)))
    return time.perf_counter() - start


def ready(envs: int, agent: Agent, factory: str, arguments: tuple[Any, ...]) -> Processes:
    processes = Processes(envs)
    processes.use(agent)
    processes.set_up(EnvSetup(factory, arguments, agent.sensors))
    return processes


def channel_overhead(rounds: int) -> None:
    steps = 100
    tasks = [Task(make_episode(0), 0, 0, steps)]
    for frames, label in ((True, "RGB + depth 640x480"), (False, "no frames")):
        agent, env = Turner(), StillEnv(frames)
        with ready(1, agent, STILL, (frames,)) as there_env:
            pairs = [(seconds_here(env, agent, tasks), seconds_there(there_env, tasks)) for _ in range(rounds)]
        here, there = (min(column) * 1e3 / steps for column in zip(*pairs, strict=True))
        print(f"step, {label:20s} here {here:.3f} ms, through the channel {there:.3f} ms: + {there - here:.3f} ms")


def overlap(rounds: int, delay_s: float = 0.005) -> None:
    """Simulator and agent take as long for a step: with two simulators, neither waits for the other."""
    steps = 100
    tasks = [Task(make_episode(i), 0, 0, steps) for i in range(8)]
    agent = Turner(delay_s)
    one = 0.0
    for envs, batch in ((1, 1), (2, 1), (4, 4)):
        with ready(envs, agent, STILL, (False, delay_s)) as processes:
            seconds_there(processes, tasks)  # all of them have started
            best = min(seconds_there(processes, tasks, batch) for _ in range(rounds))
        one = one or best
        rate = len(tasks) * steps / best
        print(
            f"overlap, {envs} simulators, batch {batch}: {rate:.0f} steps/s, {one / best:.2f} times one simulator"
        )


def houses(data_root: Path, rounds: int, episodes: int) -> None:
    benchmark = get_benchmark("houses-r2r")
    split = load_split(benchmark, "val_unseen", data_root)
    tasks = [Task(episode, 0, 0, 500) for episode in split.episodes[:episodes]]
    for agent, label in ((ShortestPathAgent(), "no cameras"), (SeeingOracle(), "RGB + depth")):
        arguments = (benchmark.body, split.scenes_dir, agent.sensors, "embedded")
        pools = {envs: ready(envs, agent, ENV, arguments) for envs in (1, 2)}
        for processes in pools.values():
            seconds_there(processes, tasks)
        rates = dict.fromkeys(pools, 0.0)
        for _ in range(rounds):
            for envs, processes in pools.items():
                rates[envs] = max(rates[envs], len(tasks) / seconds_there(processes, tasks))
        for processes in pools.values():
            processes.close()
        ratio = rates[2] / rates[1]
        print(f"houses, {label:11s}: episodes/s {rates[1]:.1f} with 1, {rates[2]:.1f} with 2; ratio {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    channel_overhead(10 * options.rounds)
    overlap(options.rounds)
    if options.data_root:
        houses(options.data_root, options.rounds, options.episodes)


if __name__ == "__main__":
    main()
