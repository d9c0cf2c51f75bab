"""Where the embedded simulator keeps what it can make again: compiled kernels, prepared scenes, navmeshes.

Scenes and navmeshes are data, which users may share: a folder that can only be read is read, and what is not there
goes into the user's own. Kernels are code, which nobody runs from a folder that others write.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.util.durable.own import cache_dir, own_cache

NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


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
