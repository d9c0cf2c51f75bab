"""A run: every planned episode once, recorded as it finishes, resumable at any moment."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from vlnbench.data.benchmarks import Benchmark, misfit
from vlnbench.data.episodes import EpisodeSet
from vlnbench.errors import GpuMemoryError, RunError, UsageError
from vlnbench.evaluation.answers.file import AnswersFile
from vlnbench.evaluation.choice.choice import Choice, is_first
from vlnbench.evaluation.choice.told import Told, told_others
from vlnbench.evaluation.costs import part_seconds
from vlnbench.evaluation.identity import TOLD, Identity
from vlnbench.evaluation.metrics import METRICS_VERSION, score
from vlnbench.evaluation.records import FORMAT, MANIFEST, Row, RowKey, RunFolder, read_row, read_rows
from vlnbench.evaluation.summary import Summary, summarize
from vlnbench.evaluation.until.decide import judge, read_against, rounds
from vlnbench.evaluation.until.rule import Rule
from vlnbench.interfaces import Episode
from vlnbench.rollout.agents import AgentFacts
from vlnbench.rollout.episode import Outcome, Task, digest, episode_seed, failure
from vlnbench.rollout.executor import NO_BATCH, Executor, Limits, Times
from vlnbench.util.machine import git_revision, installed_version
from vlnbench.util.visible import one_line
from vlnbench.version import __version__

LONGEST_REASON = 500
"""Characters of why an episode failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run consists of. Everything here can change a result and is part of the run's identity.

    choice: what left episodes of the split out, but for a number of them. first: they are the first of their file.
    told: whose instructions the episodes have.
    """

    benchmark: Benchmark
    split: str
    dataset_sha256: str
    split_size: int
    episodes: tuple[Episode, ...]
    agent_name: str
    seed: int = 0
    repeats: int = 1
    dataset_version: str = "unknown"
    partial: bool = False
    choice: Choice = field(default_factory=Choice)
    first: bool = False
    told: Told = "own"

    def units(self) -> Iterator[tuple[RowKey, Episode, int]]:
        """(row key, episode, repeat), grouped by scene so that scenes are loaded once."""
        for episode in sorted(self.episodes, key=lambda episode: episode.scene_id):
            for repeat in range(self.repeats):
                yield (self.benchmark.name, self.split, episode.episode_id, repeat), episode, repeat

    @property
    def episodes_sha256(self) -> str:
        """Hash of the ids of the planned episodes, in their order."""
        ids = json.dumps([episode.episode_id for episode in self.episodes])
        return hashlib.sha256(ids.encode()).hexdigest()

    @property
    def choice_label(self) -> str:
        """What the choice of episodes is called in tables; empty where none was made."""
        return self.choice.label + ("; the first of the file" if self.first else "") if self.choice else ""

    def task(self, episode: Episode, repeat: int) -> Task:
        """One of the units, to be run."""
        seed = episode_seed(self.seed, episode.episode_id, repeat)
        return Task(episode, repeat, seed, self.benchmark.max_steps)

    def identity(self, executor: Executor) -> Identity:
        """Everything that decides the rows of this run. Raises UsageError for an agent that misstates its own."""
        return Identity(
            benchmark=self.benchmark.name,
            fingerprint=self.benchmark.fingerprint,
            split=self.split,
            dataset_sha256=self.dataset_sha256,
            dataset_version=self.dataset_version,
            partial=self.partial,
            choice=self.choice_label,
            episodes=len(self.episodes),
            split_size=self.split_size,
            episodes_sha256=self.episodes_sha256,
            agent=self.agent_name,
            agent_code=executor.agent.code,
            agent_identity={**executor.agent.identity, **({} if self.told == "own" else {TOLD: self.told})},
            simulator=executor.simulator,
            seed=self.seed,
            repeats=self.repeats,
        )


@dataclass(frozen=True, slots=True)
class Execution:
    """How a run is carried out. Nothing here changes a row, but for which errors are run again.

    max_errors: the run stops when more episodes than this have failed; below 1, a part of the planned ones.
    retry_errors: run failed episodes of an earlier attempt again; the last row of an episode counts. times: what
    is added up meanwhile. until: what the run is to find out; it ends when it has, with episodes missing.
    """

    limits: Limits = NO_BATCH
    max_errors: float = math.inf
    retry_errors: bool = False
    times: Times = field(default_factory=Times)
    until: Rule | None = None

    def check_errors(self, failed: Sequence[Row], planned: int) -> None:
        """Raise RunError if more than the allowed number of episodes has failed."""
        allowed = self.max_errors if self.max_errors >= 1 else math.ceil(self.max_errors * planned)
        if len(failed) > allowed:
            raise RunError(
                f"{len(failed)} episodes failed, and --max-errors allows {allowed:g} of {planned}; the last one, "
                f"episode {failed[-1].episode_id}: {failed[-1].reason}. To go on, run the same command with "
                "--retry-errors, or with a larger --max-errors"
            )


def make_plan(
    benchmark: Benchmark,
    episode_set: EpisodeSet,
    agent_name: str,
    *,
    count: int | None,
    seed: int,
    repeats: int,
    choice: Choice | None = None,
    told: Told = "own",
) -> Plan:
    """Plan a run over a split or what is chosen of it, or over `count` episodes of these.

    That subset is the same for every agent and seed, and a smaller one is contained in a larger one: episodes are
    drawn in the order of a hash of their ids. Raises UsageError on impossible numbers and choices.
    """
    choice = choice or Choice()
    there = choice.select(episode_set.episodes) if choice else episode_set.episodes
    if count is not None and not 1 <= count <= len(there):
        whole = f"{benchmark.name} {episode_set.split} has 1 to {len(episode_set.episodes)} episodes"
        raise UsageError(f"--episodes {count}: {whole}" + (f"; chosen are {len(there)}" if choice else ""))
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: expected at least 1")
    drawn = sorted(there, key=lambda episode: digest("subset", episode.episode_id))[:count]
    chosen = {episode.episode_id for episode in drawn}
    episodes = tuple(episode for episode in episode_set.episodes if episode.episode_id in chosen)
    return Plan(
        benchmark,
        episode_set.split,
        episode_set.sha256,
        len(episode_set.episodes),
        told_others(episodes, episode_set.episodes) if told == "other" else episodes,
        agent_name,
        seed,
        repeats,
        dataset_version=episode_set.version,
        partial=episode_set.partial,
        choice=choice,
        first=bool(choice) and is_first(episodes, episode_set.episodes),
        told=told,
    )


def check_conventions(agent: AgentFacts, plan: Plan) -> None:
    """Refuse an agent whose training conventions the benchmark does not meet."""
    if wrong := misfit(plan.benchmark, agent.expects):
        raise UsageError(
            f"agent {plan.agent_name!r} does not fit benchmark {plan.benchmark.name!r}: {wrong}, which "
            "--as-published takes"
        )


def default_folder(plan: Plan, executor: Executor) -> Path:
    """`runs/<benchmark>/<split>/<agent>-<identity>`: the same command finds its own folder again."""
    identity = plan.identity(executor)
    name = plan.agent_name.replace("/", "_").replace(":", ".")
    folder = Path("runs", plan.benchmark.name, plan.split, f"{name}-{identity.digest()}")
    older = folder.with_name(f"{name}-{identity.digest_version_1()}")
    return older if (older / MANIFEST).is_file() and not folder.exists() else folder


def evaluate(
    plan: Plan,
    executor: Executor,
    folder: Path,
    on_row: Callable[[Row, int, int], None] | None = None,
    execution: Execution | None = None,
) -> Summary:
    """Run every planned episode that `folder` does not hold yet and write the summary.

    executor: set up and ready to run. `on_row` is called after each episode with (row, episodes done, episodes
    planned). An exception or a crash inside an episode becomes an error row, which is kept when the run is
    resumed. A UsageError ends the run, and the folder is removed if no episode finished. Raises RunError if the
    run cannot go on; what is recorded stays.
    """
    execution = execution or Execution()
    check_conventions(executor.agent, plan)
    executor.check(plan.episodes)
    units = list(plan.units())
    read_other = partial(read_against, execution.until, plan.identity(executor))
    read_other()  # refuses what cannot be compared before anything is written
    kept = AnswersFile(folder, execution.limits.answers)
    with RunFolder(folder, _manifest(plan, executor), execution.retry_errors) as run, kept:
        recorded = [row for row in read_rows(folder) if not (execution.retry_errors and row.failed)]
        done, failed = {row.key for row in recorded}, [row for row in recorded if row.failed]
        tasks = [plan.task(episode, repeat) for key, episode, repeat in units if key not in done]
        begun = False
        try:
            for part in _parts(plan, tasks, execution.until, read_other, folder):
                if not begun:
                    execution.check_errors(failed, len(units))
                    run.begin_attempt(_work(executor))
                    begun = True
                with closing(_record(plan, executor, part, run, kept, execution)) as rows:
                    for row in rows:
                        done.add(row.key)
                        if on_row is not None:
                            on_row(row, len(done), len(units))
                        if row.failed:
                            failed.append(row)
                            execution.check_errors(failed, len(units))
        except UsageError:
            run.discard_if_empty()
            raise
        except GpuMemoryError as error:
            run.amend_attempt({"status": "oom", "reason": str(error)})
            raise
        summary = summarize(read_rows(folder), [key for key, _, _ in units], plan.identity(executor))
        run.write_summary(asdict(summary))
    return summary


def _parts(
    plan: Plan, tasks: list[Task], until: Rule | None, read_other: Callable[[], list[Row] | None], folder: Path
) -> Iterator[list[Task]]:
    """The tasks in parts, one after the other, until enough is known; in one part where nothing is asked."""
    if until is None:
        yield from [tasks] if tasks else []
        return
    ids = [episode.episode_id for episode in plan.episodes]
    left = {(task.episode.episode_id, task.repeat) for task in tasks}
    for names in rounds(ids):
        part = [task for task in tasks if task.episode.episode_id in set(names)]
        if not part:
            continue
        rows = (row for row in read_rows(folder) if (row.episode_id, row.repeat) not in left)
        if judge(until, ids, plan.repeats, rows, read_other()).decided:
            return
        yield part
        left -= {(task.episode.episode_id, task.repeat) for task in part}


def _record(
    plan: Plan, executor: Executor, tasks: list[Task], run: RunFolder, kept: AnswersFile, execution: Execution
) -> Generator[Row, None, None]:
    """Run tasks, write their rows and add up where the time went."""
    times, start = execution.times, time.perf_counter()
    ended = start
    waited_before, total_before = executor.timings().waited_s - times.waiting, times.total
    said = 0
    with ExitStack() as stack:
        stack.callback(_amend, run, executor)
        outcomes = stack.enter_context(closing(executor.run(tasks, execution.limits)))
        for outcome in outcomes:
            began = time.perf_counter()
            row, detail = _row(plan, outcome)
            row = replace(row, seconds={**row.seconds, "wall": round(began - ended, 4)})
            ended = began
            kept.append(row.key, outcome.answers)  # before the row, which says that the episode is done
            run.append(row, outcome.rollout.trajectory if outcome.rollout else None, detail)
            if len(executor.timings().shortages) > said:
                _amend(run, executor)
                said = len(executor.timings().shortages)
            yield row
            now = time.perf_counter()
            times.episodes, times.total = times.episodes + 1, total_before + now - start
            times.records += now - began
            times.simulators += row.seconds.get("env", 0.0)
            times.agents += row.seconds.get("agent", 0.0)
            times.waiting = executor.timings().waited_s - waited_before


def _row(plan: Plan, outcome: Outcome) -> tuple[Row, str | None]:
    """The row of an outcome, and the stack of what went wrong."""
    task = outcome.task
    reason = None if outcome.reason is None else one_line(outcome.reason, LONGEST_REASON)
    result: dict[str, Any] = {"status": outcome.status, "reason": reason}
    if outcome.rollout is not None:
        seconds = {"env": outcome.rollout.env_seconds, "agent": outcome.rollout.agent_seconds}
        rounded = {part: round(value, 4) for part, value in seconds.items()}
        result = {"status": "unscored", "seconds": rounded | part_seconds(outcome.rollout.step_seconds)}
        result["report"] = dict(outcome.rollout.report)
        if task.episode.goals:
            try:
                scores = score(outcome.rollout.trajectory, task.episode, plan.benchmark.success_distance_m)
            except Exception as error:  # an environment whose distances do not fit its poses
                return _row(plan, failure(task, error))
            result |= {"status": "ok", "scores": asdict(scores)}
    row = Row(
        benchmark=plan.benchmark.name,
        fingerprint=plan.benchmark.fingerprint,
        split=plan.split,
        episode_id=task.episode.episode_id,
        repeat=task.repeat,
        scene_id=task.episode.scene_id,
        trajectory_id=task.episode.trajectory_id,
        seed=task.seed,
        **result,
    )
    try:
        read_row(asdict(row), "the episode's row")  # whatever is written can be read
    except UsageError as error:
        return _row(plan, failure(task, error))
    return row, outcome.detail


def _work(executor: Executor) -> dict[str, Any]:
    """How many agents and simulators run the episodes, on what, and what the agent says of itself."""
    timings = executor.timings()
    return {
        "agents": timings.n_agents,
        "simulators": timings.n_simulators,
        "agent": executor.agent.description.splitlines(),
        "hardware": dict(executor.agent.hardware),
    }


def _amend(run: RunFolder, executor: Executor) -> None:
    """Record of the agents' GPUs for which batches there was no room, and the peaks since the agents began."""
    timings = executor.timings()
    found = {"gpu_memory": timings.shortages, "memory": [peaks for _, peaks in sorted(timings.memory.items())]}
    if known := {name: value for name, value in found.items() if value}:
        run.amend_attempt(known)


def _manifest(plan: Plan, executor: Executor) -> dict[str, Any]:
    agent = executor.agent
    return {
        "format": FORMAT,
        "metrics_version": METRICS_VERSION,
        "identity": asdict(plan.identity(executor)),
        "agent_privileged": agent.privileged or "oracle_action" in agent.sensors,
        **({"agent_place": dict(agent.place)} if agent.place else {}),
        "protocol": asdict(plan.benchmark),
        **({"choice": plan.choice.to_json()} if plan.choice else {}),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "vlnbench": __version__,
        "git": git_revision(),
        "python": platform.python_version(),
        "packages": {
            name: installed_version(name) for name in ("numpy", "numba", "habitat-lab", "torch", "transformers")
        },
    }
