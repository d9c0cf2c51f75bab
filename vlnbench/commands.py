"""What the commands do: find data, make agent and environment, run, show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tabulate import tabulate

from vlnbench.benchmarks import BENCHMARKS, Benchmark, get_benchmark
from vlnbench.episodes import EpisodeSet, load_split
from vlnbench.errors import UsageError
from vlnbench.evaluate import Plan, check_conventions, default_folder, evaluate, make_plan
from vlnbench.houses_config import HousesConfig
from vlnbench.interfaces import Agent, Embodiment, Env, Sensor
from vlnbench.loading import import_module, import_string, load_agent
from vlnbench.model_options import ModelOptions
from vlnbench.progress import Progress, say
from vlnbench.records import Row, read_trajectories
from vlnbench.summary import Summary, format_summary


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
    gpu: int | None
    video: int
    allow_partial: bool = False
    model: ModelOptions = field(default_factory=ModelOptions)


def run_eval(request: EvalRequest) -> Summary:
    """Evaluate an agent and print the table. Raises UsageError, with nothing written, for bad names and files."""
    if request.video < 0:
        raise UsageError(f"--video {request.video}: expected 0 or more episodes")
    benchmark = get_benchmark(request.benchmark)
    if request.split not in benchmark.splits:
        load_split(benchmark, request.split, request.data_root)  # raises with the known names
    agent = load_agent(request.agent, request.model)
    ensure_data(benchmark, request.data_root)
    episode_set = load_split(benchmark, request.split, request.data_root, allow_partial=request.allow_partial)
    plan = make_plan(
        benchmark,
        episode_set,
        request.agent,
        count=request.episodes,
        seed=request.seed,
        repeats=request.repeats,
    )
    check_conventions(agent, plan)
    env = _make_env(request, benchmark.body, episode_set.scenes_dir, agent.sensors)
    for line in getattr(agent, "description", "").splitlines():
        say(line)
    try:
        folder = request.out or default_folder(plan, agent, env)
        say(f"{len(plan.episodes)} episodes of {_described(episode_set)}; run folder {folder}")
        summary = _evaluate(plan, agent, env, folder)
    finally:
        agent.close()
        env.close()
    print(format_summary(summary))
    print(f"rows, trajectories and summary: {folder}")
    if request.video:
        _write_videos(plan, episode_set.scenes_dir, request, folder)
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
    houses = import_module("envs.houses.dataset")
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
        manifest = import_string("envs.houses.augment:augment")(
            data_root, config, episodes, None, lambda stage, done, n: progress.update(done, n, stage)
        )
    untrue = f"{manifest.untrue} of {manifest.checked} texts that were checked have a clause that is untrue"
    return (
        f"envdrop: {manifest.episodes} episodes, {manifest.trajectories} trajectories; {untrue}\n\n"
        f"{_beside_r2r({'envdrop': manifest.statistics})}"
    )


def _beside_r2r(statistics: dict[str, dict[str, float]]) -> str:
    """Means per episode beside those of the real dataset."""
    real = import_string("envs.houses.statistics:R2R_CE")
    columns = {**statistics, **{f"R2R-CE {split}": means for split, means in real.items()}}
    names = list(next(iter(columns.values())))
    rows = [[name, *(column[name] for column in columns.values())] for name in names]
    return str(tabulate(rows, headers=["mean per episode", *columns], floatfmt=".1f"))


def preview_house(data_root: Path, out: Path, split: str, house: str | None, episodes: int) -> str:
    """Draw a generated house into a PNG file; returns what was drawn."""
    warm_up(renderer=True)
    drawn: str = import_string("envs.houses.preview:preview")(data_root, out, split, house, episodes)
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


def _make_env(request: EvalRequest, body: Embodiment, scenes_dir: Path, sensors: frozenset[Sensor]) -> Env:
    factory: Callable[..., Env] = import_string("envs.habitat_env:HabitatEnv")
    env = factory(body, scenes_dir, sensors, request.sim, request.gpu)
    if env.simulator.startswith("embedded"):
        warm_up(renderer=bool(sensors & {"rgb", "depth"}))
    return env


def _evaluate(plan: Plan, agent: Agent, env: Env, folder: Path) -> Summary:
    successes: list[float] = []

    def on_row(row: Row, done: int, total: int) -> None:
        successes.append(float(row.scores.get("success") or 0.0))
        progress.update(done, total, f"SR {100 * sum(successes) / len(successes):.1f} % so far")

    with Progress(f"{plan.agent_name} on {plan.benchmark.name} {plan.split}") as progress:
        return evaluate(plan, agent, env, folder, on_row)


def _write_videos(plan: Plan, scenes_dir: Path, request: EvalRequest, folder: Path) -> None:
    write_video = import_string("vlnbench.video:write_video")
    trajectories = read_trajectories(folder)
    recorded = [(key, episode) for key, episode, _ in plan.units() if key in trajectories][: request.video]
    env = _make_env(request, plan.benchmark.body, scenes_dir, frozenset({"rgb"}))
    try:
        for key, episode in recorded:
            path = folder / "videos" / f"{episode.episode_id}-{key[3]}.mp4"
            write_video(path, env, episode, trajectories[key])
            say(f"video: {path}")
    finally:
        env.close()
