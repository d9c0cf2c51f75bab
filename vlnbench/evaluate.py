"""A run: every planned episode once, recorded as it finishes, resumable at any moment."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import subprocess
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from vlnbench import __version__
from vlnbench.benchmarks import Benchmark
from vlnbench.episodes import EpisodeSet
from vlnbench.errors import UsageError
from vlnbench.interfaces import Agent, Env, Episode
from vlnbench.metrics import METRICS_VERSION, score
from vlnbench.records import FORMAT, Row, RowKey, RunFolder, read_rows
from vlnbench.rollout import Rollout, run_episode
from vlnbench.summary import Summary, summarize

IDENTITY_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run consists of. Everything here can change a result and is part of the run's identity."""

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

    def identity(self, agent: Agent, env: Env) -> dict[str, Any]:
        """Everything that decides the rows of this run; execution settings and paths stay out."""
        return {
            "identity_version": IDENTITY_VERSION,
            "benchmark": self.benchmark.name,
            "fingerprint": self.benchmark.fingerprint,
            "split": self.split,
            "dataset_sha256": self.dataset_sha256,
            "dataset_version": self.dataset_version,
            "partial": self.partial,
            "episodes": f"{len(self.episodes)} of {self.split_size}",
            "episodes_sha256": self.episodes_sha256,
            "agent": self.agent_name,
            "agent_code": _code_digest(agent),
            **{f"agent_{key}": value for key, value in agent.identity.items()},
            "simulator": env.simulator,
            "seed": self.seed,
            "repeats": self.repeats,
        }


def make_plan(
    benchmark: Benchmark, episode_set: EpisodeSet, agent_name: str, *, count: int | None, seed: int, repeats: int
) -> Plan:
    """Plan a run over a split, or over `count` episodes of it.

    The subset is the same for every agent and seed, and a smaller one is contained in a larger one: episodes are
    drawn in the order of a hash of their ids. Raises UsageError on impossible numbers.
    """
    size = len(episode_set.episodes)
    if count is not None and not 1 <= count <= size:
        raise UsageError(f"--episodes {count}: {benchmark.name} {episode_set.split} has 1 to {size} episodes")
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: expected at least 1")
    drawn = sorted(episode_set.episodes, key=lambda episode: _digest("subset", episode.episode_id))[:count]
    chosen = {episode.episode_id for episode in drawn}
    episodes = tuple(episode for episode in episode_set.episodes if episode.episode_id in chosen)
    return Plan(
        benchmark,
        episode_set.split,
        episode_set.sha256,
        size,
        episodes,
        agent_name,
        seed,
        repeats,
        dataset_version=episode_set.version,
        partial=episode_set.partial,
    )


def check_conventions(agent: Agent, plan: Plan) -> None:
    """Refuse an agent whose training conventions the benchmark does not meet."""
    conflicts = agent.expects.conflicts(plan.benchmark.body)
    if conflicts:
        listed = ", ".join(f"{name} {wanted} (it has {has})" for name, (wanted, has) in conflicts.items())
        raise UsageError(
            f"agent {plan.agent_name!r} does not fit benchmark {plan.benchmark.name!r}: needs {listed}"
        )


def default_folder(plan: Plan, agent: Agent, env: Env) -> Path:
    """`runs/<benchmark>/<split>/<agent>-<identity>`: the same command finds its own folder again."""
    text = json.dumps(plan.identity(agent, env), sort_keys=True)
    name = plan.agent_name.replace("/", "_").replace(":", ".")
    return Path("runs", plan.benchmark.name, plan.split, f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")


def evaluate(
    plan: Plan, agent: Agent, env: Env, folder: Path, on_row: Callable[[Row, int, int], None] | None = None
) -> Summary:
    """Run every planned episode that `folder` does not hold yet and write the summary.

    `on_row` is called after each episode with (row, episodes done, episodes planned). An exception inside an
    episode becomes an error row; a UsageError ends the run, and the folder is removed if no episode finished.
    """
    check_conventions(agent, plan)
    env.check(plan.episodes)
    units = list(plan.units())
    with RunFolder(folder, _manifest(plan, agent, env)) as run:
        done = {row.key for row in read_rows(folder)}
        try:
            for key, episode, repeat in units:
                if key in done:
                    continue
                row, rollout = _run_unit(plan, agent, env, episode, repeat)
                run.append(row, rollout.trajectory if rollout else None)
                done.add(key)
                if on_row is not None:
                    on_row(row, len(done), len(units))
        except UsageError:
            run.discard_if_empty()
            raise
        summary = summarize(read_rows(folder), [key for key, _, _ in units], plan.identity(agent, env))
        run.write_summary(asdict(summary))
    return summary


def episode_seed(seed: int, episode_id: str, repeat: int) -> int:
    """Seed of one episode: independent of order, workers and of which other episodes run."""
    return int(_digest("seed", seed, episode_id, repeat)[:8], 16)


def _run_unit(plan: Plan, agent: Agent, env: Env, episode: Episode, repeat: int) -> tuple[Row, Rollout | None]:
    seed = episode_seed(plan.seed, episode.episode_id, repeat)
    rollout: Rollout | None = None
    result: dict[str, Any]
    try:
        rollout = run_episode(env, agent, episode, seed=seed, max_steps=plan.benchmark.max_steps)
        seconds = {"env": round(rollout.env_seconds, 4), "agent": round(rollout.agent_seconds, 4)}
        result = {"status": "unscored", "seconds": seconds}
        if episode.goals:
            scores = score(rollout.trajectory, episode, plan.benchmark.success_distance_m)
            result |= {"status": "ok", "scores": asdict(scores)}
    except UsageError:
        raise
    except Exception as error:  # an episode that breaks is a failed episode, not a lost run
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        result = {"status": "error", "reason": f"{type(error).__name__}: {error} ({where})"}
    row = Row(
        benchmark=plan.benchmark.name,
        fingerprint=plan.benchmark.fingerprint,
        split=plan.split,
        episode_id=episode.episode_id,
        repeat=repeat,
        scene_id=episode.scene_id,
        trajectory_id=episode.trajectory_id,
        seed=seed,
        **result,
    )
    return row, rollout


def _manifest(plan: Plan, agent: Agent, env: Env) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "metrics_version": METRICS_VERSION,
        "identity": plan.identity(agent, env),
        "agent_privileged": agent.privileged or "oracle_action" in agent.sensors,
        "protocol": asdict(plan.benchmark),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "vlnbench": __version__,
        "git": _git_revision(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("numpy", "numba", "habitat-lab", "torch", "transformers")},
    }


def _code_digest(agent: Agent) -> str | None:
    """Hash of the file that defines the agent, so that an edited agent does not resume its former self's run."""
    try:
        return hashlib.sha256(Path(inspect.getfile(type(agent))).read_bytes()).hexdigest()[:12]
    except (TypeError, OSError):  # defined in an interactive session
        return None


def _git_revision() -> str | None:
    """Commit of the vlnbench checkout, `+dirty` if it has changes; None when installed without one."""
    here = Path(__file__).parent
    try:
        commands = (["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no"])
        head, status = (
            subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+dirty" if status else "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()
