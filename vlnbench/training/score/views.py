"""Sets of walks and of questions as they would look to somebody who sees nothing, or something else.

A view is a folder with the same records whose frames are links: whoever reads a set reads a view, so no model
family has to know of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from vlnbench.data.sets import CONVERSATIONS, TRAJECTORIES, holds_questions, read_list
from vlnbench.errors import UsageError

GRAY = (128, 128, 128)


@contextmanager
def view_of(folder: Path, frames: str) -> Iterator[Path]:
    """A set's folder as it is ("own"), or a view of it ("gray", "other"), which is removed afterwards.

    Raises UsageError for a folder that holds no set, and for "other" where all walks lie in one scene.
    """
    asked = holds_questions(folder)
    file, field = (CONVERSATIONS, "image") if asked else (TRAJECTORIES, "video")
    shown = _read(folder / file, field)
    if frames == "own":
        yield folder
        return
    scenes = [Path(name).parent.name if asked else scene_of(name) for name in shown]
    others = [None] * len(shown) if frames == "gray" else _others(shown, scenes, folder)
    with TemporaryDirectory(prefix="vlnbench-view-") as made:
        root = Path(made)
        shutil.copyfile(folder / file, root / file)
        link = _link_image if asked else _link_walk
        for own, other in dict(zip(shown, others, strict=True)).items():
            link(folder, own, other, root)
        yield root


def _read(path: Path, field: str) -> list[str]:
    """What each record of a set shows. Raises UsageError where there is none, or one names nothing below it."""
    found = read_list(path, "records", "collect the walks of the split with `vlnbench collect`")
    for index, record in enumerate(found):
        name = record.get(field) if isinstance(record, dict) else None
        if not isinstance(name, str) or ".." in Path(name).parts or Path(name).is_absolute():
            raise UsageError(f"{path}: record {index}: field {field!r}: expected a path below the folder")
    return [record[field] for record in found]


def scene_of(video: str) -> str:
    """The scene of a walk whose folder is called <scene>_<set>_<episode>."""
    return Path(video).name.rsplit("_", 2)[0]


def _others(shown: Sequence[str], scenes: Sequence[str], folder: Path) -> list[str]:
    """For every record what one of another scene shows: the first one half the list away, or after that."""
    count, found = len(shown), []
    for index, scene in enumerate(scenes):
        places = ((index + count // 2 + step) % count for step in range(count))
        other = next((shown[place] for place in places if scenes[place] != scene), None)
        if other is None:
            raise UsageError(f"{folder}: all of it lies in one scene; leave 'other' out of --frames")
        found.append(other)
    return found


def _link_walk(folder: Path, video: str, other: str | None, root: Path) -> None:
    """Frames of a walk in a view: one gray picture, or those of another walk, stretched to as many."""
    own, target = _frames(folder, video), root / video / "rgb"
    target.mkdir(parents=True, exist_ok=True)
    if other is None:
        sources = [_gray(own[0], root)] * len(own)
    else:
        theirs = _frames(folder, other)
        sources = [theirs[place * len(theirs) // len(own)] for place in range(len(own))]
    for number, source in enumerate(sources):
        (target / f"{number:05d}{source.suffix}").symlink_to(source.absolute())


def _link_image(folder: Path, image: str, other: str | None, root: Path) -> None:
    """An image in a view: a gray picture, or another one."""
    source = folder / (image if other is None else other)
    if not source.is_file():
        raise UsageError(f"{source}: not there; make the set again")
    (root / image).parent.mkdir(parents=True, exist_ok=True)
    (root / image).symlink_to((_gray(source, root) if other is None else source).absolute())


def _gray(like: Path, root: Path) -> Path:
    """A gray picture as large as another one."""
    with Image.open(like) as image:
        size = image.size
    gray = root / f"gray-{size[0]}x{size[1]}.png"
    if not gray.exists():
        Image.new("RGB", size, GRAY).save(gray)
    return gray


def _frames(folder: Path, video: str) -> list[Path]:
    found = sorted((folder / video / "rgb").glob("*.*"))
    if not found:
        raise UsageError(f"{folder / video / 'rgb'}: no frames; collect the set again")
    return found
