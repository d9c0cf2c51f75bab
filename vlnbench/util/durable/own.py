"""Folders of the user's own: what is there can be made again, and nobody else has written it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from vlnbench.errors import UsageError


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
    raise UsageError(f"{cache_dir()}: cannot be used as a cache{problem}; set VLNBENCH_CACHE to another folder")


def _of_user() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen or os.path.expanduser("~/.cache"), "vlnbench")
