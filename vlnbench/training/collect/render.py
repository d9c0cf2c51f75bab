"""Render the frames of walks that were published as actions alone: every walk is done again and seen.

A set such as StreamVLN's EnvDrop is an `annotations.json` without images. Each of its records names a walk,
`images/<scan>_<set>_<episode>`, whose episode says where it begins; its actions are done one by one, and the
frames are written where the record says, a walk's all at once. What does not end at its episode's goal is left
out: then the episodes are others than those that were walked. `render/` in the set's folder says what is being
rendered and which walks were left out; running the same command again goes on where it ended.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.data.generate import ensure_data
from vlnbench.data.sets import TRAJECTORIES, read_list
from vlnbench.data.trajectory_sets import SETS, frames_in, walk_folder
from vlnbench.errors import RunError, UsageError
from vlnbench.interfaces import Action, Embodiment, Episode
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.env_names import find_env
from vlnbench.rollout.episode import Task
from vlnbench.rollout.executor import EnvSetup, Executor, Limits
from vlnbench.rollout.start import start_processes
from vlnbench.training.collect.collect import FEW_FAILED, WALK_TIMEOUT_S, resized, walk_all
from vlnbench.training.collect.options import MAX_ACTIONS, RenderOptions
from vlnbench.training.collect.walk import (
    JPEG_QUALITY,
    PLACEHOLDER_ACTION,
    Done,
    GuidedEnv,
    Nobody,
    ReferenceRoute,
    SharedPath,
    WalkTask,
)
from vlnbench.util.durable.files import append_line, open_for_append, read_jsonl, write_bytes
from vlnbench.util.durable.folder import Kind, open_folder
from vlnbench.util.progress import Progress, say

STATE, MANIFEST, JOURNAL = "render", "render.json", "left_out.jsonl"
KIND = Kind("rendering", MANIFEST)
PUBLISHED = "annotations_published.json"
"""What was published, where some of its walks were left out."""
PROBED = 4
"""Walks that every worker does before anything is said of hours: the first has its scene to load."""

_NOBODY = f"{Nobody.__module__}:{Nobody.__name__}"


@dataclass(frozen=True, slots=True)
class Replay(ReferenceRoute):
    """The recorded actions, one by one; a walk is kept if it ends near its goal."""

    actions: tuple[int, ...] = ()

    def steps(self, env: GuidedEnv, episode: Episode) -> Iterator[Done]:
        """The walk as it was recorded."""
        yield Done(PLACEHOLDER_ACTION, env.reset(episode))
        for action in self.actions:
            yield Done(action, env.step(Action(action)))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A walk to render: `name` is its folder below images/, `actions` what was done after the first frame."""

    name: str
    episode: Episode
    actions: tuple[int, ...]


def render(options: RenderOptions) -> str:
    """Render a set, or with `dry_run` say what that takes; returns what there is to say.

    Raises UsageError, with nothing written, for records that cannot be replayed, and where the disk is too small.
    """
    options.check()
    options = replace(options, env=find_env(options.env))
    folder = options.folder
    source = folder / PUBLISHED if (folder / PUBLISHED).is_file() else folder / TRAJECTORIES
    records = read_list(source, "trajectories", f"expected a set of walks with {TRAJECTORIES}")
    name, split = _whose(options)
    benchmark = get_benchmark(name)
    ensure_data(benchmark, options.data_root, split)
    episodes = load_split(benchmark, split, options.data_root, allow_partial=True)
    walks = recorded(source, records, episodes)
    body = resized(benchmark.body, options.frame_width)
    with ExitStack() as stack:
        executor = stack.enter_context(start_processes(options.env, options.workers))
        _make_ready(executor, options, body, episodes.scenes_dir)
        manifest = {
            "benchmark": name,
            "fingerprint": benchmark.fingerprint,
            "split": split,
            "dataset_sha256": episodes.sha256,
            "annotations_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
            "simulator": executor.simulator,
            "frame": [body.camera.width, body.camera.height],
            "jpeg_quality": JPEG_QUALITY,
            "within_m": options.within,
        }
        if not options.dry_run:
            stack.enter_context(open_folder(folder / STATE, KIND, manifest))
        stack.callback(executor.close)  # nobody writes when the lock is gone
        left_out = _left_out(folder)
        todo = [walk for walk in walks if walk.name not in left_out and not _is_there(folder, walk)]
        todo.sort(key=lambda walk: walk.episode.scene_id)  # every scene is loaded once
        say(f"{len(walks)} walks of {source}, {len(walks) - len(todo)} of them done before")
        told = _told(todo, options, executor) if todo else "nothing is left to render"
        if options.dry_run:
            return told
        say(told)
        if todo:
            _render(todo, options, executor, left_out)
    return _finish(folder, records, walks, left_out)


