"""Reads one case within limits on memory and time, and says in one word what came of it."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import pkgutil
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple, NoReturn, Protocol, cast

import pytest

from tests.fuzz import kinds
from vlnbench.errors import UsageError

KINDS = sorted(module.name for module in pkgutil.iter_modules(kinds.__path__))

MEMORY_BYTES = 2**30
"""What a case may allocate beyond the size of its files."""

CPU_SECONDS = 10
WALL_SECONDS = 120
"""For a case that waits instead of computing; generous, as the machine may be busy."""

LINE_LENGTH = 600
"""A refusal is one line that a person can read, with names in it; the folder of the case does not count."""

FINE = frozenset({"read", "refused"})

Builder = Callable[[Path], object]
"""Writes one known case into an empty folder."""


class Kind(Protocol):
    """A module of `tests.fuzz.kinds`."""

    corpus: Mapping[str, tuple[Builder, str]]
    """Everything found so far: name -> how to write it, and what its refusal says (empty: it is read)."""

    def write(self, folder: Path, random: Random) -> None:
        """One random case into an empty folder: an honest file, changed."""

    def read(self, folder: Path) -> None:
        """What the program does with such files, through its own readers. Raises UsageError to refuse."""


class Verdict(NamedTuple):
    """name: "read", "refused", or what went wrong. detail: the refusal, or the end of the traceback. seconds: CPU
    time. grown: bytes by which the process grew."""

    name: str
    detail: str = ""
    seconds: float = 0.0
    grown: int = 0


@cache
def find(name: str) -> Kind:
    """A kind, with everything loaded and compiled that its honest files need: no case is charged for it."""
    kind = cast("Kind", importlib.import_module(f"{kinds.__name__}.{name}"))
    for case, (build, _) in kind.corpus.items():
        if case.startswith("honest"):
            with empty_folder() as folder:
                build(folder)
                kind.read(folder)
    return kind


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Hang(BaseException):
    """A case that computes or waits too long; no reader may take it for an error of the file."""


def judge(kind: Kind, folder: Path) -> Verdict:
    """Read the files in `folder` within the limits. What no exception can end (a loop in compiled code, a fault in
    it) ends this process, with a traceback: `-s --hypothesis-verbosity=verbose` then shows which case it was."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    honest = sum(path.stat().st_size for path in files)
    with pytest.MonkeyPatch.context() as patch, _timed():
        patch.chdir(folder)
        patch.setattr(tempfile, "tempdir", str(folder))  # what it writes is seen
        for name in ("HOME", "TMPDIR", "VLNBENCH_CACHE"):
            patch.setenv(name, str(folder))
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory is counted from here
        before, start = _status("VmRSS"), time.process_time()
        with _limited(_status("VmSize") + honest + MEMORY_BYTES):
            name, said = _read(kind, folder, files)
        return Verdict(name, said[-4000:], time.process_time() - start, _status("VmHWM") - before)


@contextlib.contextmanager
def _timed() -> Iterator[None]:
    def stop(number: int, frame: object) -> NoReturn:
        raise Hang

    clocks = {
        signal.SIGPROF: (signal.ITIMER_PROF, CPU_SECONDS),
        signal.SIGALRM: (signal.ITIMER_REAL, WALL_SECONDS),
    }
    usual = {number: signal.signal(number, stop) for number in clocks}
    faulthandler.dump_traceback_later(2 * WALL_SECONDS, exit=True)
    try:
        for clock, seconds in clocks.values():
            signal.setitimer(clock, seconds)
        yield
    finally:
        for number, (clock, _) in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(number, usual[number])
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _limited(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _read(kind: Kind, folder: Path, files: list[Path]) -> tuple[str, str]:
    """Name and detail of a verdict."""
    try:
        kind.read(folder)
    except UsageError as error:
        line = str(error)
        if "\n" in line or len(line.replace(str(folder), "")) > LINE_LENGTH:
            return "not one short line", line
        left = sorted(path for path in folder.rglob("*") if path.is_file())
        return "refused" if left == files else "refused after writing", line
    except Hang:
        return "hang", ""
    except MemoryError:
        return "memory", ""
    except Exception:
        return "traceback", traceback.format_exc()
    return "read", ""


def _status(field: str) -> int:
    """Bytes that this process has, or has had at most, of a kind of memory."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
