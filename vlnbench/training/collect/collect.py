"""Collect training trajectories: every episode walked, seen and written, resumable.

The reference paths are walked, or (`--dagger`) what a model makes of the instructions, corrected.

The folder is one set of StreamVLN's `trajectory_data` (`annotations.json`, `images/…/rgb/NNN.jpg`). Beside these
lie `collect.json` (what is being collected) and `collected.jsonl` (a line per finished tour): running the same
command again goes on where it ended. `annotations.json` is written last.
"""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tabulate import tabulate

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.data.generate import ensure_data
from vlnbench.errors import UsageError
from vlnbench.interfaces import Embodiment, Scalar
from vlnbench.training.collect.dagger import (
    CORRECTED_BELOW,
    DISAGREEMENTS_PER_ACTION,
    KEPT_WITHIN_M,
    MOST_DISAGREEMENTS,
    REACHED_M,
    UNCORRECTED_BELOW,
    DaggerSettings,
)
from vlnbench.training.collect.options import CollectOptions
from vlnbench.training.collect.walk import (
    GOAL_RADIUS_M,
    JPEG_QUALITY,
    MAX_ACTIONS,
    WAYPOINT_RADIUS_M,
    ReferenceWay,
    Tour,
    Walked,
    WalkSettings,
    identify_in_process,
    start_process,
    tour_name,
    tours,
    walk_in_process,
)
from vlnbench.util.files import append_line, open_for_append, read_jsonl, write_bytes
from vlnbench.util.folder import Kind, differences, open_folder, refuse_another
from vlnbench.util.loading import import_string
from vlnbench.util.progress import Progress, StepProgress, say

FORMAT = 1
ANNOTATIONS = "annotations.json"
MANIFEST = "collect.json"
KIND = Kind("collection", MANIFEST)
JOURNAL = "collected.jsonl"


@dataclass(frozen=True, slots=True)
class Collected:
    """What a folder holds: tours and instructions written, by reason where there are several to be kept for, tours
    left out by reason, frames and bytes."""

    tours: int
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
    benchmark = get_benchmark(request.benchmark)
    if (benchmark.reader == "rxr") != (request.set == "rxr"):
        raise UsageError(f"--set {request.set}: {benchmark.name} has episodes in {benchmark.reader} format")
    split = request.split or ("envdrop" if request.set == "envdrop" else "train")
    body = resized(benchmark.body, request.frame_width)
    ensure_data(benchmark, request.data_root)
    episode_set = load_split(benchmark, split, request.data_root, allow_partial=request.allow_partial)
    planned = _planned(episode_set, request)
    success_m = benchmark.success_distance_m
    way = (
        DaggerSettings(request.agent, request.agent_options, success_m)
        if request.dagger
        else ReferenceWay(success_m, request.disturbance)
    )
    settings = WalkSettings(request.out, body, episode_set.scenes_dir, request.sim, request.gpu, way)
    manifest = _manifest(request, benchmark.fingerprint, split, episode_set, settings)
    with ExitStack() as stack:
        executor = stack.enter_context(processes(request.workers, start_process, settings))
        if request.dagger:
            manifest["dagger"] = _dagger(request.agent, executor.submit(identify_in_process).result())
        stack.enter_context(open_folder(request.out, KIND, manifest, partial(_check_same, request.out, manifest)))
        stack.callback(executor.shutdown, cancel_futures=True)  # nobody writes when the lock is gone
        done = _walk_the_rest(planned, settings.root, executor)
        records = [done[tour.name].record for tour in planned if done[tour.name].record]
        write_bytes(request.out / ANNOTATIONS, (json.dumps(records, ensure_ascii=False) + "\n").encode())
    return verify(request.out, planned, done)


def verify(root: Path, planned: list[Tour], done: dict[str, Walked]) -> Collected:
    """Count what lies in the folder against the plan. Raises UsageError naming what is missing."""
    frames = size = 0
    for tour in planned:
        record = done[tour.name].record
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
    kept = [tour for tour in planned if done[tour.name].record]
    reasons = Counter((done[tour.name].record is None, done[tour.name].reason) for tour in planned)
    return Collected(
        tours=len(kept),
        instructions=sum(len(tour.episodes) for tour in kept),
        kept={reason: count for (out, reason), count in sorted(reasons.items(), key=str) if reason and not out},
        left_out={reason: count for (out, reason), count in sorted(reasons.items(), key=str) if reason and out},
        frames=frames,
        bytes=size,
    )


def format_collected(collected: Collected, out: Path) -> str:
    """Table of what was collected."""
    rows: list[list[object]] = [
        ["tours", collected.tours],
        ["instructions", collected.instructions],
        ["frames", collected.frames],
        ["frames per tour", round(collected.frames / max(1, collected.tours), 1)],
        ["MB", round(collected.bytes / 1e6, 1)],
        *([f"kept: {reason}", count] for reason, count in collected.kept.items()),
        *([f"left out: {reason}", count] for reason, count in collected.left_out.items()),
    ]
    return f"{tabulate(rows)}\ntrajectories: {out / ANNOTATIONS}"


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


