"""First-run compilation, made visible.

numba compiles a kernel on its first call. Without a word about it, the first frame of a first run would hang for
a minute; a marker in the kernel cache remembers which packages have been compiled here. Packages are compiled side
by side, in processes of their own; of several simulators that start together, one does it.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, cast

from envs.embedded.kernels.cache import own_cache
from envs.embedded.kernels.jit import kernel_cache
from vlnbench.util.durable.locks import InUseError, locked

_NAVMESH = ("envs.embedded.navmesh", "envs.embedded.navmesh.build")
_RENDER = "envs.embedded.render"
_WAIT_S = 1.0


class WarmUp:
    """Compilation of the navmesh kernels and, if wanted, of the renderer's."""

    def __init__(self, renderer: bool) -> None:
        self._packages = (*_NAVMESH, _RENDER) if renderer else _NAVMESH
        self._pending = [package for package in self._packages if not _marker(package).exists()]

    @property
    def needed(self) -> bool:
        """Whether something has not been compiled on this machine yet."""
        return bool(self._pending)

    def load(self) -> None:
        """Load what has been compiled into this process; nothing where something has not been yet."""
        if self._pending:
            return
        for package in self._packages:
            for _ in importlib.import_module(package).warm_up():
                pass

    def steps(self) -> Iterator[str]:
        """Compile, yielding a label as each step begins. Raises RuntimeError if a compiling process fails."""
        if not self._pending:
            return
        folder = own_cache() / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(locked(folder))
                    break
                except InUseError:
                    yield "waiting for another process that compiles"
                    time.sleep(_WAIT_S)
                    self._pending = [package for package in self._pending if not _marker(package).exists()]
            yield from self._compile()

    def _compile(self) -> Iterator[str]:
        # Programs of their own: a process of multiprocessing would run a script without a `__main__` guard again,
        # which would wait here for itself. They import from where this one does, not from the working folder.
        begin = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import tell_steps; tell_steps"
        with ExitStack() as stack:
            running: dict[IO[bytes], tuple[str, subprocess.Popen[bytes]]] = {}
            for package in self._pending:
                command = [sys.executable, "-c", f"{begin}({package!r})"]
                process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
                stack.enter_context(process)
                stack.callback(process.kill)
                assert process.stdout is not None
                running[process.stdout] = (package, process)
            while running:
                for labels in cast("list[IO[bytes]]", wait(cast("Any", list(running)))):
                    if label := labels.readline().decode().strip():
                        yield label
                    else:
                        _end(*running.pop(labels))


def tell_steps(package: str) -> None:
    """Compile a package, a line on standard output as each step begins."""
    for step in importlib.import_module(package).warm_up():
        print(step, flush=True)


def _end(package: str, process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        raise RuntimeError(f"compiling {package} ended with exit code {process.returncode}")
    marker = _marker(package)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()


def _marker(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return kernel_cache(Path(spec.origin).parent) / "complete"
