"""First-run compilation, made visible.

numba compiles a kernel on its first call. Without a word about it, the first frame of a first run would hang for
a minute; a marker in the kernel cache remembers which packages have been compiled here. Packages are compiled side
by side, in processes of their own; of several simulators that start together, one does it. All are compiled where
one is missing, since what follows waits for the longest of them.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, cast

from llvmlite import binding  # type: ignore[import-untyped]

from envs.embedded.kernels.jit import kernel_cache
from vlnbench.util.durable.locks import locked
from vlnbench.util.durable.own import own_cache
from vlnbench.util.durable.owners import InUseError

_PACKAGES = ("envs.embedded.navmesh.build", "envs.embedded.navmesh", "envs.embedded.render")
"""What takes longest first: it takes as long as the others together."""

_AT_ONCE = 2

_STEP_S = 1800.0
"""A step takes seconds, of a busy machine minutes: after so long it will not end."""


class WarmUp:
    """Compilation of the navmesh's kernels and of the renderer's."""

    def __init__(self) -> None:
        self._pending = _missing(_PACKAGES)

    @property
    def needed(self) -> bool:
        """Whether something has not been compiled on this machine yet."""
        return bool(self._pending)

    def load(self) -> None:
        """Load what has been compiled into this process; nothing where something has not been yet."""
        if self._pending:
            return
        for package in _PACKAGES:
            for _ in importlib.import_module(package).warm_up():
                pass

    def steps(self) -> Iterator[str]:
        """Compile, yielding a label as each step begins. Raises RuntimeError if a compiling process fails."""
        if not self._pending:
            return
        folder = own_cache() / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder))
            except InUseError as error:
                yield f"waiting for {error.owner or 'another process'}, which compiles"
                stack.enter_context(locked(folder, wait=True))
            self._pending = _missing(self._pending)
            yield from self._compile()

    def _compile(self) -> Iterator[str]:
        # Programs of their own: a process of multiprocessing would run a script without a `__main__` guard again,
        # which would wait here for itself. They import from where this one does, not from the working folder.
        begin = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import tell_steps; tell_steps"
        with ExitStack() as stack:
            running: dict[IO[bytes], tuple[str, subprocess.Popen[bytes]]] = {}
            waiting = list(self._pending)
            while waiting or running:
                while waiting and len(running) < _AT_ONCE:
                    package = waiting.pop(0)
                    command = [sys.executable, "-c", f"{begin}({package!r})"]
                    process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
                    stack.enter_context(process)
                    stack.callback(process.kill)
                    assert process.stdout is not None
                    running[process.stdout] = (package, process)
                ready = cast("list[IO[bytes]]", wait(cast("Any", list(running)), _STEP_S))
                if not ready:
                    names = ", ".join(package for package, _ in running.values())
                    raise RuntimeError(f"compiling {names} has come no further for {_STEP_S / 60:g} min")
                for labels in ready:
                    if label := labels.readline().decode().strip():
                        yield label
                    else:
                        _end(*running.pop(labels))


def tell_steps(package: str) -> None:
    """Compile a package, a line on standard output as each step begins."""
    gc.set_threshold(50_000)  # numba's objects stay: looking for garbage would take 5 % of the time
    for step in importlib.import_module(package).warm_up():
        print(step, flush=True)


def _missing(packages: Iterable[str]) -> list[str]:
    return [package for package in packages if not _marker(package).exists()]


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
    # numba keeps code apart by Python and by processor, which machines of one home may differ in.
    done_by = f"{sys.implementation.cache_tag}-{binding.get_host_cpu_name()}"
    return kernel_cache(Path(spec.origin).parent) / f"complete-{done_by}"
