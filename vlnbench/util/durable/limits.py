"""What files of text may cost: bytes that a compressed one may unpack to, and characters of one value in it.

Every number has a row in docs/reference/limits.md. Scenes and navmeshes have theirs in `envs/embedded/limits.py`.
"""

from __future__ import annotations

import gzip
import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vlnbench.errors import UsageError

FREE_UNPACKED, UNPACKED_PER_BYTE = 64 << 20, 50
"""A gzipped file may unpack to so many bytes, and to more for every byte of its own; episodes and trajectories
unpack to 9 to 22 times their size."""

MAX_VALUE = 8 << 20
"""Characters of one value: an episode, a line of a run, a small file. Decoded it takes less than 0.3 GB."""

MAX_TABLE = 64 << 20
"""Bytes of the large JSON files of a checkpoint: its index of weights and its tokenizer."""

MAX_HEADER = 16 << 20
"""Bytes of the header of a safetensors file: names and places of 0.15 million tensors."""

MAX_YAML, MAX_VALUES, MAX_SCALAR = 256 << 10, 20_000, 1000
"""Of a YAML file: bytes, values with aliases written out, and characters of one text."""

MAX_SETTINGS = 1000
"""Settings of a matrix before `keep`: each takes minutes at least to train."""

MAX_MEMBERS = 300_000
"""Named values at the top of a file; EnvDrop's ground truth has 0.15 million."""

MAX_TOKEN = 1 << 20
"""Numbers of tokens are below this; the vocabularies of large models have 0.15 million."""

MAX_COORDINATE_M = 1e6
"""Of scenes and episodes, in meters: single precision has steps of 6 cm there, and squares do not overflow."""


def regular(path: Path) -> Path:
    """The same path, of a plain file or of nothing. Raises UsageError for anything else.

    A pipe without a writer keeps whoever opens it waiting, and a device may never end.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # whoever opens it says why it cannot be
        return path
    if not stat.S_ISREG(mode):
        found = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise UsageError(f"{path}: expected a file, found {found}")
    return path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever the file system says while a file is read becomes a UsageError that names the file.

    What a read raises, of a damaged disk say, does not name it.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error


def read_bounded(path: Path, most: int = MAX_VALUE) -> bytes:
    """The content of a file. Raises UsageError if it has more bytes than that, OSError if it cannot be read."""
    with regular(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UsageError(f"{path}: more than {most:,} bytes; expected a smaller file")
    return content


def open_gzip(file: BinaryIO, path: Path) -> io.BufferedReader:
    """What a gzipped file unpacks to; reading raises UsageError where that is far more than the file can hold."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return io.BufferedReader(_Unpacked(file, path, FREE_UNPACKED + UNPACKED_PER_BYTE * size), 1 << 16)


class _Unpacked(io.RawIOBase):
    """The bytes of a gzipped file, up to a number of them."""

    def __init__(self, file: BinaryIO, path: Path, most: int) -> None:
        self._file = gzip.GzipFile(fileobj=file)
        self._path, self._most, self._passed = path, most, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what io passes
        found = self._file.read1(len(buffer))
        self._passed += len(found)
        if self._passed > self._most:
            raise UsageError(
                f"{self._path}: unpacks to more than {self._most >> 20} MiB, over {UNPACKED_PER_BYTE} times its"
                " size; get the file again"
            )
        buffer[: len(found)] = found
        return len(found)
