"""Collect training trajectories: every episode walked, seen and written, resumable.

The reference paths are walked, or (`--dagger`) what a model makes of the instructions, corrected or relabeled.

The folder is one set of StreamVLN's `trajectory_data` (`annotations.json`, `images/…/rgb/NNN.jpg`). Beside these
lie `collect.json` (what is being collected) and `collected.jsonl` (a line per finished path): running the same
command again goes on where it ended. `annotations.json` is written last.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tabulate import tabulate

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.datasets import AUGMENTATIONS
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.data.generate import ensure_data
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import RunError, UsageError
from vlnbench.interfaces import Embodiment
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.agents import AgentFacts
from vlnbench.rollout.env_names import find_env
from vlnbench.rollout.episode import Task, episode_seed
from vlnbench.rollout.executor import EnvSetup, Executor, Limits
from vlnbench.rollout.start import small_agents, start_processes
from vlnbench.training.collect.dagger import (
    CORRECTED_BELOW,
    DISAGREEMENTS_PER_ACTION,
    KEPT_WITHIN_M,
    MOST_DISAGREEMENTS,
    REACHED_M,
    UNCORRECTED_BELOW,
    Correction,
    check_driver,
)
from vlnbench.training.collect.options import MAX_ACTIONS, CollectOptions
from vlnbench.training.collect.relabel import Mixed, MixedOptions, Relabeling
from vlnbench.training.collect.walk import (
    GOAL_RADIUS_M,
    JPEG_QUALITY,
    WAYPOINT_RADIUS_M,
    Guide,
    Nobody,
    ReferenceRoute,
    SharedPath,
    Walked,
    WalkTask,
    in_turn,
    shared_name,
    shared_paths,
)
from vlnbench.util.durable.files import append_line, open_for_append, read_jsonl, write_bytes
from vlnbench.util.durable.folder import Kind, differences, open_folder, refuse_another
from vlnbench.util.progress import Progress, say

FORMAT = 1
MANIFEST = "collect.json"
KIND = Kind("collection", MANIFEST)
JOURNAL = "collected.jsonl"

WALK_TIMEOUT_S = 3600.0
"""A walk of which nothing is heard for so long hangs: without a model, nothing is heard before its end."""
FEW_FAILED = 3
"""So many walks, or one in twenty, may fail before a collection stops."""

_NOBODY = f"{Nobody.__module__}:{Nobody.__name__}"


@dataclass(frozen=True, slots=True)
class Collected:
    """What a folder holds: paths and instructions written, by reason where there are several to be kept for, paths
    left out by reason, frames and bytes."""

    paths: int
    instructions: int
    kept: dict[str, int]
    left_out: dict[str, int]
    frames: int
    bytes: int


def collect(request: CollectOptions) -> Collected:
    """Walk every episode of a split and write the trajectories.

    Raises UsageError, with nothing written, for unknown names, broken data and a folder that holds another set.
    """
    request.check()
    request = replace(request, env=find_env(request.env))
    benchmark = get_benchmark(request.benchmark)
    if (benchmark.reader == "rxr") != (request.set == "rxr"):
        raise UsageError(f"--set {request.set}: {benchmark.name} has episodes in {benchmark.reader} format")
    split = request.split or (request.set if request.set in AUGMENTATIONS else "train")
    body = resized(benchmark.body, request.frame_width)
    ensure_data(benchmark, request.data_root, split)
    episode_set = load_split(benchmark, split, request.data_root, allow_partial=request.allow_partial)
    planned = _planned(episode_set, request)
    if (request.out / TRAJECTORIES).is_file() and not (request.out / MANIFEST).is_file():
        raise UsageError(
            f"{request.out}: holds walks that were published, not collected: render their frames with "
            f"`vlnbench data render {request.out}`, or choose another --out"
        )
    with ExitStack() as stack:
        agents = len(request.gpus)
        if request.dagger and not agents:
            agents = small_agents(request.agent, request.agent_options, len(planned))
        envs = max(1, request.workers // max(1, agents))
        executor = stack.enter_context(start_processes(request.env, envs, agents, request.gpus))
        guide = _make_ready(executor, request, body, episode_set.scenes_dir, benchmark.success_distance_m)
        manifest = _manifest(request, benchmark.fingerprint, split, episode_set, body) | {
            "simulator": executor.simulator,
            "dagger": _dagger(request, executor.agent) if request.dagger else None,
        }
        stack.enter_context(open_folder(request.out, KIND, manifest, partial(_check_same, request.out, manifest)))
        stack.callback(executor.close)  # nobody writes when the lock is gone
        done = _walk_the_rest(planned, request, executor, guide)
        records = [done[shared.name].record for shared in planned if done[shared.name].record]
        write_bytes(request.out / TRAJECTORIES, (json.dumps(records, ensure_ascii=False) + "\n").encode())
    return verify(request.out, planned, done)


def _make_ready(
    executor: Executor, request: CollectOptions, body: Embodiment, scenes_dir: Path, success_m: float
) -> Guide:
    """Load the agent, set up environments and return what guides the walks."""
    guide: Guide = ReferenceRoute(success_m, request.disturbance)
    if request.relabel is not None:
        mixed = MixedOptions(
            driver=request.agent,
            driver_options=request.agent_options,
            expert_share=request.relabel,
            overrule_stops=request.overrule_stops,
            max_batch=request.agent_options.max_batch,
        )
        agent = executor.load(f"{Mixed.__module__}:{Mixed.__name__}", mixed)
        guide = Relabeling(request.seed, request.longest, request.stop_within)
    elif request.dagger:
        agent = executor.load(request.agent, request.agent_options)
        guide = Correction(success_m)
    else:
        agent = executor.load(_NOBODY, AgentOptions())
    if request.dagger:
        check_driver(agent, body, corrected=request.relabel is None)
        for line in agent.description.splitlines():
            say(line)
    scenes_dir = scenes_dir.absolute()
    seen = agent.sensors | ({"rgb", "depth"} if request.depth else {"rgb"})
    arguments = (body, scenes_dir, seen, request.sim, request.gpu)
    executor.set_up(EnvSetup(request.env, arguments, agent.sensors, needs=(scenes_dir,)))
    return guide


def verify(root: Path, planned: list[SharedPath], done: dict[str, Walked]) -> Collected:
    """Count what lies in the folder against the plan. Raises UsageError naming what is missing."""
    frames = size = 0
    for shared in planned:
        record = done[shared.name].record
        if record is None:
            continue
        files = sorted((root / record["video"] / "rgb").glob("*.jpg"))
        if len(files) != len(record["actions"]):
            raise UsageError(
                f"{root / record['video']}: {len(files)} frames, expected {len(record['actions'])}; delete "
                f"{root / JOURNAL} and collect again"
            )
        frames += len(files)
        size += sum(file.stat().st_size for file in files)
    kept = [shared for shared in planned if done[shared.name].record]
    reasons = Counter((done[shared.name].record is None, done[shared.name].reason) for shared in planned)
    return Collected(
        paths=len(kept),
        instructions=sum(len(shared.episodes) for shared in kept),
        kept={reason: count for (out, reason), count in sorted(reasons.items(), key=str) if reason and not out},
        left_out={reason: count for (out, reason), count in sorted(reasons.items(), key=str) if reason and out},
        frames=frames,
        bytes=size,
    )


def format_collected(collected: Collected, out: Path) -> str:
    """Table of what was collected."""
    rows: list[list[object]] = [
        ["shared paths", collected.paths],
        ["instructions", collected.instructions],
        ["frames", collected.frames],
        ["frames per path", round(collected.frames / max(1, collected.paths), 1)],
        ["MB", round(collected.bytes / 1e6, 1)],
        *([f"kept: {reason}", count] for reason, count in collected.kept.items()),
        *([f"left out: {reason}", count] for reason, count in collected.left_out.items()),
    ]
    return f"{tabulate(rows)}\ntrajectories: {out / TRAJECTORIES}"


def resized(body: Embodiment, width: int | None) -> Embodiment:
    """The body with a narrower picture of the same field of view and shape."""
    if width is None:
        return body
    camera = body.camera
    height = width * camera.height / camera.width
    if width < 1 or width > camera.width or height != int(height):
        raise UsageError(
            f"--frame-width {width}: expected 1 to {camera.width}, such that the height {camera.height} scales to "
            "a whole number"
        )
    return replace(body, camera=replace(camera, width=width, height=int(height)))


def _planned(episode_set: EpisodeSet, request: CollectOptions) -> list[SharedPath]:
    planned = shared_paths(episode_set.episodes, request.set)
    if request.dagger:  # each instruction leads elsewhere
        planned = [SharedPath(shared_name(each, request.set), (each,)) for each in episode_set.episodes]
    by_name: dict[str, SharedPath] = {}
    for shared in planned:
        other = by_name.setdefault(shared.name, shared)
        if other is not shared:
            ids = " and ".join(each.episodes[0].episode_id for each in (other, shared))
            raise UsageError(
                f"{episode_set.path}: field 'episode_id': the walks of {ids} would both be images/{shared.name}; "
                "expected ids that differ in more than zeros in front: rename one of them"
            )
    if request.relabel is not None:
        random.Random(request.seed).shuffle(planned)
    if request.tours is not None:
        if not 1 <= request.tours <= len(planned):
            raise UsageError(f"--tours {request.tours}: {episode_set.split} has 1 to {len(planned)} paths")
        chosen = planned if request.relabel is not None else in_turn(planned)
        planned = chosen[: request.tours]
    without = next((t for t in planned if not t.episodes[0].goals), None)
    if without is not None:
        raise UsageError(
            f"{episode_set.path}: episode {without.episodes[0].episode_id} has no goal to walk to; choose a split "
            "with public goals"
        )
    counts = request.dagger and request.relabel is None
    unknown = next((t for t in planned if counts and not t.episodes[0].ground_truth), None)
    if unknown is not None:
        raise UsageError(
            f"{episode_set.path}: episode {unknown.episodes[0].episode_id} has no reference actions, which "
            "--dagger counts; put the split's _gt file beside it"
        )
    return planned


def _manifest(
    request: CollectOptions, fingerprint: str, split: str, episode_set: EpisodeSet, body: Embodiment
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "benchmark": request.benchmark,
        "fingerprint": fingerprint,
        "split": split,
        "set": request.set,
        "dataset_sha256": episode_set.sha256,
        "tours": request.tours,
        "simulator": "",
        "frame": [body.camera.width, body.camera.height],
        "jpeg_quality": JPEG_QUALITY,
        "waypoint_radius_m": WAYPOINT_RADIUS_M,
        "goal_radius_m": GOAL_RADIUS_M,
        "max_actions": MAX_ACTIONS,
        "disturbance": request.disturbance,
        "dagger": None,
        **({"depth": True} if request.depth else {}),
        **({"tours_of": "scenes in turn"} if request.tours is not None and request.relabel is None else {}),
    }


def _dagger(request: CollectOptions, agent: AgentFacts) -> dict[str, Any]:
    """The manifest's entry about the model that drives and the rules of its corrections."""
    about: dict[str, Any] = {"agent": request.agent, "agent_code": agent.code, "identity": dict(agent.identity)}
    if request.relabel is not None:
        rules: dict[str, Any] = {
            "expert_share": request.relabel,
            "seed": request.seed,
            "longest": request.longest,
        }
        if request.overrule_stops:
            rules["overrule_stops"] = "for good"  # at first the expert acted once
        if request.stop_within is not None:
            rules["stop_within_m"] = request.stop_within
        return {**about, **rules}
    return {
        **about,
        "waypoint_radius_m": REACHED_M,
        "disagreements": [DISAGREEMENTS_PER_ACTION, MOST_DISAGREEMENTS],
        "kept_within_m": KEPT_WITHIN_M,
        "kept_ratios": [CORRECTED_BELOW, UNCORRECTED_BELOW],
    }


