"""Tables of large runs in the user's own cache, so that the next command need not read the rows again.

Rows stay the only truth: a table is used for a file of the very path, size, times and number in the file system of
which it was made, and is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.table import STATUSES, Table
from vlnbench.evaluation.metrics import FAILURES
from vlnbench.util.durable import facts
from vlnbench.util.durable.files import replacing
from vlnbench.util.durable.own import own_cache
from vlnbench.version import __version__

FORMAT = 1
MOST = 20
"""Tables that are kept; a million rows take 0.13 GB."""

_LONGEST = 1 << 26
"""Bytes of the line before the columns."""

_NAMED = ("scores", "seconds")
_TOLD = ("heads", "scenes", "report", "lacking")


def kept_table(rows: Path, seconds: Sequence[str], read: Callable[[], Table]) -> Table:
    """The table of a file of rows: the one that is kept, or what `read` makes of it, which is kept then.

    seconds: names of the columns of seconds.
    """
    try:
        known = facts.Facts([rows])
        if known.size < facts.LARGE:
            return read()
        folder = own_cache() / "tables"
        folder.mkdir(exist_ok=True)
    except (OSError, UsageError):  # no such file, which `read` speaks of, or nowhere to keep it
        return read()
    path = folder / f"{hashlib.sha256(os.fsencode(rows.resolve())).hexdigest()}-{len(seconds)}.table"
    of = [FORMAT, __version__, _code(), [*STATUSES, *FAILURES], *seconds, *known.found[0]]
    table = _load(path, of)
    if table is None:
        table = read()
        if table.ids.dtype != object and known.settled():
            _save(path, table, of)
    return table


def _code() -> str:
    """Hash of the code that makes tables of rows: a checkout that is updated keeps its version for months."""
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


def _save(path: Path, table: Table, of: Sequence[Any]) -> None:
    """A line of JSON with its hash before it, then the columns one after another."""
    names = [each.name for each in fields(Table) if each.name not in (*_NAMED, *_TOLD)]
    columns = {name: getattr(table, name) for name in names}
    for name in _NAMED:
        columns |= {f"{name} {key}": column for key, column in getattr(table, name).items()}
    columns = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    listed = [(name, column.dtype.str, zlib.crc32(column.view(np.uint8))) for name, column in columns.items()]
    head = json.dumps([of, len(table), {name: getattr(table, name) for name in _TOLD}, listed]).encode()
    try:
        with replacing(path) as file, os.fdopen(os.dup(file), "wb") as written:
            written.write(_digest(head) + head + b"\n")
            for column in columns.values():
                written.write(column.view(np.uint8))
        for old in sorted(path.parent.glob("*.table"), key=lambda each: each.stat().st_mtime)[:-MOST]:
            old.unlink(missing_ok=True)
    except OSError:  # no space, say: it is read again the next time
        return


def _load(path: Path, of: Sequence[Any]) -> Table | None:
    """None where there is none of that file, or where a byte of it is another."""
    try:
        with path.open("rb") as file:
            line = file.readline(_LONGEST)
            head = line[64:-1]
            if line[:64] != _digest(head):
                return None
            made_of, count, told, listed = json.loads(head)
            if made_of != list(of):
                return None
            columns: dict[str, Any] = {}
            for name, kind, crc in listed:
                columns[name] = np.fromfile(file, kind, count)
                if zlib.crc32(columns[name].view(np.uint8)) != crc:
                    return None
    except OSError:
        return None
    for name in _NAMED:
        keys = [each for each in columns if each.startswith(f"{name} ")]
        columns[name] = {key.removeprefix(f"{name} "): columns.pop(key) for key in keys}
    told["heads"], told["scenes"] = tuple(map(tuple, told["heads"])), tuple(told["scenes"])
    told["lacking"] = told["lacking"] and (told["lacking"][0], tuple(told["lacking"][1]))
    return Table(**columns, **told)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
