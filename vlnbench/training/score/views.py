"""Sets of trajectories as they would look to somebody who sees nothing, or something else.

A view is a folder with the same annotations whose frames are links: whoever reads a set reads a view, so no model
family has to know of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from vlnbench.data.sets import TRAJECTORIES, read_list
from vlnbench.errors import UsageError

GRAY = (128, 128, 128)


@contextmanager
def view_of(folder: Path, frames: str) -> Iterator[Path]:
    """A set's folder as it is ("own"), or a view of it ("gray", "other"), which is removed afterwards.

    Raises UsageError for a folder that holds no set, and for "other" where all walks lie in one scene.
    """
    records = read_records(folder)
    if frames == "own":
        yield folder
        return
    with TemporaryDirectory(prefix="vlnbench-view-") as made:
        root = Path(made)
        shutil.copyfile(folder / TRAJECTORIES, root / TRAJECTORIES)
        shown = [None] * len(records) if frames == "gray" else _others(records, folder)
        for record, other in zip(records, shown, strict=True):
            _link(folder, record["video"], other, root)
        yield root


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The walks of a set. Raises UsageError where there are none, or where one names no folder of its own."""
    path = folder / TRAJECTORIES
    found = read_list(path, "trajectories", "collect the walks of the split with `vlnbench collect`")
    for index, record in enumerate(found):
        video = record.get("video") if isinstance(record, dict) else None
        if not isinstance(video, str) or ".." in Path(video).parts or Path(video).is_absolute():
            raise UsageError(f"{path}: record {index}: field 'video': expected a path below the folder")
    return found


def scene_of(video: str) -> str:
    """The scene of a walk whose folder is called <scene>_<set>_<episode>."""
    return Path(video).name.rsplit("_", 2)[0]


def _others(records: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """For every walk one of another scene: the first one half the list away, or after that."""
    count, found = len(records), []
    for index, record in enumerate(records):
        places = ((index + count // 2 + step) % count for step in range(count))
        videos = (records[place]["video"] for place in places)
        other = next((video for video in videos if scene_of(video) != scene_of(record["video"])), None)
        if other is None:
            raise UsageError(f"{folder}: all walks lie in one scene; leave 'other' out of --frames")
        found.append(other)
    return found


def _link(folder: Path, video: str, other: str | None, root: Path) -> None:
    """Frames of a walk in a view: one gray picture, or those of another walk, stretched to as many."""
    own, target = _frames(folder, video), root / video / "rgb"
    target.mkdir(parents=True, exist_ok=True)
    if other is None:
        with Image.open(own[0]) as image:
            size = image.size
        gray = root / f"gray-{size[0]}x{size[1]}.png"
        if not gray.exists():
            Image.new("RGB", size, GRAY).save(gray)
        sources = [gray] * len(own)
    else:
        theirs = _frames(folder, other)
        sources = [theirs[place * len(theirs) // len(own)] for place in range(len(own))]
    for number, source in enumerate(sources):
        (target / f"{number:05d}{source.suffix}").symlink_to(source.absolute())


def _frames(folder: Path, video: str) -> list[Path]:
    found = sorted((folder / video / "rgb").glob("*.*"))
    if not found:
        raise UsageError(f"{folder / video / 'rgb'}: no frames; collect the set again")
    return found
