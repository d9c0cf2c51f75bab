"""Odd surroundings: environment variables, paths, streams and terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

from tests.faults.registry import ALIKE, fault
from tests.faults.worlds import (
    LIMIT_S,
    ROOT,
    VLNBENCH,
    arguments,
    evaluated,
    run,
    same,
    start,
    write_world,
)


def _surrounded(folder: Path, environment: dict[str, str | None], **how: Any) -> None:
    root = write_world(folder / "data")
    evaluated(*arguments(root, folder / "run"), environment=environment, **how)
    same(folder / "run")
    code, said = run(["status", str(folder / "run")], environment)
    assert code == 0, said


@fault("HOME, TMPDIR and XDG_CACHE_HOME unset", f"the run ends well; {ALIKE}")
def home_unset(folder: Path) -> None:
    _surrounded(folder, {"HOME": None, "TMPDIR": None, "XDG_CACHE_HOME": None})


@fault("TMPDIR and HOME that are no folders", f"the run ends well; {ALIKE}")
def home_nowhere(folder: Path) -> None:
    _surrounded(folder, {"HOME": "/nonexistent", "TMPDIR": "/nonexistent", "XDG_CACHE_HOME": None})


@fault("LANG=C and no UTF-8 mode", f"the run ends well; {ALIKE}; a report of Unicode text is written")
def locale_c(folder: Path) -> None:
    plain = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": None}
    _surrounded(folder, plain)
    report = ["report", str(folder / "run"), f"--data-root={folder / 'data'}", "--env=tests.faulty:plane"]
    code, said = run(report, plain)
    assert code == 0, said


@fault("a path with spaces, quotes, Unicode and a newline", f"the run ends well; {ALIKE}")
def odd_paths(folder: Path) -> None:
    odd = folder / "with spaces" / "größe 数据 'quoted' \"twice\"" / "a\nline"
    odd.mkdir(parents=True)
    _surrounded(odd, {})


@fault("standard input, output and error closed or at /dev/full", f"the run ends; {ALIKE}")
def streams_closed(folder: Path) -> None:
    root = write_world(folder / "data")
    for number, shell in enumerate(('"$@" <&- >&- 2>&-', '"$@" < /dev/null > /dev/null 2>&1', '"$@" > /dev/full')):
        out = folder / f"run-{number}"
        command = ["sh", "-c", shell, "sh", sys.executable, "-c", VLNBENCH, *arguments(root, out)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, env=environment, timeout=LIMIT_S, check=False, stderr=subprocess.DEVNULL)
        same(out)


@fault("a terminal 40 columns wide, and one of 0", f"the run ends well; {ALIKE}")
def narrow_terminal(folder: Path) -> None:
    root = write_world(folder / "data")
    for columns in (40, 0):
        out = folder / f"run-{columns}"
        said = _in_terminal(arguments(root, out), columns)
        assert b"Traceback" not in said, said.decode(errors="replace")
        same(out)


def _in_terminal(command: list[str], columns: int) -> bytes:
    """Everything that a command writes to a terminal of a width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = start(command, {"TERM": "xterm", "COLUMNS": None}, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        said += more
    os.close(ours)
    assert process.wait(LIMIT_S) == 0, said.decode(errors="replace")
    return said