def _left_out(folder: Path) -> dict[str, str]:
    """Walks that were left out before, with the reason."""
    journal = folder / STATE / JOURNAL
    return {entry["name"]: entry["reason"] for _, entry in read_jsonl(journal)} if journal.exists() else {}


def _whose(options: RenderOptions) -> tuple[str, str]:
    """Benchmark and split whose episodes were walked: as given, else as published sets of this name have them."""
    known = next(
        (s for s in SETS if s.folder.endswith(f"/{options.folder.name}") and s.layout == "annotated"), None
    )
    benchmark = options.benchmark or (known.episodes if known else None)
    if benchmark is None:
        raise UsageError(
            f"{options.folder}: not the name of a published set; say with --benchmark and --split whose episodes "
            "were walked"
        )
    return benchmark, options.split or (known.split if known else "train")


def recorded(source: Path, records: Sequence[Any], episodes: EpisodeSet) -> list[Recorded]:
    """The walks of a set with their episodes. Raises UsageError for the first that cannot be replayed."""
    by_id = {episode.episode_id: episode for episode in episodes.episodes}
    found: dict[str, Recorded] = {}
    for index, record in enumerate(records):
        where = f"{source}: record {index}"
        name = walk_folder(source, index, record)
        actions = record.get("actions")
        if (
            not isinstance(actions, list)
            or actions[:1] != [PLACEHOLDER_ACTION]
            or not all(type(action) is int and 0 < action <= Action.TURN_RIGHT for action in actions[1:])
        ):
            raise UsageError(f"{where}: field 'actions': expected -1 and then actions from 1 to 3")
        if len(actions) > MAX_ACTIONS:
            raise UsageError(f"{where}: field 'actions': expected at most {MAX_ACTIONS}, found {len(actions)}")
        number = name.rpartition("_")[2]
        if not name.startswith("images/") or name.count("/") != 1:
            raise UsageError(f"{where}: field 'video': expected images/<scan>_<set>_<episode>, found {name!r}")
        episode = by_id.get(number) or by_id.get(number.lstrip("0") or "0")
        scans = [part.partition(".")[0] for part in episode.scene_id.split("/")] if episode else []
        if episode is None or not any(name.startswith(f"images/{scan}_") for scan in scans):
            raise UsageError(
                f"{where}: field 'video': {name!r} is of no episode of {episodes.path}; expected "
                "images/<scan>_<set>_<episode>: give the split that was walked with --benchmark and --split"
            )
        if name in found:
            raise UsageError(f"{where}: field 'video': {name!r} appears twice")
        found[name] = Recorded(name.removeprefix("images/"), episode, tuple(actions[1:]))
    return list(found.values())


def _make_ready(executor: Executor, options: RenderOptions, body: Embodiment, scenes_dir: Path) -> None:
    scenes_dir = scenes_dir.absolute()
    executor.load(_NOBODY, AgentOptions())
    arguments = (body, scenes_dir, {"rgb"}, options.sim, options.gpu)
    executor.set_up(EnvSetup(options.env, arguments, frozenset(), needs=(scenes_dir,)))


def _is_there(folder: Path, walk: Recorded) -> bool:
    return frames_in(folder / "images" / walk.name) == len(walk.actions) + 1


def _task(walk: Recorded, root: Path, within: float) -> Task:
    shared = SharedPath(walk.name, (walk.episode,))
    kind = WalkTask(shared, root.absolute(), Replay(within, actions=walk.actions))
    return Task(walk.episode, 0, 0, MAX_ACTIONS, kind)


