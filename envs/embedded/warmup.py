"""First-run compilation, made visible.

numba compiles a kernel on its first call. Without a word about it, the first frame of a first run would hang for
half a minute; a marker in the kernel cache remembers which packages have been compiled here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from envs.embedded import navmesh, render
from envs.embedded.jit import kernel_cache
from envs.embedded.navmesh import build


class WarmUp:
    """Compilation of the navmesh kernels and, if wanted, of the renderer's."""

    def __init__(self, renderer: bool) -> None:
        self._packages = [navmesh, build, *([render] if renderer else [])]

    @property
    def needed(self) -> bool:
        return not all(_marker(package).exists() for package in self._packages)

    def steps(self) -> Iterator[str]:
        """Compile, yielding a label before each step."""
        for package in self._packages:
            marker = _marker(package)
            if not marker.exists():
                yield from package.warm_up()
                marker.parent.mkdir(parents=True, exist_ok=True)
                marker.touch()


def _marker(package: ModuleType) -> Path:
    assert package.__file__ is not None
    return kernel_cache(Path(package.__file__).parent) / "complete"