def _check_same(out: Path, manifest: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise UsageError if `found`, which lies in the folder, is the manifest of another collection.

    Earlier versions wrote what a model says of itself as text, and nothing of its code; such a collection goes on.
    """
    differing = dict(differences(found, manifest))
    before, now = differing.get("dagger", (None, None))
    if before and now:
        said = {name: str(value) for name, value in now["identity"].items()}
        before = {"agent_code": now["agent_code"], **before}
        if before in (now, {**now, "identity": said}):
            del differing["dagger"]
    refuse_another(out, KIND, differing)


def _walk_the_rest(
    planned: list[SharedPath], request: CollectOptions, executor: Executor, guide: Guide
) -> dict[str, Walked]:
    """Walk the paths that the journal does not hold; returns all of them by name.

    Raises RunError at the end if some failed, and as soon as many have.
    """
    path = request.out / JOURNAL
    done = {entry["name"]: Walked(**entry) for _, entry in read_jsonl(path)}
    todo = [shared for shared in planned if shared.name not in done]
    say(f"{len(planned)} paths, {len(planned) - len(todo)} of them walked before; folder {request.out}")
    tasks = [_task(shared, request, guide) for shared in todo]
    with (
        open_for_append(path) as journal,
        Progress("walking") as progress,
        closing(walk_all(tasks, executor, request.agent_options.max_batch, progress)) as made,
    ):
        for walked in made:
            append_line(journal, asdict(walked))
            done[walked.name] = walked
            left_out = sum(each.record is None for each in done.values())
            progress.update(len(done), len(planned), f"{left_out} left out" if left_out else "")
    return done


def walk_all(
    tasks: Sequence[Task], executor: Executor, batch: int | None, progress: Progress
) -> Generator[Any, None, None]:
    """What the tasks make, as it is made. batch: as of `Limits`.

    Raises RunError at the end if walks failed, and as soon as many have.
    """
    failed: list[str] = []
    with closing(executor.run(tasks, Limits(batch, WALK_TIMEOUT_S))) as outcomes:
        for outcome in outcomes:
            if outcome.rollout is not None:
                yield outcome.rollout.product
                continue
            failed.append(f"episode {outcome.task.episode.episode_id}: {outcome.reason}")
            progress.say(failed[-1])
            if len(failed) > max(FEW_FAILED, len(tasks) // 20):
                break
    if failed:
        raise RunError(
            f"{len(failed)} walks failed, the last one of {failed[-1]}; run the same command again to walk them "
            "again, with fewer --workers if it was memory"
        )


def _task(shared: SharedPath, request: CollectOptions, guide: Guide) -> Task:
    episode = shared.episodes[0]
    seed = episode_seed(request.seed, episode.episode_id, 0)
    return Task(episode, 0, seed, MAX_ACTIONS, WalkTask(shared, request.out.absolute(), guide, request.depth))