def _planned(episode_set: EpisodeSet, request: CollectOptions) -> list[Tour]:
    planned = tours(episode_set.episodes, request.set)
    if request.dagger:  # each instruction leads elsewhere; one walk per name
        by_name = {tour_name(episode, request.set): episode for episode in episode_set.episodes}
        planned = [Tour(name, (episode,)) for name, episode in by_name.items()]
    if request.tours is not None:
        if not 1 <= request.tours <= len(planned):
            raise UsageError(f"--tours {request.tours}: {episode_set.split} has 1 to {len(planned)} tours")
        planned = planned[: request.tours]
    without = next((t for t in planned if not t.episodes[0].goals), None)
    if without is not None:
        raise UsageError(
            f"{episode_set.path}: episode {without.episodes[0].episode_id} has no goal to walk to; choose a split "
            "with public goals"
        )
    unknown = next((t for t in planned if request.dagger and not t.episodes[0].ground_truth), None)
    if unknown is not None:
        raise UsageError(
            f"{episode_set.path}: episode {unknown.episodes[0].episode_id} has no reference actions, which "
            "--dagger counts; put the split's _gt file beside it"
        )
    return planned


def _manifest(
    request: CollectOptions, fingerprint: str, split: str, episode_set: EpisodeSet, settings: WalkSettings
) -> dict[str, Any]:
    backend = import_string("envs.backends:choose_backend")(request.sim, request.gpu)
    with StepProgress() as show:
        for step in backend.prepare(renderer=True):
            show(step)
    return {
        "format": FORMAT,
        "benchmark": request.benchmark,
        "fingerprint": fingerprint,
        "split": split,
        "set": request.set,
        "dataset_sha256": episode_set.sha256,
        "tours": request.tours,
        "simulator": backend.name,
        "frame": [settings.body.camera.width, settings.body.camera.height],
        "jpeg_quality": JPEG_QUALITY,
        "waypoint_radius_m": WAYPOINT_RADIUS_M,
        "goal_radius_m": GOAL_RADIUS_M,
        "max_actions": MAX_ACTIONS,
        "disturbance": request.disturbance,
        "dagger": None,
    }


def _dagger(agent: str, identity: dict[str, Scalar]) -> dict[str, Any]:
    """The manifest's entry about the model that drives and the rules of its corrections."""
    return {
        "agent": agent,
        "identity": identity,
        "waypoint_radius_m": REACHED_M,
        "disagreements": [DISAGREEMENTS_PER_ACTION, MOST_DISAGREEMENTS],
        "kept_within_m": KEPT_WITHIN_M,
        "kept_ratios": [CORRECTED_BELOW, UNCORRECTED_BELOW],
    }


def _check_same(out: Path, manifest: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise UsageError if `found`, which lies in the folder, is the manifest of another collection.

    Earlier versions wrote what a model says of itself as text; such a collection goes on.
    """
    differing = dict(differences(found, manifest))
    before, now = differing.get("dagger", (None, None))
    if before and now:
        said = {name: str(value) for name, value in now["identity"].items()}
        if before == {**now, "identity": said}:
            del differing["dagger"]
    refuse_another(out, KIND, differing)


def _walk_the_rest(planned: list[Tour], root: Path, executor: ProcessPoolExecutor) -> dict[str, Walked]:
    """Walk the tours that the journal does not hold; returns all of them by name."""
    path = root / JOURNAL
    done = {entry["name"]: Walked(**entry) for _, entry in read_jsonl(path)}
    todo = [tour for tour in planned if tour.name not in done]
    say(f"{len(planned)} tours, {len(planned) - len(todo)} of them walked before; folder {root}")
    with open_for_append(path) as journal, Progress("walking") as progress:
        for walked in _walk_all(todo, executor):
            append_line(journal, asdict(walked))
            done[walked.name] = walked
            left_out = sum(each.record is None for each in done.values())
            progress.update(len(done), len(planned), f"{left_out} left out" if left_out else "")
    return done


def _walk_all(todo: list[Tour], executor: ProcessPoolExecutor) -> Iterator[Walked]:
    """Walk tours scene by scene; they are yielded as they finish."""
    in_scene_order = sorted(todo, key=lambda tour: tour.episodes[0].scene_id)
    waiting = [executor.submit(walk_in_process, tour) for tour in in_scene_order]
    for future in as_completed(waiting):
        yield future.result()


@contextmanager
def processes(workers: int, start: Callable[..., None], *settings: Any) -> Iterator[ProcessPoolExecutor]:
    """Processes that work in a simulator and call `start` with the settings when there is something to do."""
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, context, start, settings)
    try:
        yield executor
    except BrokenProcessPool as error:
        raise UsageError(
            "a process died (out of memory, or a crash of the simulator); run the same command again to "
            "go on, with fewer --workers if it was memory"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)
