"""Locks that hold on the file systems of laptops and clusters: one process writes, others are refused or wait.

The lock of a folder is its file `.lock`, which says who holds it and is gone when nobody does. The file is locked
(`flock`) where the file system can do that, and whoever is killed has let go of it. That is not enough where the
file system cannot lock (Lustre without `flock`, NFS without a lock manager), nor where each machine may see its
own locks only (`nolock`, `localflock`): there the holder also touches the file every few seconds. A holder that is
not of this machine is gone when it has not done so for a minute; then the lock is taken over, with a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vlnbench.errors import RunError
from vlnbench.util.durable.owners import (
    SIZE,
    InUseError,
    Owner,
    Patience,
    decode,
    is_running,
    myself,
    started,
)
from vlnbench.util.progress import say

LOCK = ".lock"

BEAT_S, GONE_S = 5.0, 60.0
"""A holder touches its lock so often; it is gone when others have not seen it for so long."""

_POLL_S = 1.0
_SETTLE_S = 1.0
"""Of two that take over a lock at the same time, the last to write into it has it; both wait so long to see."""

_LOOKS_S = 0.3
"""Whoever only looks whether a lock is held holds it for a moment: one that is held is tried again so long."""

_ONE_MACHINE = frozenset(
    ("apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "ramfs", "xfs", "zfs")
)
"""File systems that no second machine mounts: all who lock there ask the same kernel."""

_EXPORTS = Path("/var/lib/nfs/etab")
"""What this machine lets others mount, whatever lies below it."""

_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK
"""Nothing waits for the other end of a pipe, and nothing is written through a link."""

_say_once = cache(say)


@dataclass(slots=True)
class _Held:
    """A lock of this process that is touched. seen: when it last was this process's for certain."""

    path: Path
    owner: Owner
    seen: float
    lost: str = ""

    def beat(self) -> None:
        """Touch the lock, unless it has become another's."""
        with contextlib.suppress(OSError):
            found = _read(self.path)
            if found is not None and found.token == self.owner.token:
                os.utime(self.path)
                self.seen = _clock()
            elif self.path in _touched:  # or this process has just let go of it
                by = f"{found} has taken it over" if found else f"{self.path.name} was removed"
                self.lost = f"{self.path.parent}: {by}; this process, {self.owner.pid}, writes nothing more there"


_touched: dict[Path, _Held] = {}
_toucher: list[int] = []
"""The process that has a thread which touches locks: threads do not survive a fork, this list does."""


@contextlib.contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder. Raises InUseError if another process holds it, OSError without a folder.

    wait: until the other one is done, instead, with a line that names it; for as long as `Patience` says.
    """
    with held(path / LOCK, wait):
        yield


@contextlib.contextmanager
def held(path: Path, wait: bool = False) -> Iterator[None]:
    """The same for a lock file of any name."""
    file, owner = _acquire(path, wait)
    path = path.absolute()  # wherever this process goes
    try:
        if not owner.locked or _shared(path.parent):
            _touch(path, owner)
        yield
    finally:
        if owner.pid == os.getpid():  # or a fork of the holder is ending
            _touched.pop(path, None)
            with contextlib.suppress(OSError):
                if (_read(path) or owner).token == owner.token:
                    os.ftruncate(file, 0)  # says so where the file must stay, as in /tmp one of another user
                    path.unlink()
        os.close(file)


def in_use(path: Path) -> bool:
    """Whether a process holds the lock of a folder, which may be one that can only be read."""
    try:
        file = os.open(path / LOCK, os.O_RDONLY | _PLAIN)
    except OSError:
        return False
    try:
        can = flock(file, fcntl.LOCK_SH)
        owner, touched = _read_open(file), os.fstat(file).st_mtime
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    alive = False if owner is None else _alive(owner, can, _shared(path))
    return abs(time.time() - touched) < GONE_S if alive is None else alive


def check_held() -> None:
    """Raise RunError if a lock of this process has been taken over, as after it had been stopped for minutes."""
    for one in list(_touched.values()):
        if _clock() - one.seen > GONE_S / 2:
            one.beat()
        if one.lost:
            raise RunError(one.lost)


def _acquire(path: Path, wait: bool) -> tuple[int, Owner]:
    began, pause, patience = time.monotonic(), 0.002, Patience(path.parent)
    while True:
        try:
            if taken := _try(path):
                return taken
        except InUseError as error:
            if wait:
                patience.look(error.owner)
            elif time.monotonic() - began > _LOOKS_S:
                raise
        time.sleep(pause)
        pause = min(1.5 * pause, _POLL_S if wait else _LOOKS_S / 10)


def _try(path: Path) -> tuple[int, Owner] | None:
    """Descriptor and owner of a lock that this process has now; None: try again. Raises InUseError."""
    try:
        file, new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666), True
        with contextlib.suppress(OSError):
            os.fchmod(file, os.stat(path.parent).st_mode & 0o666)  # whoever may write there may lock it
    except FileExistsError:
        try:
            file, new = os.open(path, os.O_RDWR | _PLAIN), False
        except FileNotFoundError:
            return None
    try:
        if owner := _take(path, file, new):
            kept, file = file, -1
            return kept, owner
        return None
    except OSError:  # no room for it
        if new:
            path.unlink(missing_ok=True)
        raise
    finally:
        if file >= 0:
            os.close(file)


def _take(path: Path, file: int, new: bool) -> Owner | None:
    """Make an open lock file this process's; None if it has changed meanwhile. Raises InUseError."""
    try:
        can = flock(file)
    except BlockingIOError:
        raise InUseError.of(path.parent, _read_open(file)) from None
    if not is_at(file, path):
        return None
    before, shared = _read_open(file), _shared(path.parent)
    apart = shared or not can  # so that the kernel alone cannot tell
    alive: bool | None = None if apart and not new else False
    if before is not None:
        alive = _alive(before, can, shared)
    if alive:
        raise InUseError.of(path.parent, before)
    if alive is None and not _gone(path, before):
        raise InUseError.of(path.parent, _read(path) or before)  # a lock just made has its maker's name by now
    owner = myself(can)
    os.pwrite(file, owner.encode(), 0)
    if apart:
        os.fsync(file)
        if not new:
            time.sleep(_SETTLE_S)
            if (found := _read(path)) is None or found.token != owner.token:
                return None
            if before is not None and not (can and before.locked and before.boot == owner.boot):
                say(f"{path.parent}: {before} is gone without letting go of it; taken over")
    return owner


