"""Who holds a lock: which process of which machine, whether it still runs, and how long others wait for it."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.util.progress import say

SIZE = 512
"""Bytes of what a lock file says of its owner."""

STOPPED_S = 60.0
"""A process of this machine that is stopped by a signal is waited for no longer."""

WAIT_S = 12 * 3600.0
"""Whoever waits for a lock does so at most so long: nothing that is made once for all takes longer."""

_SAY_S, _AGAIN_S = 5.0, 600.0
"""When a line says for whom, and says so again."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock, as its file says.

    boot, space: the running kernel and the name space of its process numbers. started: of the process, in ticks.
    locked: whether the file is locked too.
    """

    host: str
    pid: int
    boot: str
    space: str
    started: int
    locked: bool
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def encode(self) -> bytes:
        """What its file holds."""
        return json.dumps(asdict(self)).encode().ljust(SIZE - 1) + b"\n"

    def stopped(self) -> bool:
        """Whether it is a process of this machine that a signal or a debugger has stopped."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return False
        return (self.boot, self.space) == machine() and state in (b"T", b"t")


class InUseError(UsageError):
    """Another process holds the lock: `owner`, where its file says so."""

    owner: Owner | None = None

    @classmethod
    def of(
        cls, folder: Path, owner: Owner | None, advice: str = "wait for it or choose another --out"
    ) -> InUseError:
        """Another process holds that of a folder."""
        by = f" ({owner})" if owner else ""
        error = cls(f"{folder}: another process is writing there{by}; {advice}")
        error.owner = owner
        return error


class Patience:
    """Waiting for whoever holds a lock: with a line after `_SAY_S` and then every `_AGAIN_S`, at most `WAIT_S`.

    No longer than `STOPPED_S` for a process of this machine that is stopped.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._began = folder, time.monotonic()
        self._say_at = self._began + _SAY_S
        self._moved = self._began

    def look(self, owner: Owner | None) -> None:
        """The lock is held. Raises InUseError where it has been for too long."""
        now, who = time.monotonic(), str(owner or "another process")
        if owner is None or not owner.stopped():
            self._moved = now
        elif now - self._moved > STOPPED_S:
            advice = f"it is stopped: let it go on (kill -CONT {owner.pid}) or end it"
            raise InUseError.of(self._folder, owner, advice)
        if now - self._began > WAIT_S:
            raise InUseError.of(
                self._folder, owner, f"waited for {WAIT_S / 3600:g} h; see what it does, or end it"
            )
        if now >= self._say_at:
            self._say_at = now + _AGAIN_S
            minutes = round((now - self._began) / 60)
            say(f"{self._folder}: waiting for {who}, which is at work there" + f" ({minutes} min)" * bool(minutes))


def decode(content: bytes) -> Owner | None:
    """What a lock file says; None where it says nothing, or nonsense."""
    try:
        found = Owner(**json.loads(content))
        sane = 0 < found.pid < 1 << 31 and re.fullmatch(r"[\w.-]{1,64}", found.host, re.ASCII)
    except (ValueError, TypeError):
        return None
    return found if sane else None


def myself(can: bool) -> Owner:
    """This process. can: whether the file is locked too."""
    pid, host = os.getpid(), re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII)[:64]
    return Owner(host, pid, *machine(), started(pid), can, secrets.token_hex(8))


def is_running(pid: int) -> bool | None:
    """Whether this machine runs a process of that number; None: another user's, perhaps not the one meant."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None
    return started(pid) >= 0


@cache
def machine() -> tuple[str, str]:
    """The running kernel, and the name space of this process's number."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname(), ""


def started(pid: int) -> int:
    """When a process began, in ticks since the machine did: 0 where that is not said, -1 of one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return -1 if fields[0] == b"Z" else int(fields[19])
