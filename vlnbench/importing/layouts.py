"""How files of results are laid out: each function gives the objects of a file, one for every episode.

Nothing is unpickled; files and values are bounded as `util.durable.limits` says, and NaN and Infinity are read, as
Python's own encoder writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.importing.formats import Found
from vlnbench.util.durable.fields import short
from vlnbench.util.durable.json_stream import elements, members

EPISODE = "episode_id"
"""Field under which `by_episode` puts the name that an object has."""


def lines(path: Path) -> Iterator[Found]:
    """JSON lines, or a list: one object each."""
    for number, value in enumerate(elements(path), start=1):
        yield Found(f"{path}: line {number}", _object(value, f"{path}: line {number}"))


def by_episode(path: Path) -> Iterator[Found]:
    """One object: episode id -> what is known of it."""
    for name, value in members(path):
        where = f"{path}: episode {short(name)}"
        yield Found(where, {**_object(value, where), EPISODE: name})


def one_each(path: Path) -> Iterator[Found]:
    """One object, of one episode."""
    yield Found(str(path), dict(members(path)))


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected an object, found {short(value)}")
    return value