def flock(file: int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file; False where the file system cannot. Raises BlockingIOError if another process has."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def is_at(file: int, path: Path | str, folder: int | None = None) -> bool:
    """Whether an open file is the one of that name; folder: in which the name is, if it is open."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), os.stat(path, dir_fd=folder))
    return False


def _alive(owner: Owner, can: bool, shared: bool) -> bool | None:
    """Whether the owner of a lock that this process could lock (or that cannot be) is at work; None: look on."""
    me = myself(can)
    if can and owner.locked and (owner.boot == me.boot or not shared):
        return False
    if (owner.boot, owner.space) != (me.boot, me.space):
        return None
    found = is_running(owner.pid)
    return found and started(owner.pid) == owner.started


def _gone(path: Path, before: Owner | None) -> bool:
    """Whether nobody touches a lock for as long as a holder never leaves it alone, or its maker unwritten."""
    limit, who = (GONE_S, before) if before else (BEAT_S, "a process")
    _say_once(f"{path.parent}: locked by {who}; looking for up to {limit:g} s whether it is still at work")
    last, seen, when = _state(path), 0.0, time.monotonic()
    while seen < limit:
        time.sleep(min(_POLL_S, BEAT_S / 2))
        if _state(path) != last:
            return False
        now = time.monotonic()
        # Long ones, of this process stopped or a server that does not answer, say nothing about the other one.
        seen += min(now - when, BEAT_S)
        when = now
    return True


def _state(path: Path) -> tuple[int, bytes] | None:
    """What a holder changes. Opened anew, so that NFS asks the server."""
    try:
        file = os.open(path, os.O_RDONLY | _PLAIN)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(file).st_mtime_ns, os.pread(file, SIZE, 0)
    finally:
        os.close(file)


def _read(path: Path) -> Owner | None:
    state = _state(path)
    return None if state is None else decode(state[1])


def _read_open(file: int) -> Owner | None:
    return decode(os.pread(file, SIZE, 0))


def _shared(folder: Path) -> bool:
    """Whether other machines may have mounted the file system of a folder."""
    return _is_shared(os.path.realpath(folder))


@cache
def _is_shared(real: str) -> bool:
    with contextlib.suppress(OSError):
        if _EXPORTS.stat().st_size:
            return True
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    where, kind = "", ""
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), fields.split()[4])
        if len(point) >= len(where) and (real + "/").startswith(point.rstrip("/") + "/"):
            where, kind = point, rest.split()[0]
    return kind not in _ONE_MACHINE


def _touch(path: Path, owner: Owner) -> None:
    _touched[path] = _Held(path, owner, _clock())
    if _toucher != [os.getpid()]:
        _toucher[:] = [os.getpid()]
        threading.Thread(target=_touch_all, daemon=True, name="locks").start()


def _touch_all() -> None:
    while True:
        time.sleep(BEAT_S)
        for one in list(_touched.values()):
            before = one.lost
            one.beat()
            if one.lost and not before:  # whatever does not ask `check_held` before it writes has to end as well
                say(one.lost)
                os.kill(os.getpid(), signal.SIGTERM)


def _clock() -> float:
    """Seconds, those in which the machine slept included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
