"""Where the embedded simulator keeps what it can make again: compiled kernels, prepared scenes, navmeshes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$VLNBENCH_CACHE, else `vlnbench` in the user's cache directory."""
    chosen = os.environ.get("VLNBENCH_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vlnbench"
