"""The evaluation that a command asks for: find data, make agent and simulators, run, show."""

from __future__ import annotations

import shlex
from pathlib import Path

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.data.generate import ensure_data, warm_up
from vlnbench.errors import require
from vlnbench.evaluation.evaluate import (
    Execution,
    Plan,
    check_conventions,
    default_folder,
    evaluate,
    make_plan,
)
from vlnbench.evaluation.options import EvalOptions
from vlnbench.evaluation.records import Row, read_rows, read_trajectories
from vlnbench.evaluation.summary import Summary, format_summary
from vlnbench.evaluation.tally import Tally
from vlnbench.interfaces import Agent, Describes, Embodiment, Env, Remarks, Sensor
from vlnbench.rollout.agents import load_agent, recorded_name
from vlnbench.rollout.engine import Simulators
from vlnbench.rollout.launcher import LocalSite
from vlnbench.rollout.replicas import Lanes
from vlnbench.util.loading import import_string
from vlnbench.util.progress import Progress, say
from vlnbench.util.trackers import TrackedRun, Trackers, numbers, parse_trackers
from vlnbench.util.watchdog import Watchdog

_ENV, _ENV_LIBRARY = "envs.habitat_env:HabitatEnv", "envs.habitat_lab:import_habitat"


def run_eval(request: EvalOptions) -> Summary:
    """Evaluate an agent and print the table. Raises UsageError, with nothing written, for bad names and files."""
    request.check()
    benchmark = get_benchmark(request.benchmark)
    if request.split not in benchmark.splits:
        load_split(benchmark, request.split, request.data_root)  # raises with the known names
    with _start(request) as simulators:  # while agent and data load
        named = (request.agent, request.agent_options)
        agent: Agent = simulators.load(*named) if isinstance(simulators, Lanes) else load_agent(*named)
        try:
            ensure_data(benchmark, request.data_root)
            split = load_split(benchmark, request.split, request.data_root, allow_partial=request.allow_partial)
            plan = make_plan(
                benchmark,
                split,
                recorded_name(agent, request.agent),
                count=request.episodes,
                seed=request.seed,
                repeats=request.repeats,
            )
            check_conventions(agent, plan)
            _set_up(simulators, request, benchmark.body, split.scenes_dir, agent.sensors)
            folder = request.out or default_folder(plan, agent, simulators)
            if isinstance(agent, Describes):
                for line in agent.description.splitlines():
                    say(line)
            say(f"{len(plan.episodes)} episodes of {_described(split)}; run folder {folder}")
            summary = _evaluate(plan, agent, simulators, folder, request)
            remarks = agent.remarks if isinstance(agent, Remarks) else ""
        finally:
            agent.close()
    print(format_summary(summary))
    if remarks:
        print(remarks)
    print(f"rows, trajectories and summary: {folder}")
    if request.video:
        _write_videos(plan, split.scenes_dir, request, folder)
    data_root = f" --data-root {shlex.quote(str(request.data_root))}" if request.data_root != Path("data") else ""
    print(f"to look at it: vlnbench report {shlex.quote(str(folder))}{data_root}")
    return summary


def _described(episode_set: EpisodeSet) -> str:
    """Which of the files that may lie below the data root were taken."""
    notes = [episode_set.version, *(["not the published number"] if episode_set.partial else [])]
    if episode_set.passed_over:
        notes.append(f"not taken: {', '.join(map(str, episode_set.passed_over))}")
    return f"{episode_set.path} ({'; '.join(notes)}), scenes below {episode_set.scenes_dir}"


def _start(request: EvalOptions) -> Simulators | Lanes:
    """Simulator processes, or lanes where agents are to have processes of their own."""
    if request.ray:
        cluster = require("vlnbench.rollout.ray", "cluster")
        gpu = request.agent_options.device_choice != "cpu"
        lanes: Lanes = cluster.open_lanes(request.ray, request.agents, request.envs, _ENV_LIBRARY, gpu)
        return lanes
    if request.n_agents:
        site = LocalSite(request.n_envs, _ENV_LIBRARY, request.gpus)
        return Lanes(site, request.n_agents, request.n_envs)
    return Simulators(request.n_envs, _ENV_LIBRARY)


def _set_up(
    simulators: Simulators | Lanes,
    request: EvalOptions,
    body: Embodiment,
    scenes_dir: Path,
    sensors: frozenset[Sensor],
) -> None:
    """Make the environments; those of a lane draw on its GPU."""
    scenes_dir = scenes_dir.absolute()
    arguments = (body, scenes_dir, sensors, request.sim)
    if isinstance(simulators, Lanes):
        simulators.set_up(_ENV, arguments, sensors, [scenes_dir])
    else:
        simulators.set_up(_ENV, [arguments] * len(simulators.workers), sensors)
    if simulators.simulator.startswith("embedded"):
        warm_up(renderer=bool(sensors & {"rgb", "depth"}))


def _evaluate(
    plan: Plan, agent: Agent, simulators: Simulators | Lanes, folder: Path, request: EvalOptions
) -> Summary:
    tally = Tally([row for row in read_rows(folder) if not (request.retry_errors and row.failed)])

    def on_row(row: Row, done: int, total: int) -> None:
        tally.add(row)
        trackers.log(tally.values(), done)
        if row.failed:
            progress.say(f"episode {row.episode_id}: {row.status}: {row.reason}")
        progress.update(done, total, tally.note(total - done))

    label = f"{plan.agent_name} on {plan.benchmark.name} {plan.split}"
    tracked = TrackedRun(str(folder), folder, plan.identity(agent, simulators).flat())
    with (
        Trackers(parse_trackers(request.tracker), tracked) as trackers,
        Progress(label) as progress,
        Watchdog(request.episode_timeout, simulators.close) as watchdog,
    ):
        execution = Execution(
            max_batch=request.agent_options.max_batch,
            episode_timeout_s=request.episode_timeout,
            max_errors=request.max_errors,
            retry_errors=request.retry_errors,
            beat=watchdog.beat,
        )
        summary = evaluate(plan, agent, simulators, folder, on_row, execution)
        n_agents = len(simulators) if isinstance(simulators, Lanes) else 1
        n_simulators = n_agents * simulators.envs if isinstance(simulators, Lanes) else len(simulators.workers)
        if execution.times.episodes:
            progress.say(execution.times.describe(n_agents, n_simulators))
        trackers.summarize(numbers({label: value.mean for label, value in summary.metrics.items() if value}))
        return summary


def _write_videos(plan: Plan, scenes_dir: Path, request: EvalOptions, folder: Path) -> None:
    write_video = import_string("vlnbench.evaluation.video:write_video")
    trajectories = read_trajectories(folder)
    recorded = [(key, episode) for key, episode, _ in plan.units() if key in trajectories][: request.video]
    sensors: frozenset[Sensor] = frozenset({"rgb"})
    env: Env = import_string(_ENV)(plan.benchmark.body, scenes_dir, sensors, request.sim)
    try:
        if env.simulator.startswith("embedded"):
            warm_up(renderer=True)
        for key, episode in recorded:
            path = folder / "videos" / f"{episode.episode_id}-{key[3]}.mp4"
            write_video(path, env, episode, trajectories[key])
            say(f"video: {path}")
    finally:
        env.close()
