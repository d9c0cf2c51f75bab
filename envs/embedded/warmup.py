"""First-run compilation, made visible.

numba compiles a kernel on its first call. Without a word about it, the first frame of a first run would hang for
a minute; a marker in the kernel cache remembers which packages have been compiled here. Packages are compiled side
by side, in processes of their own; of several simulators that start together, one does it.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, cast

from envs.embedded.kernels.cache import cache_dir
from envs.embedded.kernels.jit import kernel_cache

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
        folder = cache_dir() / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            while not _locked(lock):
                yield "waiting for another process that compiles"
                time.sleep(_WAIT_S)
                self._pending = [package for package in self._pending if not _marker(package).exists()]
            yield from self._compile()

    def _compile(self) -> Iterator[str]:
        context = multiprocessing.get_context("spawn")
        running: dict[Connection, tuple[str, multiprocessing.process.BaseProcess]] = {}
        for package in self._pending:
            labels, sender = context.Pipe(duplex=False)
            process = context.Process(target=_compile, args=(package, sender), daemon=True)
            process.start()
            sender.close()
            running[labels] = (package, process)
        while running:
            for labels in cast("list[Connection]", wait(list(running))):
                try:
                    yield labels.recv()
                except EOFError:
                    package, ended = running.pop(labels)
                    ended.join()
                    if ended.exitcode != 0:
                        reason = f"ended with exit code {ended.exitcode}"
                        raise RuntimeError(f"compiling {package} {reason}") from None


def _locked(file: IO[str]) -> bool:
    """Take the lock of an open file, if nobody has it; it ends with the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _compile(package: str, labels: Connection) -> None:
    for label in importlib.import_module(package).warm_up():
        labels.send(label)
    marker = _marker(package)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()


def _marker(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return kernel_cache(Path(spec.origin).parent) / "complete"
