"""Counts the changes of files below a folder, over all processes of a command, and ends or fails one of them.

Python imports this module in every process whose PYTHONPATH holds its folder. CRASH_BELOW: the folder;
CRASH_NOTES: folder in which the processes and the changes are noted; CRASH_AT: number of the change before which
all are killed (a write is half done by then), 0 for none; CRASH_HOW: "torn" to cut what lies below hidden names in
halves then, as of files that libraries were writing, "full" for a disk that is full at that change instead.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import sys
from typing import Any

_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PATHS = {
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.utime": (0,),
}
"""Places of the paths in the arguments of the events that change a folder or a file."""


class _Counter:
    """Notes the changes below a folder, and ends the processes of the command, or fails, before one of them."""

    def __init__(self, below: str, notes: str, at: int, how: str) -> None:
        self._below, self._notes, self._at, self._how = below, notes, at, how
        self._write, self._open = os.write, os.open

    def install(self) -> None:
        self._note("processes", str(os.getpid()))
        os.write, os.open = self.write, self.open
        sys.addaudithook(self.look)

    def look(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook."""
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not isinstance(flags, int) or not flags & _CHANGING:
                return
            places, folder = [path], -1
        elif event in _PATHS:
            places = [arguments[i] for i in _PATHS[event]]
            folder = arguments[-1]
        else:
            return
        for path in places:
            found = self._inside(path, folder)
            if found is not None:
                if self._reached(event, found):
                    self._happen()
                return

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """In place of `os.open`, whose event does not tell the folder that a name is of."""
        if dir_fd is not None and flags & _CHANGING:
            found = self._inside(path, dir_fd)
            if found is not None and self._reached("open", found):
                self._happen()
        return self._open(path, flags, mode, dir_fd=dir_fd)

    def write(self, file: int, content: Any) -> int:
        """In place of `os.write`, which no event tells of."""
        found = self._inside(file)
        if found is not None and self._reached("write", found):
            self._write(file, bytes(content)[: len(content) // 2])
            self._happen()
        return self._write(file, content)

    def _note(self, name: str, text: str) -> int:
        """Add a line to a file of notes; returns its number."""
        file = self._open(os.path.join(self._notes, name), os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._write(file, text.replace("\n", " ").encode() + b"\n")
            return os.pread(file, os.fstat(file).st_size, 0).count(b"\n")
        finally:
            os.close(file)

    def _inside(self, path: Any, folder: Any = -1) -> str | None:
        """The path below the folder that is watched, None for any other."""
        try:
            relative = not isinstance(path, int) and not os.path.isabs(os.fsdecode(path))
            found = _place(path)
            if relative and isinstance(folder, int) and folder >= 0:
                found = os.path.join(_place(folder), os.fsdecode(path))
        except (TypeError, ValueError):
            return None
        return found if found == self._below or found.startswith(self._below + "/") else None

    def _reached(self, what: str, path: str) -> bool:
        return self._note("changes", f"{os.getpid()} {what} {path.removeprefix(self._below)}") == self._at

    def _happen(self) -> None:
        if self._how == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(os.path.join(self._notes, "processes")) as file:
            others = {int(line) for line in file} - {os.getpid()}
        above = [process for process in _ancestors() if process in others]
        last = [*(others - set(above)), *reversed(above)]  # this process may end with its parent
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none sees another end
            for process in last:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
        if self._how == "torn":
            self._tear()
        os.kill(os.getpid(), signal.SIGKILL)

    def _tear(self) -> None:
        self._at = -1  # what is done here is not counted
        for folder, _, names in os.walk(self._below):
            for path in (os.path.join(folder, name) for name in names):
                hidden = any(part.startswith(".") for part in path.removeprefix(self._below).split("/"))
                if hidden and os.path.isfile(path) and not os.path.islink(path):
                    os.truncate(path, os.path.getsize(path) // 2)


def _ancestors() -> list[int]:
    """Processes that this one descends from, its parent first."""
    found = [os.getppid()]
    while found[-1] > 1:
        with open(f"/proc/{found[-1]}/stat") as file:
            found.append(int(file.read().rpartition(")")[2].split()[1]))
    return found


def _place(path: Any) -> str:
    """Absolute path of a file by its path or descriptor."""
    if isinstance(path, int):
        try:
            return os.readlink(f"/proc/self/fd/{path}")
        except OSError:
            return ""
    return os.path.abspath(os.fsdecode(path))


if os.environ.get("CRASH_BELOW"):
    _Counter(
        os.environ["CRASH_BELOW"],
        os.environ["CRASH_NOTES"],
        int(os.environ["CRASH_AT"]),
        os.environ.get("CRASH_HOW", ""),
    ).install()
