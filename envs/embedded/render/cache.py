"""Named arrays in one memory-mapped file: written atomically, verified when opened, rebuilt when damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlnbench.errors import UsageError

BUDGET_BYTES = 32 * 2**30
"""The scene folder is kept below this by deleting the scenes that have not been opened for longest."""

_ALIGN = 64
_PREFIX = 16
"""Bytes before the header: its length and the checksum of all that follows, as hexadecimal text."""


def cached_arrays(
    folder: Path, source: Path, key: dict[str, Any], build: Callable[[], dict[str, NDArray[Any]]]
) -> dict[str, NDArray[Any]]:
    """Arrays of `source` from the cache in `folder`, or from `build()`, then stored there.

    One file per source path; it is used if it carries the same `key` and its checksum is right, and replaced
    otherwise. Concurrent processes may build the same file: the last rename wins and each result is complete.

    Raises:
        UsageError: `folder` cannot be written.
    """
    name = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    target = folder / f"{source.stem}.{name}.scene"
    arrays = _read(target, key)
    if arrays is None:
        built = build()
        try:
            _write(target, key, built)
        except OSError as error:
            raise UsageError(
                f"{folder}: cannot write the scene cache ({error.strerror}); choose another folder"
            ) from None
        _prune(folder, target)
        arrays = _read(target, key)
        if arrays is None:  # another process replaced it for another version of the scene
            arrays = built
    return arrays


def _write(target: Path, key: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    entries, offset = [], 0
    for name, array in arrays.items():
        entries.append({"name": name, "dtype": array.dtype.str, "shape": array.shape, "offset": offset})
        offset += -(-array.nbytes // _ALIGN) * _ALIGN
    header = json.dumps({"key": key, "size": offset, "arrays": entries}).encode()
    header += b" " * (-(len(header) + _PREFIX) % _ALIGN)
    checksum = zlib.crc32(header)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(b" " * _PREFIX + header)
            for array in arrays.values():
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                padding = bytes(-array.nbytes % _ALIGN)
                checksum = zlib.crc32(padding, zlib.crc32(data, checksum))
                file.write(data)
                file.write(padding)
            file.seek(0)
            file.write(f"{len(header):08x}{checksum:08x}".encode())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(target: Path, key: dict[str, Any]) -> dict[str, NDArray[Any]] | None:
    """The arrays of a cache file, or None if it is absent, damaged or of another key."""
    try:
        with target.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        length, checksum = int(data[:8], 16), int(data[8:_PREFIX], 16)
        header = json.loads(data[_PREFIX : _PREFIX + length])
        start = _PREFIX + length
        if header["key"] != key or len(data) != start + header["size"]:
            return None
        if zlib.crc32(memoryview(data)[_PREFIX:]) != checksum:
            return None
        os.utime(target)  # opened now: see `_prune`
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {
        entry["name"]: np.ndarray(entry["shape"], entry["dtype"], data, start + entry["offset"])
        for entry in header["arrays"]
    }


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
        path.unlink(missing_ok=True)
        excess -= size
