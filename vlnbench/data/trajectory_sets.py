"""Trajectory sets that others published for training: which of their folders are missing, and how many.

Two layouts: StreamVLN's, in which `annotations.json` names a folder for every trajectory, and JanusVLN's, in which
a folder bears the number of its episode and nothing else lists them. Users who extracted some of many archives
noticed it after training.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.datasets import locate
from vlnbench.data.episodes import read_episodes
from vlnbench.data.sets import read_list
from vlnbench.data.shipped import SCALEVLN
from vlnbench.errors import UsageError

NAMED = 3
"""How many folders a line names."""

Finding = tuple[bool, str, str]
"""Whether it is as it should be, what was looked at, and what was found."""


@dataclass(frozen=True, slots=True)
class TrajectorySet:
    """A published set. folder: below the data root. published: trajectories, None where it is not known.

    remedy: what to do where folders of FOLDER are missing. episodes: the benchmark of which this split was walked.
    """

    folder: str
    owner: str
    layout: Literal["annotated", "numbered"]
    published: int | None
    remedy: str
    episodes: str | None = None
    split: str = "train"


_EXTRACT = "extract every archive of the set again"
_RENDER = "its frames are not published: render them with `vlnbench data render FOLDER`"

SETS: tuple[TrajectorySet, ...] = (
    TrajectorySet("trajectory_data/R2R", "StreamVLN", "annotated", 10819, _EXTRACT, "r2r-ce"),
    TrajectorySet("trajectory_data/RxR", "StreamVLN", "annotated", 19990, _EXTRACT, "rxr-ce"),
    TrajectorySet("trajectory_data/EnvDrop", "StreamVLN", "annotated", None, _RENDER, "r2r-ce", "envdrop"),
    TrajectorySet("trajectory_data/ScaleVLN", "StreamVLN", "annotated", None, _RENDER, "scalevln", SCALEVLN),
    TrajectorySet("trajectory_data/R2R-CE-640x480", "JanusVLN", "numbered", 10819, _EXTRACT, "r2r-ce"),
    TrajectorySet("trajectory_data/RxR-CE-640x480", "JanusVLN", "numbered", None, _EXTRACT, "rxr-ce"),
    TrajectorySet("dagger_data/R2R", "StreamVLN or JanusVLN", "annotated", None, _EXTRACT, "r2r-ce"),
    TrajectorySet("dagger_data/RxR", "StreamVLN or JanusVLN", "annotated", None, _EXTRACT, "rxr-ce"),
    TrajectorySet("dagger_data/EnvDrop", "StreamVLN", "annotated", None, _EXTRACT, "r2r-ce", "envdrop"),
)
"""Counts are those of StreamVLN issues 81 and 82 and of JanusVLN issue 19."""

ANNOTATIONS = ("annotations.json", "annotations_v1-3.json")
"""Of R2R StreamVLN has one for each version of the episodes."""
COLLECTED = "collect.json"
"""Lies in what `vlnbench collect` writes, which knows itself whether it is complete."""
FOLDERS = ("train", "images")
"""Where the folders of a numbered set lie: in the archives, and in the README."""


def check_sets(data_root: Path, owner: str = "") -> Iterator[tuple[str, Finding]]:
    """Look at the published sets of which there are folders (owner: only theirs); yields set and finding."""
    for each in SETS:
        folder = data_root / each.folder
        if folder.is_dir() and owner in each.owner and not (folder / COLLECTED).is_file():
            look = _annotated if each.layout == "annotated" else _numbered
            advised = replace(each, remedy=each.remedy.replace("FOLDER", str(folder)))
            try:
                for finding in look(advised, folder, data_root):
                    yield f"{each.folder} of {each.owner}", finding
            except UsageError as error:
                yield f"{each.folder} of {each.owner}", (False, "files", str(error))


def _annotated(each: TrajectorySet, folder: Path, _: Path) -> Iterator[Finding]:
    files = [path for name in ANNOTATIONS if (path := folder / name).is_file()]
    if not files:
        yield False, "annotations", f"{folder / ANNOTATIONS[0]} is not there; {each.remedy}"
        return
    used: set[str] = set()
    for path in files:
        videos = _videos(path)
        used |= videos
        yield _counted(each, path.name, len(videos))
        yield _present(each, f"folders of {path.name}", folder, videos)
    images = folder / "images"
    if spare := sorted(f"images/{name}" for name in _folders(images)[0] if f"images/{name}" not in used):
        yield True, "other folders", f"{len(spare)} in no record: {_named(spare)}"


def _videos(path: Path) -> set[str]:
    """Folders that the records of an annotations file name, below the folder of the set."""
    records = read_list(path, "trajectories", "expected a set of trajectories")
    return {walk_folder(path, index, record) for index, record in enumerate(records)}


def walk_folder(path: Path, index: int, record: Any) -> str:
    """The folder that a record of an annotations file names, below the folder of the set."""
    video = record.get("video") if isinstance(record, dict) else None
    parts = PurePosixPath(video).parts if isinstance(video, str) else ()
    if not parts or parts[0] == "/" or ".." in parts or any("\0" in part for part in parts):
        raise UsageError(f"{path}: record {index}: field 'video': expected a path below the folder of the set")
    return "/".join(parts)


def frames_in(walk: Path) -> int:
    """How many files the rgb/ of a walk's folder holds, 0 where there is none."""
    try:
        with os.scandir(walk / "rgb") as entries:
            return sum(1 for _ in entries)
    except OSError:
        return 0


