"""Every case within limits on memory and time, and one verdict on what came of it.

Cases are read one after the other by a forked process that has loaded everything they need, so a case costs
little more than its reading. Whatever is neither read nor refused there is read again alone, in a process that
nothing else has touched; that verdict counts. Run it by `python -m tests.fuzz`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple, NoReturn, Protocol

from vlnbench.errors import UsageError

MEMORY_BYTES = 2**30
"""What a case may allocate beyond the size of its files."""

CPU_SECONDS = 10
WALL_SECONDS = 120
"""Backstop for a process that waits instead of computing; generous, as the machine may be busy."""

LINE_LENGTH = 600
"""A refusal is one line that a person can read, with paths and numbers in it."""

FINE = frozenset({"read", "refused"})

_BATCH = 500
"""Cases that one process reads, as some things are kept as long as it lives."""

_SAID = 4000
"""Characters of a refusal or traceback that are kept."""


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
    time. grown: bytes by which the process grew."""

    name: str
    detail: str = ""
    seconds: float = 0.0
    grown: int = 0


def judge_cases(kind: Kind, name: str, numbers: Sequence[int], seed: int) -> Iterator[tuple[int, Verdict]]:
    """Number and verdict of random cases of a kind."""
    waiting = list(numbers)
    while waiting:
        done, last = 0, Verdict("exit")
        for last in _batch(kind, name, waiting[:_BATCH], seed):
            if last.name not in FINE:
                break
            yield waiting[done], last
            done += 1
        if last.name not in FINE or not done:
            with case(kind, name, waiting[done], seed) as folder:
                alone = judge(kind, folder)
            if alone.name in FINE and last.name == "traceback":
                alone = last._replace(detail=f"only after other cases: {last.detail}")
            yield waiting[done], alone
            done += 1
        del waiting[:done]


def judge(kind: Kind, folder: Path) -> Verdict:
    """Read the files in `folder` in a child of this process. Nothing they do reaches this process."""
    with _forked(lambda report: _send(report, _verdict(kind, folder))) as (child, report):
        verdict = _received(report)
        if verdict is not None:
            return verdict
        killed = report.poll() is False  # still open: it waits for something
        if killed:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if killed or number == signal.SIGPROF:
        return Verdict("hang", seconds=CPU_SECONDS)
    return Verdict(f"killed by signal {number}" if number else "exit")


@contextlib.contextmanager
def case(kind: Kind, name: str, number: int, seed: int) -> Iterator[Path]:
    """Folder of one random case, which depends on the kind, the seed and its number alone."""
    with empty_folder() as folder:
        kind.write(folder, Random(f"{name} {seed} {number}"))
        yield folder


def corpus(kind: Kind) -> Iterator[tuple[str, str, Path]]:
    """Name, expected refusal and folder of every known case."""
    for name, (build, expected) in kind.corpus.items():
        with empty_folder() as folder:
            build(folder)
            yield name, expected, folder


def _batch(kind: Kind, name: str, numbers: Sequence[int], seed: int) -> Iterator[Verdict]:
    """Verdicts on cases read by one process; fewer if it dies or waits, at the first that it did not survive."""

    def work(report: Connection) -> None:
        for number in numbers:
            with case(kind, name, number, seed) as folder:
                _send(report, _verdict(kind, folder))

    with _forked(work) as (_, report):
        for _ in numbers:
            verdict = _received(report)
            if verdict is None:
                yield Verdict("lost")
                return
            yield verdict


@contextlib.contextmanager
def _forked(work: Callable[[Connection], None]) -> Iterator[tuple[int, Connection]]:
    """A child that works and reports, and the end that hears it; it is gone behind the block."""
    hear, report = Pipe(duplex=False)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _be(work, report)
    report.close()
    try:
        yield child, hear
    finally:
        hear.close()
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _be(work: Callable[[Connection], None], report: Connection) -> NoReturn:
    """What a child does. Never returns: no clean-up of the parent's things."""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work(report)
    finally:
        os._exit(0)


def _send(report: Connection, verdict: Verdict) -> None:
    report.send_bytes(json.dumps(verdict).encode())


def _received(report: Connection) -> Verdict | None:
    """What comes next; None if nothing does."""
    try:
        return Verdict(*json.loads(report.recv_bytes())) if report.poll(WALL_SECONDS) else None
    except EOFError:
        return None


def _verdict(kind: Kind, folder: Path) -> Verdict:
    """Read files in this process, within the limits; it does not survive one that computes without end."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    honest = sum(path.stat().st_size for path in files)
    os.chdir(folder)
    tempfile.tempdir, own = str(folder), tempfile.gettempdir()  # what it writes is seen
    for name in ("HOME", "TMPDIR", "VLNBENCH_CACHE"):
        os.environ[name] = str(folder)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory is counted from here
    before, start = _status("VmRSS"), time.process_time()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + honest + MEMORY_BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        name, said = _read(kind, folder, files)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        tempfile.tempdir = own
    return Verdict(name, said, time.process_time() - start, _status("VmHWM") - before)


def _read(kind: Kind, folder: Path, files: list[Path]) -> tuple[str, str]:
    """Name and detail of a verdict."""
    try:
        kind.read(folder)
    except UsageError as error:
        line = str(error)
        if "\n" in line or len(line) > LINE_LENGTH:
            return "not one short line", line[:_SAID]
        left = sorted(path for path in folder.rglob("*") if path.is_file())
        return "refused" if left == files else "refused after writing", line
    except MemoryError:
        return "memory", ""
    except BaseException:
        return "traceback", traceback.format_exc()[-_SAID:]
    return "read", ""


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _status(field: str) -> int:
    """Bytes that this process has, or has had at most, of a kind of memory."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
