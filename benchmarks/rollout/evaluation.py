"""Episodes per hour of an agent, as `vlnbench eval` runs it and in a loop over episodes one by one.

    python -m benchmarks.rollout.evaluation --data-root DATA --agent streamvln --checkpoint DIR \
        --envs 4 --max-batch 8 --episodes 40

The loop is what published evaluation scripts do: one habitat-lab environment with the task's own measures and its
top-down map, one agent, one episode after the other; a second loop goes without the map. All run the same episodes
on the same machine, in turns, must choose the same actions, and the ratios are printed (target: 5 on two cores).
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.habitat_env import HabitatEnv
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.defaults import ENV
from vlnbench.interfaces import Action, Agent
from vlnbench.rollout.agent_options import CheckpointOptions
from vlnbench.rollout.agents import load_agent
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.processes import Processes
from vlnbench.rollout.start import start_processes

Walks = dict[str, tuple[Action, ...]]


class MeasuringEnv(HabitatEnv):
    """habitat-lab's environment with the measures of its VLN task and the top-down map, taken at every step."""

    top_down_map = True

    def _config(self, episode: Any) -> Any:
        habitat = self._habitat
        measures = habitat.get_config("benchmark/nav/vln_r2r.yaml").habitat.task.measurements
        structured = importlib.import_module("habitat.config.default_structured_configs")
        config = super()._config(episode)
        with habitat.config.read_write(config):
            config.task.measurements = measures
            if self.top_down_map:
                config.task.measurements.top_down_map = structured.TopDownMapMeasurementConfig()
            config.task.measurements.collisions = structured.CollisionsMeasurementConfig()
        return config

    def step(self, action: Action) -> Any:
        observation = super().step(action)
        self._env.get_metrics()
        return observation


class WithoutMap(MeasuringEnv):
    """The same without the map, which some scripts leave out."""

    top_down_map = False


LOOPS = {"one by one": MeasuringEnv, "one by one without map": WithoutMap}


def walks(outcomes: Sequence[Outcome]) -> Walks:
    failed = [outcome.reason for outcome in outcomes if outcome.rollout is None]
    if failed:
        raise RuntimeError(f"{len(failed)} episodes failed: {failed[0]}")
    return {each.task.episode.episode_id: each.rollout.trajectory.actions for each in outcomes if each.rollout}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--agent", default="streamvln")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--agents", type=int, default=0, help="as of `vlnbench eval`; 0: one here")
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    benchmark = get_benchmark("houses-r2r")
    split = load_split(benchmark, "val_unseen", options.data_root)
    tasks = [Task(episode, 0, 0, benchmark.max_steps) for episode in split.episodes[: options.episodes]]
    model = CheckpointOptions(checkpoint=options.checkpoint, device=options.device, max_batch=options.max_batch)
    agent: Agent = load_agent(options.agent, model)
    arguments = (benchmark.body, split.scenes_dir, agent.sensors, "auto")
    seconds: dict[str, list[float]] = {name: [] for name in ("vlnbench", *LOOPS)}
    limits = Limits(options.max_batch)
    with start_processes(ENV, options.envs, options.agents) as processes:
        if isinstance(processes, Processes):
            processes.use(agent)
        else:
            processes.load(options.agent, model)
        processes.set_up(EnvSetup(ENV, arguments, agent.sensors))
        list(processes.run(tasks[: options.envs], limits))
        for _ in range(options.rounds):
            start = time.perf_counter()
            ours = walks(list(processes.run(tasks, limits)))
            seconds["vlnbench"].append(time.perf_counter() - start)
            for name, loop in LOOPS.items():
                env = loop(*arguments)
                start = time.perf_counter()
                theirs = walks(list(Inline(agent, env).run(tasks)))
                seconds[name].append(time.perf_counter() - start)
                env.close()
                if theirs != ours:
                    raise RuntimeError(f"{name}: other walks than vlnbench's")
    for name, each in seconds.items():
        ratio = min(each) / min(seconds["vlnbench"])
        print(f"{name:23s} {3600 * len(tasks) / min(each):6.0f} episodes/h, {ratio:5.2f} times the time")


if __name__ == "__main__":
    main()
