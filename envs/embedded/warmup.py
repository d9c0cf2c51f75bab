"""First-run compilation, made visible: every kernel is compiled once and kept on disk by numba.

A marker file in the cache directory remembers that this machine has compiled this version of the kernels with
this numba; without it the first frame of a run would hang for seconds without a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numba

from envs.embedded import navmesh, render
from envs.embedded.assets import cache_dir
from envs.embedded.navmesh import build


class WarmUp:
    """Compilation of the navmesh kernels and, if wanted, of the renderer's."""

    def __init__(self, renderer: bool) -> None:
        self._parts = [navmesh, build, *([render] if renderer else [])]

    @property
    def needed(self) -> bool:
        return not all(_marker(part.__name__).exists() for part in self._parts)

    def steps(self) -> Iterator[str]:
        """Compile, yielding a label before each step."""
        for part in self._parts:
            marker = _marker(part.__name__)
            if not marker.exists():
                yield from part.warm_up()
                marker.parent.mkdir(parents=True, exist_ok=True)
                marker.touch()


def _marker(package: str) -> Path:
    """Marker of one package: its name changes with the kernels' sources, their place and numba's version."""
    folder = Path(__file__).parent
    sources = sorted(folder.rglob("*.py"))
    digest = hashlib.sha256(f"{numba.__version__} {folder} {package}".encode())
    for source in sources:
        digest.update(source.read_bytes())
    return cache_dir() / "compiled" / digest.hexdigest()[:24]
