"""Every moment at which a command changes a file is one to be killed at: `python -m tests.crash.points NAME`.

A command is run undisturbed once, which counts its changes of files below the folder that it writes. Then, for
each of them, it is killed with all its processes just before that change (a write when half is written), run
again, and what it leaves is compared with what the undisturbed one left. `--every N` takes each Nth change only.
`--fault torn` also cuts everything below a hidden name to half its length, since libraries write there without
telling Python. `--fault full` has the disk full at each of them instead: the command must end in one line, and go
on afterwards. `--locks` does it on a file system whose locks are NFS's, or all refused with that error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from tests.crash.commands import COMMANDS, PRELOADED, ROOT, Command, Found
from tests.faults.file_systems import BELOW, shimmed
from tests.faults.tried import Tried, commit, read_tried, write_tried
from vlnbench.cli import main

HOOK = Path(__file__).parent / "hook"
LIMIT_S = 300.0


def run(command: Command, given: Path, out: Path, at: int, fault: str = "kill") -> tuple[int, list[str]]:
    """Run a command with its changes counted, and a fault at one of them; returns exit code and changes.

    In a copy of this process, which has imported most of what a command needs.
    """
    with tempfile.TemporaryDirectory() as notes:
        environment = {
            "PYTHONPATH": os.pathsep.join([str(HOOK), str(ROOT)]),
            "CRASH_BELOW": str((out / command.watched).resolve()),
            "CRASH_NOTES": notes,
            "CRASH_AT": str(at),
            "CRASH_HOW": fault,
            "OMP_NUM_THREADS": "1",  # else a training chooses by timing
        }
        sys.stdout.flush()
        process = os.fork()
        if not process:
            _be(command, command.arguments(given, out), environment, Path(notes, "said"))
        code = _wait(process)
        said = Path(notes, "said").read_text()
        expected = (0, 1, 2) if at and fault == "full" else (0, -signal.SIGKILL)
        if code not in expected or "Traceback" in said:
            raise AssertionError(f"exit code {code}: {said[-2000:]}")
        changes = Path(notes, "changes")
        return code, changes.read_text().splitlines() if changes.exists() else []


def _be(command: Command, arguments: list[str], environment: Mapping[str, str], said: Path) -> NoReturn:
    """Become a command. Never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(Path(environment["CRASH_BELOW"]).parent)
        os.environ.update(environment)
        output = os.open(said, os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(output, stream)
        runpy.run_path(str(HOOK / "sitecustomize.py"))
        command.change()
        code = main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(process: int) -> int:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise AssertionError(f"not done after {LIMIT_S:g} s")


def prepared(command: Command, folder: Path) -> tuple[Path, Found, list[str]]:
    """What a command reads, what it leaves undisturbed, and its changes."""
    given = folder / "given"
    given.mkdir()
    command.prepare(given)
    out = fresh(command, folder, "undisturbed")
    code, changes = run(command, given, out, 0)
    if code:
        raise AssertionError(f"killed, undisturbed, after {changes[-1:]}")
    return given, command.left(out), changes


def fresh(command: Command, folder: Path, name: str) -> Path:
    """An empty folder to write in."""
    out = folder / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    return out


def crash(command: Command, folder: Path, given: Path, at: int, fault: str) -> tuple[Found, str]:
    """Let a command have a fault at a change and run it again; returns what it leaves, and the change."""
    out = fresh(command, folder, f"at-{at}")
    code, changes = run(command, given, out, at, fault)
    if (fault != "full" and code != -signal.SIGKILL) or len(changes) < at:
        raise AssertionError(f"change {at} of {len(changes)}: expected to be killed, exit code {code}")
    run(command, given, out, 0)
    found = command.left(out)
    shutil.rmtree(out)
    return found, changes[at - 1].partition(" ")[2]


def enumerate_points() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=COMMANDS)
    parser.add_argument("--fault", choices=("kill", "torn", "full"), default="kill")
    parser.add_argument("--locks", choices=("nfs", "ENOLCK", "ENOSYS"))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--record", type=Path, help="keep what came of it in this file, and go on from it")
    options = parser.parse_args()
    if options.locks and BELOW not in os.environ:  # a library is preloaded when a process starts
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, **shimmed(Path(folder), options.locks)}
            again = [sys.executable, "-m", "tests.crash.points", *sys.argv[1:]]
            return subprocess.run(again, env=environment, check=False).returncode
    command = COMMANDS[options.name]
    for name in (*PRELOADED, *command.preloaded):
        importlib.import_module(name)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=os.environ.get(BELOW)) as folder:
        given, undisturbed, changes = prepared(command, Path(folder))
        happened, first = recorded(options, len(changes))
        for at in range(first, len(changes) + 1, options.every):
            try:
                found, change = crash(command, Path(folder), given, at, options.fault)
                differing = [n for n in {**undisturbed, **found} if undisturbed.get(n) != found.get(n)]
                problem = f"differs: {differing}" if differing else ""
            except (AssertionError, OSError, ValueError) as error:
                change, problem = "?", str(error)
            happened["differs" if problem else "ends alike"] += 1
            print(f"{at:4d} of {len(changes)}: {change}{'  ' + problem if problem else ''}", flush=True)
            if options.record is not None:
                write_tried(options.record, made(options, len(changes), happened, at))
    bad, took = happened["differs"], time.monotonic() - start
    what = made(options, len(changes), happened, 0).what
    print(f"{what}: {happened.total()} of {len(changes)} changes, {bad} bad, {took:.0f} s")
    return bool(bad)


def recorded(options: argparse.Namespace, changes: int) -> tuple[Counter[str], int]:
    """What came of the changes before, and the first to try, where a run was stopped at the same commit."""
    found = read_tried(options.record) if options.record is not None else None
    fresh = made(options, changes, Counter(), options.first)
    if found is None or (found.what, found.command, found.commit) != (fresh.what, fresh.command, fresh.commit):
        return Counter(), options.first
    if found.more["changes"] != changes:
        return Counter(), options.first
    return Counter(found.happened), found.more["last"] + options.every


def made(options: argparse.Namespace, changes: int, happened: Counter[str], last: int) -> Tried:
    """The record of a run up to a change."""
    words = [options.name, *(["--fault", options.fault] if options.fault != "kill" else [])]
    words += [f"--locks {options.locks}"] if options.locks else []
    words += [f"--every {options.every}"] if options.every > 1 else []
    words += [f"--first {options.first}"] if options.first > 1 else []
    what = " ".join([options.fault, options.name, *([options.locks] if options.locks else [])])
    how = f"python -m tests.crash.points {' '.join(words)}"
    more = {"changes": changes, "last": last}
    return Tried(what, how, commit(), happened.total(), dict(happened), happened["differs"], more)


if __name__ == "__main__":
    raise SystemExit(enumerate_points())
