"""Where the embedded simulator keeps what it can make again: compiled kernels, prepared scenes, navmeshes.

Scenes and navmeshes are data, which users may share: a folder that can only be read is read, and what is not there
goes into the user's own. Kernels are code, which nobody runs from a folder that others write.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from vlnbench.errors import UsageError

NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


def cache_dir() -> Path:
    """$VLNBENCH_CACHE, else `vlnbench` in the user's cache directory."""
    chosen = os.environ.get("VLNBENCH_CACHE")
    return Path(chosen) if chosen else _of_user()


def own_cache() -> Path:
    """`cache_dir()` if this user writes there and nobody else does, else the user's cache directory, else one in
    $TMPDIR. Raises UsageError if none can be written."""
    problem = ""
    temporary = Path(tempfile.gettempdir(), f"vlnbench-{os.geteuid()}")
    for folder in (cache_dir(), _of_user(), temporary):
        try:
            folder.mkdir(0o700 if folder == temporary else 0o777, parents=True, exist_ok=True)
            status = folder.lstat() if folder == temporary else folder.stat()
            others = 0 if folder == _of_user() else stat.S_IWGRP | stat.S_IWOTH
            if status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode) and not status.st_mode & others:
                tempfile.TemporaryFile(dir=folder).close()
                return folder
        except OSError as error:
            problem = problem or f" ({error.strerror})"
    raise UsageError(f"{cache_dir()}: cannot hold compiled code{problem}; set VLNBENCH_CACHE to another folder")


def cache_dirs(name: str) -> list[Path]:
    """Folders of that name, where to look for a file and where to keep it, the best one first."""
    return [folder / name for folder in dict.fromkeys((cache_dir(), own_cache()))]


def keep(folders: Sequence[Path], name: str, write: Callable[[Path], None]) -> Path:
    """Write a file into the first of some folders that this user may write. Raises UsageError if there is none."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / name)
        except OSError as error:
            if folder == folders[-1] or error.errno not in NOT_OURS:
                raise UsageError(
                    f"{folder}: cannot write the cache ({error.strerror}); set VLNBENCH_CACHE to another folder"
                ) from None
        else:
            break
    return folder / name


def _of_user() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen or os.path.expanduser("~/.cache"), "vlnbench")
