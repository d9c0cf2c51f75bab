"""Named arrays in one memory-mapped file: written atomically, verified when opened, rebuilt when damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.cache import keep
from vlnbench.util.durable.files import replacing

BUDGET_BYTES = 32 * 2**30
"""The scene folder is kept below this by deleting the scenes that have not been opened for longest."""

_ALIGN = 64
_PREFIX = 16
"""Bytes before the header: its length and the checksum of all that follows, as hexadecimal text."""


def cached_arrays(
    folders: Sequence[Path], source: Path, key: dict[str, Any], build: Callable[[], dict[str, NDArray[Any]]]
) -> dict[str, NDArray[Any]]:
    """Arrays of `source` from a cache in one of `folders`, or from `build()`, then kept in the first possible one.

    One file per source path; it is used if it carries the same `key` and its checksum is right, and replaced
    otherwise. Concurrent processes may build the same file: the last rename wins and each result is complete.

    Raises:
        UsageError: none of the folders can be written.
    """
    name = f"{source.stem}.{hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]}.scene"
    for folder in folders:
        if (arrays := _read(folder / name, key)) is not None:
            return arrays
    built = build()
    target = keep(folders, name, lambda path: _write(path, key, built))
    _prune(target.parent, target)
    arrays = _read(target, key)
    return built if arrays is None else arrays  # another process replaced it for another version of the scene


def _write(target: Path, key: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    entries, offset = [], 0
    for name, array in arrays.items():
        entries.append({"name": name, "dtype": array.dtype.str, "shape": array.shape, "offset": offset})
        offset += -(-array.nbytes // _ALIGN) * _ALIGN
    header = json.dumps({"key": key, "size": offset, "arrays": entries}).encode()
    header += b" " * (-(len(header) + _PREFIX) % _ALIGN)
    checksum = zlib.crc32(header)
    with replacing(target) as descriptor, open(descriptor, "wb", closefd=False) as file:
        file.write(b" " * _PREFIX + header)
        for array in arrays.values():
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            padding = bytes(-array.nbytes % _ALIGN)
            checksum = zlib.crc32(padding, zlib.crc32(data, checksum))
            file.write(data)
            file.write(padding)
        file.seek(0)
        file.write(f"{len(header):08x}{checksum:08x}".encode())


def _read(target: Path, key: dict[str, Any]) -> dict[str, NDArray[Any]] | None:
    """The arrays of a cache file, or None if it is absent, damaged or of another key."""
    try:
        with target.open("rb") as file:
            data = _content(file)
        length, checksum = int(data[:8], 16), int(data[8:_PREFIX], 16)
        header = json.loads(data[_PREFIX : _PREFIX + length])
        start = _PREFIX + length
        if header["key"] != key or len(data) != start + header["size"]:
            return None
        if zlib.crc32(memoryview(data)[_PREFIX:]) != checksum:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):  # of another user
        os.utime(target)  # opened now: see `_prune`
    return {
        entry["name"]: np.ndarray(entry["shape"], entry["dtype"], data, start + entry["offset"])
        for entry in header["arrays"]
    }


def _content(file: BinaryIO) -> mmap.mmap | bytes:
    """A file, mapped where its file system can do that: not shared, which some refuse, and as nobody writes it."""
    try:
        return mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    except OSError:
        return file.read()


def _prune(folder: Path, newest: Path) -> None:
    """Delete the longest unopened scenes until the folder fits its budget. Open ones stay mapped regardless."""
    files = []
    for path in folder.glob("*.scene"):
        with contextlib.suppress(FileNotFoundError):  # another process pruned it
            status = path.stat()
            files.append((status.st_mtime_ns, status.st_size, path))
    excess = sum(size for _, size, _ in files) - BUDGET_BYTES
    for _, size, path in sorted(files):
        if excess <= 0 or path == newest:
            break
        with contextlib.suppress(OSError):  # another process was faster, or it is another user's
            path.unlink()
        excess -= size
