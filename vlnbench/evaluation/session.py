"""The evaluation that a command asks for: find data, make agent and simulators, run, show."""

from __future__ import annotations

import contextlib
import shlex
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from vlnbench.data.benchmarks import Benchmark, as_expected, get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.data.generate import ensure_data
from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.choice import differences
from vlnbench.evaluation.evaluate import (
    Execution,
    Plan,
    check_conventions,
    default_folder,
    evaluate,
    make_plan,
)
from vlnbench.evaluation.identity import read_identity
from vlnbench.evaluation.options import EvalOptions
from vlnbench.evaluation.records import MANIFEST, Row, read_manifest, read_rows, read_trajectories
from vlnbench.evaluation.summary import Summary, format_summary, summarize
from vlnbench.evaluation.tally import Tally
from vlnbench.evaluation.until.decide import Verdict, judge, read_against
from vlnbench.interfaces import Env, Sensor
from vlnbench.rollout.env_names import find_env
from vlnbench.rollout.executor import EnvSetup, Executor, Limits, prepare
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.start import SMALL_ENVS, small_agents, start_on_ray, start_processes
from vlnbench.util.durable.receipt import RECEIPT, is_current, write_receipt
from vlnbench.util.loading import import_string, own_code
from vlnbench.util.machine import gpus
from vlnbench.util.progress import Progress, say
from vlnbench.util.trackers import TrackedRun, Trackers, numbers, parse_trackers

FIRST_OF_R2R = (
    "A published agent succeeds in 40.6 % of R2R-CE val_unseen, but in 31.2 % of the first 48 and 30.0 % of the "
    "first 100 of the file"
)
"""Measured with the published log of a waypoint agent (CWP, arXiv 2203.02764)."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A run that has come to its end. remarks: what its agent had to say after it. verdict: of `--until`."""

    folder: Path
    plan: Plan
    scenes_dir: Path
    summary: Summary
    remarks: str
    verdict: Verdict | None = None


def run_eval(request: EvalOptions) -> None:
    """Evaluate an agent and print the table. Raises UsageError, with nothing written, for bad names and files."""
    if request.debug:
        _debug(request)
        return
    done = carry_out(request)
    folder = done.folder
    print(format_summary(done.summary))
    if done.verdict:
        print(f"--until '{done.verdict.rule}': {done.verdict}")
    if done.remarks:
        print(done.remarks)
    print(f"rows, trajectories and summary: {folder}")
    if request.video:
        made = replace(request, env=find_env(request.env))
        _write_videos(done.plan, done.scenes_dir, made, folder)
    data_root = f" --data-root {shlex.quote(str(request.data_root))}" if request.data_root != Path("data") else ""
    print(f"to look at it: vlnbench report {shlex.quote(str(folder))}{data_root}")


def _debug(request: EvalOptions) -> None:
    """One episode in this process, which nothing watches: what an agent raises is raised, and nothing is kept."""
    with TemporaryDirectory() as folder:
        one = replace(request, debug=False, episodes=1, repeats=1, out=Path(folder, "run"))
        print(format_summary(carry_out(one, Inline(catches=False)).summary))