def without_frames(folder: Path) -> str:
    """What to know of a set of walks of which some lack frames; empty where none does, or nothing lists them."""
    if not (folder / ANNOTATIONS[0]).is_file():
        return ""
    path = folder / ANNOTATIONS[0]
    records = read_list(path, "trajectories", "expected a set of trajectories")
    lost = 0
    for index, record in enumerate(records):
        video, actions = walk_folder(path, index, record), record.get("actions")
        lost += frames_in(folder / video) < (len(actions) if isinstance(actions, list) else 1)
    if not lost:
        return ""
    return (
        f"{folder}: {lost} of {len(records)} walks lack frames; extract the archives of frames, or where none "
        f"are published render them: `vlnbench data render {folder}`"
    )


def _present(each: TrajectorySet, item: str, folder: Path, videos: Collection[str]) -> Finding:
    places = {str(PurePosixPath(video).parent) for video in videos}
    here = {f"{place}/{name}" for place in places for name in _folders(folder / place)[0]}
    return _missing(each, item, folder, videos, {video for video in here if not _is_empty(folder / video / "rgb")})


def _numbered(each: TrajectorySet, folder: Path, data_root: Path) -> Iterator[Finding]:
    place = next((path for name in FOLDERS if (path := folder / name).is_dir()), None)
    if place is None:
        yield False, "folders", f"neither {' nor '.join(str(folder / name) for name in FOLDERS)}; {each.remedy}"
        return
    named, empty = _folders(place)
    wanted = _episode_ids(each, data_root)
    if wanted is None:
        yield _counted(each, place.name, len(named - empty))
        if empty:
            yield False, "empty folders", f"{len(empty)}: {_named(sorted(empty))}; {each.remedy}"
        return
    yield _missing(each, f"folders in {place.name}", place, wanted, named - empty)


def _episode_ids(each: TrajectorySet, data_root: Path) -> set[str] | None:
    """Ids of the episodes that were walked, where their file is here and all of them are known to be published."""
    if each.episodes is None or each.published is None:
        return None
    benchmark = get_benchmark(each.episodes)
    try:
        files = locate(benchmark, "train", data_root)
    except UsageError:  # not downloaded: the folders can still be counted
        return None
    return {episode.episode_id for episode in read_episodes(benchmark, files)}


def set_file(folder: Path, names: Collection[str]) -> Path | None:
    """The first of these files in a set's folder; of a published numbered set also the one its episodes come in.

    JanusVLN's download has frames alone, whose train.json is R2R-CE's own train.json.gz below the same data root.
    """
    here = next((path for name in names if (path := folder / name).is_file()), None)
    published = next((s for s in SETS if s.layout == "numbered" and s.folder.endswith(f"/{folder.name}")), None)
    if here is not None or published is None or published.episodes is None:
        return here
    if not any((folder / name).is_dir() for name in FOLDERS):
        return None
    try:
        files = locate(get_benchmark(published.episodes), published.split, folder.absolute().parents[1])
    except UsageError:  # not downloaded
        return None
    return next((path for path in files.paths if path.name in names), None)


def _missing(each: TrajectorySet, item: str, folder: Path, wanted: Collection[str], here: set[str]) -> Finding:
    lost = sorted(set(wanted) - here, key=lambda name: (len(name), name))
    if not lost:
        return True, item, f"all {len(wanted)} below {folder}"
    found = f"{len(lost)} of {len(wanted)} missing or empty below {folder}: {_named(lost)}"
    return False, item, f"{found}; {each.remedy}"


def _counted(each: TrajectorySet, item: str, count: int) -> Finding:
    if each.published is None:
        return True, item, f"{count} trajectories (how many were published is not known)"
    if count != each.published:
        return False, item, f"{count} trajectories, but {each.published} were published; {each.remedy}"
    return True, item, f"{count} trajectories, as published"


def _folders(place: Path) -> tuple[set[str], set[str]]:
    """Names of the folders in a folder, and of those of them that are empty."""
    if not place.is_dir():
        return set(), set()
    with os.scandir(place) as entries:
        named = {entry.name for entry in entries if entry.is_dir()}
    return named, {name for name in named if _is_empty(place / name)}


def _is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing, or is none."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return True


def _named(names: Collection[str]) -> str:
    return ", ".join(list(names)[:NAMED]) + (", ..." if len(names) > NAMED else "")