def _told(todo: Sequence[Recorded], options: RenderOptions, executor: Executor) -> str:
    """What rendering takes, by what the first walks take, which are thrown away.

    Raises UsageError where that is more than the disk has, and RunError where none of them can be done.
    """
    frames = sum(len(walk.actions) + 1 for walk in todo)
    sizes: list[float] = []
    paces: list[float] = []
    reason: str | None = None
    some = todo[: PROBED * options.workers]
    with tempfile.TemporaryDirectory(prefix="vlnbench-") as room:
        tasks = [_task(walk, Path(room), options.within) for walk in some]
        for outcome in executor.run(tasks, Limits(1, WALK_TIMEOUT_S)):
            if outcome.rollout is None:
                reason = outcome.reason
                continue
            count, walked = len(outcome.rollout.trajectory.actions) + 1, outcome.rollout.product
            paces.append(walked.seconds / count)
            files = [*(Path(room) / "images" / walked.name / "rgb").glob("*.jpg")]
            sizes += [sum(file.stat().st_size for file in files) / count] if files else []
    if not paces:
        raise RunError(f"{options.folder}: not one of the first {len(some)} walks could be done: {reason}")
    size, free = frames * statistics.median(sizes or [0.0]), shutil.disk_usage(options.folder).free
    hours = frames * statistics.median(paces) / options.workers / 3600
    told = (
        f"{len(todo)} walks with {frames} frames to render: about {size / 1e9:.3g} GB and {hours:.2g} hours with "
        f"{options.workers} workers; {free / 1e9:.0f} GB are free there"
    )
    if size > free:
        images = options.folder / "images"
        raise UsageError(f"{options.folder}: too little room: {told}; make {images} a link to another disk")
    return told


def _render(
    todo: Sequence[Recorded], options: RenderOptions, executor: Executor, left_out: dict[str, str]
) -> None:
    """Render walks; those that end elsewhere are added to `left_out`.

    Raises RunError where a walk failed, and UsageError as soon as most end elsewhere.
    """
    tasks = [_task(walk, options.folder, options.within) for walk in todo]
    with (
        open_for_append(options.folder / STATE / JOURNAL) as journal,
        Progress("rendering") as progress,
        closing(walk_all(tasks, executor, 1, progress)) as made,
    ):
        elsewhere = 0
        for finished, walked in enumerate(made, start=1):
            if walked.reason is not None:
                elsewhere += 1
                if elsewhere > FEW_FAILED and 2 * elsewhere > finished:
                    raise UsageError(
                        f"{options.folder}: {elsewhere} of the first {finished} walks {walked.reason}, such as "
                        f"{walked.name}: they are not of these episodes (R2R-CE v1-2 and v1-3 begin with other "
                        "headings); give the ones that were walked with --data-root, --benchmark and --split"
                    )
                append_line(journal, {"name": walked.name, "reason": walked.reason})
                left_out[walked.name] = walked.reason
            progress.update(finished, len(todo), f"{len(left_out)} left out" if left_out else "")


def _finish(
    folder: Path, records: Sequence[Mapping[str, Any]], walks: Sequence[Recorded], left_out: Mapping[str, str]
) -> str:
    """Take what was left out out of the annotations, of which the published ones are kept, and count the rest."""
    kept = [walk for walk in walks if walk.name not in left_out]
    lost = [walk for walk in kept if not _is_there(folder, walk)]
    if lost:
        raise RunError(f"{folder}: frames of {len(lost)} walks are gone, such as {lost[0].name}; run this again")
    if left_out:
        if not (folder / PUBLISHED).is_file():
            write_bytes(folder / PUBLISHED, (folder / TRAJECTORIES).read_bytes())
        stay = [record for record, walk in zip(records, walks, strict=True) if walk.name not in left_out]
        write_bytes(folder / TRAJECTORIES, (json.dumps(stay, ensure_ascii=False) + "\n").encode())
    frames = sum(len(walk.actions) + 1 for walk in kept)
    lines = [f"{len(kept)} of {len(walks)} walks rendered, {frames} frames: {folder / TRAJECTORIES}"]
    lines += [f"left out, {reason}: {count}" for reason, count in Counter(left_out.values()).items()]
    return "\n".join(lines)