def carry_out(request: EvalOptions, executor: Executor | None = None) -> Evaluated:
    """Evaluate an agent, with progress on stderr; `executor` in place of the one that the options ask for.

    Raises UsageError, with nothing written, for bad names and files.
    """
    request.check()
    request = replace(request, env=find_env(request.env))
    benchmark = get_benchmark(request.benchmark)
    if request.split not in benchmark.splits:
        load_split(benchmark, request.split, request.data_root)  # raises with the known names
    if executor is None and (done := _finished_before(request, benchmark)):
        return done
    with executor or _start(request) as executor:  # while agent and data load
        agent = executor.load(request.agent, request.agent_options)
        ensure_data(benchmark, request.data_root, request.split)
        split = load_split(benchmark, request.split, request.data_root, allow_partial=request.allow_partial)
        if request.as_published:
            benchmark = as_expected(benchmark, agent.expects)
            say(f"benchmark {benchmark.name}, whose body is the one that the agent was trained with")
        plan = _plan(request, benchmark, split, agent.name)
        check_conventions(agent, plan)
        scenes_dir = split.scenes_dir.absolute()
        arguments = (benchmark.body, scenes_dir, agent.sensors, request.sim)
        executor.set_up(EnvSetup(request.env, arguments, agent.sensors, needs=(scenes_dir,)))
        folder = request.out or default_folder(plan, executor)
        for line in agent.description.splitlines():
            say(line)
        say(f"{len(plan.episodes)} episodes of {_described(split)}; run folder {folder}")
        if plan.choice:
            _say_choice(plan, split)
        if not request.debug and all(row.failed for row in read_rows(folder)):
            _try_first_step(plan, executor, request)
        summary = _evaluate(plan, executor, folder, request)
        if summary.complete and agent.files is not None:
            with contextlib.suppress(OSError):  # it would only have saved time
                write_receipt(folder, _asked(request), [*agent.files, *own_code(request.env)[1], split.path])
        verdict = _verdict(plan, executor, folder, request)
        return Evaluated(folder, plan, split.scenes_dir, summary, executor.remarks(), verdict)


def _try_first_step(plan: Plan, executor: Executor, request: EvalOptions) -> None:
    """Raise UsageError, with nothing written, where an agent of the user's own fails at its very first step."""
    module = request.agent.rpartition(":")[0].rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
    if not module or "://" in request.agent:
        return
    _, episode, repeat = next(iter(plan.units()))
    task = replace(plan.task(episode, repeat), max_steps=1)
    with closing(executor.run([task], Limits(timeout_s=request.episode_timeout))) as outcomes:
        (outcome,) = outcomes
    reason, stack = outcome.reason or "", outcome.detail or ""
    if outcome.status == "error" and (f"{module}.py" in stack or reason.startswith("ValueError: the agent")):
        raise UsageError(
            f"agent {request.agent!r}: its first step failed: {reason}; the same command with --debug shows all"
        )


def _finished_before(request: EvalOptions, benchmark: Benchmark) -> Evaluated | None:
    """The run that is asked for, if it is complete and nothing that it was made from has changed since.

    The agent, which would know for certain, takes seconds to load; the receipt in the run's folder says what to
    look at instead.
    """
    if request.until or request.tracker or request.ray or request.retry_errors or request.as_published:
        return None
    asked, own = _asked(request), Path("runs", benchmark.name, request.split)
    folders = [request.out] if request.out else sorted(path.parent for path in own.glob(f"*/{RECEIPT}"))
    for folder in folders:
        if not is_current(folder, asked):
            continue
        identity = read_identity(read_manifest(folder).get("identity"), str(folder / MANIFEST))
        split = load_split(benchmark, request.split, request.data_root, allow_partial=request.allow_partial)
        plan = _plan(request, benchmark, split, identity.agent)
        if (identity.dataset_sha256, identity.fingerprint) != (split.sha256, benchmark.fingerprint):
            continue
        summary = summarize(read_rows(folder), [key for key, _, _ in plan.units()], identity)
        if summary.complete:
            say(f"complete, and unchanged since: {folder}")
            return Evaluated(folder, plan, split.scenes_dir, summary, remarks="")
    return None


def _asked(request: EvalOptions) -> dict[str, object]:
    """What a receipt has to know of the options; the folder is where the receipt lies."""
    return {field.name: getattr(request, field.name) for field in fields(request) if field.name != "out"}


def _plan(request: EvalOptions, benchmark: Benchmark, split: EpisodeSet, agent_name: str) -> Plan:
    return make_plan(
        benchmark,
        split,
        agent_name,
        count=request.episodes,
        seed=request.seed,
        repeats=request.repeats,
        choice=request.choice,
        told=request.told,
    )


