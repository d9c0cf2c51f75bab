"""Hashes of checkpoints, those of large ones remembered by where files lie, their size and their times."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.util.durable import facts
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.limits import read_bounded, regular
from vlnbench.util.durable.locks import locked
from vlnbench.util.durable.own import own_cache

_DIGEST = re.compile(r"[0-9a-f]{64}")


def content_hash(paths: Iterable[Path]) -> str:
    """SHA-256 (hexadecimal) over names and contents of files.

    That of large ones is kept in the user's own cache, and read by one process while others wait for it. A file
    whose size, time of change or number in the file system differs is another.
    """
    files = list(paths)
    known = facts.Facts(files)
    if known.size < facts.LARGE:
        return _computed(files)
    try:
        kept = own_cache() / "hashes" / hashlib.sha256(json.dumps(known.found).encode()).hexdigest()
        kept.mkdir(parents=True, exist_ok=True)
        with locked(kept, wait=True):
            return _kept(kept / "digest", files, known)
    except (OSError, UsageError):  # nowhere to remember it
        return _computed(files)


def _kept(path: Path, files: Sequence[Path], known: facts.Facts) -> str:
    if path.is_file() and _DIGEST.fullmatch(found := read_bounded(path, 64).decode("ascii", "replace")):
        return found
    digest = _computed(files)
    if known.settled():
        write_bytes(path, digest.encode())
    return digest


def _computed(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with regular(path).open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
