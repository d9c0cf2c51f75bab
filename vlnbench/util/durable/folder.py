"""Durable folders: runs, trainings, collections and matrices all begin, resume and refuse in the same way.

The manifest is written before anything else and says what the folder is of; whoever writes holds the folder's
lock. A process killed at any moment leaves a folder that the same command takes up again: empty, with a temporary
file of the manifest (`durable.files.replacing`), or with the manifest, and perhaps the lock. A folder without a
manifest that holds anything else is not ours.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.util.durable.files import leftover_of, read_object, remove_leftovers, write_json
from vlnbench.util.durable.locks import LOCK, held, locked

Differences = Mapping[str, tuple[Any, Any]]
"""Name of a field -> (what the folder has, what is wanted)."""

_MOST_NAMED, _LONGEST = 3, 100


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of folder: what one holds, in words, and the name of its manifest."""

    noun: str
    manifest: str


@contextmanager
def open_folder(
    path: Path,
    kind: Kind,
    manifest: Mapping[str, Any],
    check: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[None]:
    """Make a folder or take one up again, and hold its lock.

    check: raises UsageError if the manifest that it is given is another's; default: all fields of `manifest` are
    equal. Raises UsageError, with nothing changed, if the folder is another's, in use, or cannot be written.
    """
    with ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path))
            found = find_manifest(path, kind)
            if found is None:
                write_json(path / kind.manifest, manifest)
            elif check is not None:
                check(found)
            else:
                refuse_another(path, kind, differences(found, manifest))
            remove_leftovers(path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error
        yield


def inner(path: Path) -> None:
    """Make a folder within one of ours, unless it is there.

    Raises UsageError for a link: whoever made the outer folder would choose where files are written and removed.
    """
    if path.is_symlink():
        raise UsageError(f"{path}: a link, through which nothing is written; expected a folder")
    path.mkdir(parents=True, exist_ok=True)


def find_manifest(path: Path, kind: Kind) -> dict[str, Any] | None:
    """The manifest of a folder, None if it is still to be begun. Raises UsageError if it is something else's."""
    if (path / kind.manifest).is_file():
        return read_object(path / kind.manifest)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: a file, not the folder of a {kind.noun}; choose another --out")
    if path.exists() and any(each.name != LOCK and leftover_of(each) != kind.manifest for each in path.iterdir()):
        raise UsageError(f"{path}: not empty and not the folder of a {kind.noun}; choose another --out")
    return None


def remove_parts(path: Path, *names: str) -> None:
    """Remove what killed processes left of folders of these names while they made them: `.<name>.<anything>`.

    For the holder of the lock of `path` alone.
    """
    for part in [part for name in names for part in path.glob(f".{name}.*")]:
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)


@contextmanager
def appearing(folder: Path, noun: str) -> Iterator[Path]:
    """An empty folder to write into, which gets the name `folder` when the block ends without an exception.

    A process that is killed meanwhile leaves `.<name>.<letters>`, which the next one for that name removes.
    Raises UsageError if there is one of that name, or another process is making it. noun: what it holds, in words.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists already: give a new folder for the {noun}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    begun = re.compile(re.escape(f".{folder.name}.") + r"[a-z0-9_]{8}")  # as tempfile calls them
    with held(folder.parent / f".{folder.name}.lock"):
        for part in [each for each in folder.parent.iterdir() if begun.fullmatch(each.name)]:
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
            made = Path(name, "made")
            made.mkdir()
            yield made
            os.rename(made, folder)


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Differences:
    """The fields of `wanted` that are other in `found`."""
    return {name: (found.get(name), value) for name, value in wanted.items() if found.get(name) != value}


def refuse_another(path: Path, kind: Kind, differing: Differences, advice: str = "choose another --out") -> None:
    """Raise UsageError naming the differing fields, if there are any."""
    if not differing:
        return
    named = [f"{name} {_short(was)} (now {_short(now)})" for name, (was, now) in list(differing.items())]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    raise UsageError(f"{path}: holds another {kind.noun}: {', '.join(named[:_MOST_NAMED])}{more}; {advice}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
