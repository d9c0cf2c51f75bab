"""Every case in a forked child with limits on memory and time, and one verdict on what came of it.

The process that forks has loaded everything a case needs, so a case costs milliseconds. Run it by
`python -m tests.fuzz`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from vlnbench.errors import UsageError

MEMORY_BYTES = 2**30
"""What a case may allocate beyond the size of its files."""

CPU_SECONDS = 10
WALL_SECONDS = 120
"""Backstop for a child that waits instead of computing; generous, as the machine may be busy."""

LINE_LENGTH = 600
"""A refusal is one line that a person can read, with paths and numbers in it."""

_GROWN = 16
"""Bytes at the beginning of a child's report for the number by which its memory grew."""

FINE = frozenset({"read", "refused"})
_READ, _REFUSED, _TRACEBACK, _MEMORY, _LONG, _WROTE = range(6)
_CODES = {
    _READ: "read",
    _REFUSED: "refused",
    _TRACEBACK: "traceback",
    _MEMORY: "memory",
    _LONG: "not one short line",
    _WROTE: "refused after writing",
}


class Builder(Protocol):
    """Writes one known case into an empty folder."""

    def __call__(self, folder: Path) -> None: ...


class Kind(Protocol):
    """A module of `tests.fuzz.kinds`."""

    corpus: Mapping[str, tuple[Builder, str]]
    """Everything found so far: name -> how to write it, and what its refusal says (empty: it is read)."""

    def prepare(self) -> None:
        """Load and compile whatever `read` needs; once, before the first fork."""

    def write(self, folder: Path, random: Random) -> None:
        """One random case into an empty folder: an honest file, changed."""

    def read(self, folder: Path) -> None:
        """What the program does with such files, through its own readers. Raises UsageError to refuse."""


class Verdict(NamedTuple):
    """name: "read", "refused", or what went wrong. detail: the refusal, or the end of the traceback. seconds: CPU
    time. grown: bytes by which the child's memory grew."""

    name: str
    detail: str
    seconds: float
    grown: int


def judge(kind: Kind, folder: Path) -> Verdict:
    """Read the files in `folder` in a child of this process. Nothing they do reaches this process."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    honest = sum(path.stat().st_size for path in files)
    with tempfile.TemporaryFile() as report:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            before = _peak_bytes()
            os.write(report.fileno(), b"0".rjust(_GROWN))
            code = _run(kind, folder, files, honest, report.fileno())
            os.pwrite(report.fileno(), str(_peak_bytes() - before).encode().rjust(_GROWN), 0)
            os._exit(code)  # no clean-up of the parent's things
        status, used, waited = _wait(child)
        report.seek(0)
        grown = int(report.read(_GROWN) or 0)
        detail = report.read().decode("utf-8", "replace").strip()
    seconds = used.ru_utime + used.ru_stime
    if os.WIFEXITED(status):
        return Verdict(_CODES.get(os.WEXITSTATUS(status), "exit"), detail, seconds, grown)
    number = os.WTERMSIG(status)
    hung = number == signal.SIGXCPU or waited
    return Verdict("hang" if hung else f"killed by signal {number}", detail, seconds, grown)


def cases(kind: Kind, name: str, count: int, seed: int) -> Iterator[tuple[int, Path]]:
    """Number and folder of `count` random cases, each removed when the next is asked for.

    A case depends on the kind, the seed and its number alone, so any of them can be written again.
    """
    for number in range(count):
        with _folder() as folder:
            kind.write(folder, Random(f"{name} {seed} {number}"))
            yield number, folder


def corpus(kind: Kind) -> Iterator[tuple[str, str, Path]]:
    """Name, expected refusal and folder of every known case."""
    for name, (build, expected) in kind.corpus.items():
        with _folder() as folder:
            build(folder)
            yield name, expected, folder


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(kind: Kind, folder: Path, files: list[Path], honest: int, report: int) -> int:
    """In the child: read the files within the limits; the exit code says what came of it."""
    os.dup2(report, 1)
    os.dup2(report, 2)
    os.chdir(folder)
    for name in ("HOME", "TMPDIR", "VLNBENCH_CACHE"):
        os.environ[name] = str(folder)  # what it writes is seen
    most = _virtual_bytes() + honest + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        kind.read(folder)
    except UsageError as error:
        return _refusal(str(error), folder, files)
    except MemoryError:
        return _MEMORY
    except BaseException:
        _say(traceback.format_exc()[-4000:])
        return _TRACEBACK
    return _READ


def _refusal(line: str, folder: Path, files: list[Path]) -> int:
    _say(line[:4000])
    if "\n" in line or len(line) > LINE_LENGTH:
        return _LONG
    left = sorted(path for path in folder.rglob("*") if path.is_file())
    return _REFUSED if left == files else _WROTE


def _say(text: str) -> None:
    os.write(2, text.encode("utf-8", "backslashreplace"))


def _wait(child: int) -> tuple[int, resource.struct_rusage, bool]:
    """Status and use of a child, and whether it had to be killed."""
    end, killed = time.monotonic() + WALL_SECONDS, False
    pause = 0.0005
    while True:
        found, status, used = os.wait4(child, os.WNOHANG)
        if found:
            return status, used, killed
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            killed = True
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _virtual_bytes() -> int:
    return _status("VmSize")


def _peak_bytes() -> int:
    """Most memory this process has had at once."""
    return _status("VmHWM")


def _status(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
