"""What the commands do: find data, make agent and environment, run, show."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from tabulate import tabulate

from vlnbench.data.benchmarks import BENCHMARKS, Benchmark, get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.data.houses_config import HousesConfig
from vlnbench.errors import UsageError, require
from vlnbench.evaluation.evaluate import (
    Execution,
    Plan,
    check_conventions,
    default_folder,
    evaluate,
    make_plan,
)
from vlnbench.evaluation.records import Row, read_rows, read_trajectories
from vlnbench.evaluation.stats import estimate_sums
from vlnbench.evaluation.summary import METRICS, Metric, Summary, estimate_kind, format_summary, shown
from vlnbench.interfaces import Agent, Embodiment, Env, Sensor
from vlnbench.rollout.engine import Simulators
from vlnbench.rollout.launcher import LocalSite
from vlnbench.rollout.model_options import ModelOptions
from vlnbench.rollout.replicas import Lanes
from vlnbench.util.loading import import_module, import_string, load_agent, recorded_name
from vlnbench.util.progress import Progress, say
from vlnbench.util.trackers import TrackedRun, Trackers, numbers, parse_trackers
from vlnbench.util.watchdog import Watchdog

_ENV, _ENV_LIBRARY = "envs.habitat_env:HabitatEnv", "envs.habitat_lab:import_habitat"

_MAX_DEFAULT_ENVS = 4
"""More simulators than this seldom pay: each takes memory, and the agent is the slower part."""

_RUNNING = [metric for metric in METRICS if metric.label in ("SR", "SPL")]
"""What progress lines show of a run."""


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """One evaluation as the user asked for it; see the fields of the same names in `vlnbench.cli.Eval`."""

    agent: str
    benchmark: str
    split: str
    episodes: int | None
    seed: int
    repeats: int
    data_root: Path
    out: Path | None
    sim: str
    video: int
    allow_partial: bool = False
    envs: int | None = None
    agents: int | None = None
    gpus: str = ""
    ray: str = ""
    episode_timeout: float = 300.0
    max_errors: float = 0.05
    retry_errors: bool = False
    tracker: str = ""
    model: ModelOptions = field(default_factory=ModelOptions)

    def check(self) -> None:
        """Raise UsageError for numbers that make no sense."""
        minima = {"video": 0, "max_errors": 0, "envs": 1, "agents": 1}
        for name, least in minima.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise UsageError(f"--{name.replace('_', '-')} {value}: expected {least} or more")
        if not self.episode_timeout > 0:
            raise UsageError(f"--episode-timeout {self.episode_timeout:g}: expected more than 0 seconds")
        if self.model.max_batch < 1:
            raise UsageError(f"--max-batch {self.model.max_batch}: expected 1 or more")
        parse_trackers(self.tracker)
        gpus = self.gpu_names
        if not all(gpus) or len(set(gpus)) < len(gpus):
            raise UsageError(f"--gpus {self.gpus}: expected names of different GPUs, separated by commas")
        if gpus and self.ray:
            raise UsageError("--gpus: leave it out with --ray, which gives each agent a GPU")
        if gpus and (self.agents or len(gpus)) < len(gpus):
            raise UsageError(f"--agents {self.agents}: expected {len(gpus)} or more, as many as --gpus")
        if self.model.device.startswith("cuda:") and (gpus or self.agents or self.ray):
            raise UsageError(f"--device {self.model.device}: leave it out; each agent has a GPU of its own")

    @property
    def gpu_names(self) -> list[str]:
        """The devices of agents, one each."""
        return [name.strip() for name in self.gpus.split(",")] if self.gpus else []

    @property
    def n_agents(self) -> int:
        """Agent processes; 0: the agent acts in this one."""
        return self.agents or len(self.gpu_names)

    @property
    def n_envs(self) -> int:
        """Simulator processes of one agent: no more than episodes, if their number is given."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        agents = max(1, self.n_agents)
        count = self.envs or max(1, min(_MAX_DEFAULT_ENVS, cores // agents))
        if self.episodes is None:
            return count
        return max(1, min(count, math.ceil(self.episodes * self.repeats / agents)))


def run_eval(request: EvalRequest) -> Summary:
    """Evaluate an agent and print the table. Raises UsageError, with nothing written, for bad names and files."""
    request.check()
    benchmark = get_benchmark(request.benchmark)
    if request.split not in benchmark.splits:
        load_split(benchmark, request.split, request.data_root)  # raises with the known names
    with _start(request) as simulators:  # while agent and data load
        named = (request.agent, request.model)
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
            for line in getattr(agent, "description", "").splitlines():
                say(line)
            say(f"{len(plan.episodes)} episodes of {_described(split)}; run folder {folder}")
            summary = _evaluate(plan, agent, simulators, folder, request)
            remarks = getattr(agent, "remarks", "")
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


def ensure_data(benchmark: Benchmark, data_root: Path) -> None:
    """Generate the data of a benchmark that needs no download, if it is not there yet.

    Data that are there are taken as they are; only another version of the generator is refused.
    """
    if benchmark.generator is None:
        return
    houses = import_module(benchmark.generator)
    found = houses.generated_version(data_root)
    if found is None:
        say(f"{benchmark.name} is not below {data_root} yet: generating it (once)")
        generate_houses(data_root, HousesConfig())
    elif found != houses.VERSION:
        raise UsageError(
            f"{data_root}: holds data of {found}, but this is {houses.VERSION}; run `vlnbench data houses` "
            "to make them anew, or choose another --data-root"
        )


def generate_houses(data_root: Path, config: HousesConfig) -> str:
    """Generate the houses benchmarks below a data root, unless they are there; returns tables of what is there."""
    houses = import_module("envs.houses.files.dataset")
    warm_up(renderer=False)
    with Progress("generating houses") as progress:
        manifest = houses.generate(data_root, config, lambda stage, done, n: progress.update(done, n, stage))
    rows = [[split, *counts.values()] for split, counts in manifest.counts.items()]
    table = tabulate(rows, headers=["split", *next(iter(manifest.counts.values()))])
    compared = _beside_r2r(manifest.statistics)
    return f"{manifest.version}, seed {config.seed}, below {data_root}\n\n{table}\n\n{compared}"


def generate_envdrop(data_root: Path, config: HousesConfig, episodes: int | None) -> str:
    """Add the augmentation set to houses that are there; returns a table of it."""
    with Progress("generating envdrop") as progress:
        manifest = import_string("envs.houses.files.augment:augment")(
            data_root, config, episodes, None, lambda stage, done, n: progress.update(done, n, stage)
        )
    untrue = f"{manifest.untrue} of {manifest.checked} texts that were checked have a clause that is untrue"
    return (
        f"envdrop: {manifest.episodes} episodes, {manifest.trajectories} trajectories; {untrue}\n\n"
        f"{_beside_r2r({'envdrop': manifest.statistics})}"
    )


def _beside_r2r(statistics: dict[str, dict[str, float]]) -> str:
    """Means per episode beside those of the real dataset."""
    real = import_string("envs.houses.files.statistics:R2R_CE")
    columns = {**statistics, **{f"R2R-CE {split}": means for split, means in real.items()}}
    names = list(next(iter(columns.values())))
    rows = [[name, *(column[name] for column in columns.values())] for name in names]
    return str(tabulate(rows, headers=["mean per episode", *columns], floatfmt=".1f"))


def preview_house(data_root: Path, out: Path, split: str, house: str | None, episodes: int) -> str:
    """Draw a generated house into a PNG file; returns what was drawn."""
    warm_up(renderer=True)
    drawn: str = import_string("envs.houses.preview.preview:preview")(data_root, out, split, house, episodes)
    return drawn


def warm_up(renderer: bool) -> None:
    """Compile the embedded simulator's kernels, with progress, where this machine has not done it yet."""
    compiling = import_string("envs.embedded.warmup:WarmUp")(renderer=renderer)
    if not compiling.needed:
        return
    with Progress("compiling the embedded simulator (first run only)") as progress:
        for i, label in enumerate(compiling.steps()):
            progress.update(i, None, label)


def list_names() -> str:
    """Table of the agents and benchmarks that can be named on the command line."""
    agents: dict[str, tuple[str, str]] = import_module("agents.table").AGENTS
    agent_rows = [[name, summary] for name, (_, summary) in agents.items()]
    benchmark_rows = [[b.name, ", ".join(b.splits), b.fingerprint, b.summary] for b in BENCHMARKS.values()]
    return "\n\n".join(
        [
            tabulate(agent_rows, headers=["agent", "what it does"]),
            tabulate(benchmark_rows, headers=["benchmark", "splits", "fingerprint", "what it is"]),
        ]
    )


def _described(episode_set: EpisodeSet) -> str:
    """Which of the files that may lie below the data root were taken."""
    notes = [episode_set.version, *(["not the published number"] if episode_set.partial else [])]
    if episode_set.passed_over:
        notes.append(f"not taken: {', '.join(map(str, episode_set.passed_over))}")
    return f"{episode_set.path} ({'; '.join(notes)}), scenes below {episode_set.scenes_dir}"


def _start(request: EvalRequest) -> Simulators | Lanes:
    """Simulator processes, or lanes where agents are to have processes of their own."""
    if request.ray:
        cluster = require("vlnbench.rollout.ray", "cluster")
        gpu = request.model.device != "cpu"
        lanes: Lanes = cluster.open_lanes(request.ray, request.agents, request.envs, _ENV_LIBRARY, gpu)
        return lanes
    if request.n_agents:
        site = LocalSite(request.n_envs, _ENV_LIBRARY, request.gpu_names)
        return Lanes(site, request.n_agents, request.n_envs)
    return Simulators(request.n_envs, _ENV_LIBRARY)


def _set_up(
    simulators: Simulators | Lanes,
    request: EvalRequest,
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
    plan: Plan, agent: Agent, simulators: Simulators | Lanes, folder: Path, request: EvalRequest
) -> Summary:
    tally = _Tally([row for row in read_rows(folder) if not (request.retry_errors and row.failed)])

    def on_row(row: Row, done: int, total: int) -> None:
        tally.add(row)
        trackers.log(tally.values(), done)
        if row.failed:
            progress.say(f"episode {row.episode_id}: {row.status}: {row.reason}")
        progress.update(done, total, tally.note(total - done))

    label = f"{plan.agent_name} on {plan.benchmark.name} {plan.split}"
    tracked = TrackedRun(str(folder), folder, plan.identity(agent, simulators))
    with (
        Trackers(parse_trackers(request.tracker), tracked) as trackers,
        Progress(label) as progress,
        Watchdog(request.episode_timeout, simulators.close) as watchdog,
    ):
        execution = Execution(
            max_batch=request.model.max_batch,
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


class _Tally:
    """What is known of a run before its end; speed counts the episodes of this attempt only."""

    def __init__(self, kept: Sequence[Row]) -> None:
        self._counts: Counter[str] = Counter()
        self._sums = {metric.field: defaultdict[str, float](float) for metric in _RUNNING}
        self._errors = self._new = 0
        self._start = time.monotonic()
        for row in kept:
            self._count(row)

    def add(self, row: Row) -> None:
        self._new += 1
        self._count(row)

    def values(self) -> dict[str, float]:
        """What trackers are sent; rates over the episodes so far, in [0, 1]."""
        scored = self._counts.total()
        rates = {m.label: sum(self._sums[m.field].values()) / scored for m in _RUNNING} if scored else {}
        return {**rates, "errors": float(self._errors), "episodes_per_h": 3600 / self._seconds}

    @property
    def _seconds(self) -> float:
        """Wall-clock seconds per episode of this attempt."""
        return (time.monotonic() - self._start) / self._new

    def note(self, left: int) -> str:
        rates = ", ".join(map(self._rate, _RUNNING)) if self._counts else "no scores"
        errors = f"{self._errors} error{'s' * (self._errors != 1)}"
        eta = timedelta(seconds=round(self._seconds * left))
        return f"{rates}, {errors}, {3600 / self._seconds:.0f} episodes/h, ETA {eta}"

    def _rate(self, metric: Metric) -> str:
        sums = [self._sums[metric.field][scene] for scene in self._counts]
        value = estimate_sums(sums, list(self._counts.values()), estimate_kind(metric))
        mean, se, interval, n = shown(value, metric)
        return f"{metric.label} {mean} % (SE {se}, {interval}, n {n})"

    def _count(self, row: Row) -> None:
        self._errors += row.failed
        if row.status == "unscored":
            return
        self._counts[row.scene_id] += 1
        for name, sums in self._sums.items():
            sums[row.scene_id] += float(row.scores.get(name) or 0.0)


def _write_videos(plan: Plan, scenes_dir: Path, request: EvalRequest, folder: Path) -> None:
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
