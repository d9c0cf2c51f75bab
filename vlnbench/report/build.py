"""From a run folder to its page."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path

from vlnbench.defaults import ENV
from vlnbench.errors import UsageError
from vlnbench.evaluation.records import RowKey, each_trajectory
from vlnbench.evaluation.video import write_video
from vlnbench.interfaces import Env, Episode, Trajectory
from vlnbench.report.data import ReportRow, RunData, read_run
from vlnbench.report.frames import Frames, draw
from vlnbench.report.maps import Storey, draw_maps, make_env, scene_storeys
from vlnbench.report.page import Built, check_folder, render, write
from vlnbench.report.payload import Videos
from vlnbench.util.progress import Progress, say

DEFAULT_NAME = "report.html"


def build_report(
    folder: Path, out: Path | None, data_root: Path, video: int = 0, env: str = ENV, frames: int = 0
) -> Built:
    """Write the report of a run; `out` is replaced, default `report.html` in the run folder.

    Without dataset or scenes below `data_root` the page is made without what needs them, and says so. video: how
    many episodes it holds a video of; those in the run folder come first, missing ones are made there. frames: of
    how many it shows what the camera saw, step by step. env: what draws maps and pictures, as `--env`. Raises
    UsageError for a folder that is no run, and for pictures that cannot be made or a page that cannot be written.
    """
    for name, count in (("video", video), ("frames", frames)):
        if count < 0:
            raise UsageError(f"--{name} {count}: expected 0 or more")
    data = read_run(folder, data_root)
    path = out or folder / DEFAULT_NAME
    check_folder(path)
    notes = []
    if data.missing is not None:
        say(f"without instructions, goals and reference paths: {data.missing}")
        notes.append(
            "Instructions, goals and reference paths: the dataset was not at hand when this page was made."
        )
    floors, lacking = draw_floors(data, env)
    if lacking:
        missing = "all scenes" if lacking == len(floors) else f"{lacking} of {len(floors)} scenes"
        notes.append(f"Maps of {missing}: not at hand when this page was made.")
    if len(data.entries) < len(data.run.table):
        notes.append(
            f"Episodes one by one: only the first {len(data.entries):,}, so that a browser can show them."
        )
    if data.said.left_out:
        notes.append(f"Answers of {data.said.left_out:,} episodes, so that a browser can show the page.")
    shown = _videos(data, folder, video, env), _frames(data, frames, env)
    return write(path, render(data, floors, *shown, notes), len(data.run.table), notes)


def draw_floors(data: RunData, env_name: str) -> tuple[dict[str, list[Storey]], int]:
    """Storeys by scene, with their maps where scenes are at hand, and the number of scenes without one."""
    floors = scene_storeys(data.entries)
    if data.scenes_dir is None:
        return floors, len(floors)
    some = {entry.row.scene_id: entry.episode for entry in data.entries if entry.episode is not None}
    env = make_env(env_name, data.run.benchmark.body, data.scenes_dir, frozenset())
    try:
        with Progress("drawing maps") as progress:
            drawn, reasons = draw_maps(floors, env, some, progress.update)
    finally:
        env.close()
    if reasons:
        say(f"without maps of {len(reasons)} of {len(floors)} scenes: {next(iter(reasons.values()))}")
    return drawn, len(reasons)


def _videos(data: RunData, folder: Path, count: int, env: str) -> Videos:
    """MP4 files of `count` episodes."""
    if not count:
        return {}
    recorded = [entry for entry in data.entries if entry.walk is not None]
    paths = {
        entry.row.key: folder / "videos" / f"{entry.row.episode_id}-{entry.row.repeat}.mp4" for entry in recorded
    }
    chosen = choose(recorded, count, {key for key, path in paths.items() if path.is_file()})
    _make_videos(data, [entry for entry in chosen if not paths[entry.row.key].is_file()], paths, env)
    return {
        (entry.row.episode_id, entry.row.repeat): base64.b64encode(paths[entry.row.key].read_bytes()).decode()
        for entry in chosen
    }


def choose(entries: Sequence[ReportRow], count: int, first: set[RowKey]) -> list[ReportRow]:
    """`count` entries: those of `first`, then one of each ending by turns."""
    seen: dict[str, int] = {}
    ranks = []
    for entry in entries:
        ranks.append(seen.get(entry.ending, 0))
        seen[entry.ending] = ranks[-1] + 1
    order = sorted(range(len(entries)), key=lambda i: (entries[i].row.key not in first, ranks[i]))
    return [entries[i] for i in order[:count]]


def _make_videos(data: RunData, entries: Sequence[ReportRow], paths: dict[RowKey, Path], env: str) -> None:
    for key, seen, episode, trajectory in _again(data, entries, "video", env):
        write_video(paths[key], seen, episode, trajectory)


def _frames(data: RunData, count: int, env: str) -> Frames:
    """What was seen in `count` episodes, first those in which something was said that could not be read."""
    recorded = [entry for entry in data.entries if entry.walk is not None]
    unread = {key for key, columns in data.said.columns.items() if columns.get("unparsable")}
    again = _again(data, choose(recorded, count, unread), "frames", env)
    return {(key[2], key[3]): draw(seen, episode, trajectory) for key, seen, episode, trajectory in again}


def _again(
    data: RunData, entries: Sequence[ReportRow], option: str, env_name: str
) -> Iterator[tuple[RowKey, Env, Episode, Trajectory]]:
    """One episode after the other, with an environment that can show what was seen in it."""
    if not entries:
        return
    if data.scenes_dir is None:
        made = "videos" if option == "video" else "frames"
        raise UsageError(f"--{option}: {made} cannot be made without the dataset: {data.missing}")
    walked = dict(each_trajectory(data.run.folder, {entry.row.key for entry in entries}))
    env = make_env(env_name, data.run.benchmark.body, data.scenes_dir, frozenset({"rgb"}))
    try:
        env.check([entry.episode for entry in entries if entry.episode is not None])
        with Progress(f"making pictures (--{option})") as progress:
            for i, entry in enumerate(entries):
                assert entry.episode is not None
                yield entry.row.key, env, entry.episode, walked[entry.row.key]
                progress.update(i + 1, len(entries))
    finally:
        env.close()
