"""Whether files are those of which something is remembered: where they lie, their size and their times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

LARGE = 1 << 26
"""Bytes from which on something is remembered; fewer are read in no time."""

SETTLED_S = 2.0
"""A file may change again within the grain of its time: of one that is younger, nothing is remembered."""


class Facts:
    """What changes when one of some files does: name, where it is, size, times in ns, device and number.

    Raises OSError for a file that is not there.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files, self._began = files, time.time()
        self.found = _facts(files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, _, size, *_ in self.found)

    def settled(self) -> bool:
        """Whether what was read since is of these files: none has changed, or may have without a trace."""
        youngest = max(max(each.stat().st_mtime, each.stat().st_ctime) for each in self._files)
        return _facts(self._files) == self.found and youngest < self._began - SETTLED_S


def _facts(files: Sequence[Path]) -> list[tuple[str, str, int, int, int, int, int]]:
    found = []
    for path in files:
        of = path.stat()
        where = path.name, str(path.resolve())
        found.append((*where, of.st_size, of.st_mtime_ns, of.st_ctime_ns, of.st_dev, of.st_ino))
    return found