def _verdict(plan: Plan, executor: Executor, folder: Path, request: EvalOptions) -> Verdict | None:
    """What the rows say of what the run was to find out."""
    until = request.rule
    if until is None:
        return None
    against = read_against(until, plan.identity(executor))
    ids = [episode.episode_id for episode in plan.episodes]
    return judge(until, ids, plan.repeats, read_rows(folder), against)


def _say_choice(plan: Plan, split: EpisodeSet) -> None:
    """Say what was chosen and how it differs from the split; warn of the first episodes of a file."""
    say(f"chosen: {plan.choice_label}: {differences(plan.episodes, split.episodes)}")
    if plan.first:
        n = len(plan.episodes)
        say(
            f"warning: these are the first {n} episodes of their file, which follow each other by route, so what "
            f"they score can be far from the split. {FIRST_OF_R2R}. --episodes {n} draws as many from everywhere"
        )


def _described(episode_set: EpisodeSet) -> str:
    """Which of the files that may lie below the data root were taken."""
    notes = [episode_set.version, *(["not the published number"] if episode_set.partial else [])]
    if episode_set.passed_over:
        notes.append(f"not taken: {', '.join(map(str, episode_set.passed_over))}")
    return f"{episode_set.path} ({'; '.join(notes)}), scenes below {episode_set.scenes_dir}"


def _start(request: EvalOptions) -> Executor:
    """Start the processes that the options ask for. Raises UsageError for GPUs that this machine does not have."""
    if request.gpus and not gpus():
        raise UsageError(f"--gpus {','.join(request.gpus)}: the driver of this machine shows no GPU")
    if request.ray:
        gpu = request.agent_options.device_choice != "cpu"
        return start_on_ray(request.env, request.ray, request.agents, request.envs, gpu)
    most, batch = request.most_envs, request.agent_options.max_batch
    if not (request.n_agents or request.envs):
        count = small_agents(request.agent, request.agent_options, most)
        if count:
            return start_processes(request.env, SMALL_ENVS, count)
    return start_processes(request.env, request.envs, request.n_agents, request.gpus, most, batch)


def _evaluate(plan: Plan, executor: Executor, folder: Path, request: EvalOptions) -> Summary:
    tally = Tally([row for row in read_rows(folder) if not (request.retry_errors and row.failed)])

    def on_row(row: Row, done: int, total: int) -> None:
        tally.add(row)
        trackers.log(tally.values(executor.timings().memory.values()), done)
        if row.failed:
            progress.say(f"episode {row.episode_id}: {row.status}: {row.reason}")
        progress.update(done, total, tally.note(total - done))

    tracked = TrackedRun(str(folder), folder, plan.identity(executor).flat())
    execution = Execution(
        Limits(request.agent_options.max_batch, request.episode_timeout, request.keep_answers),
        request.max_errors,
        request.retry_errors,
        until=request.rule,
    )
    waiting = "no episode has ended yet"
    with Trackers(parse_trackers(request.tracker), tracked) as trackers, Progress(waiting=waiting) as progress:
        summary = evaluate(plan, executor, folder, on_row, execution)
        timings = executor.timings()
        if execution.times.episodes:
            progress.say(execution.times.describe(timings.n_agents, timings.n_simulators))
        else:
            progress.say("complete before: no episode was run")
        trackers.summarize(numbers({label: value.mean for label, value in summary.metrics.items() if value}))
        return summary


def _write_videos(plan: Plan, scenes_dir: Path, request: EvalOptions, folder: Path) -> None:
    write_video = import_string("vlnbench.evaluation.video:write_video")
    trajectories = read_trajectories(folder)
    recorded = [(key, episode) for key, episode, _ in plan.units() if key in trajectories][: request.video]
    sensors: frozenset[Sensor] = frozenset({"rgb"})
    videos = (folder / "videos").absolute()  # wherever the environment goes
    env: Env = import_string(request.env)(plan.benchmark.body, scenes_dir, sensors, request.sim)
    try:
        prepare(env)
        for key, episode in recorded:
            path = videos / f"{episode.episode_id}-{key[3]}.mp4"
            write_video(path, env, episode, trajectories[key])
            say(f"video: {path}")
    finally:
        env.close()
