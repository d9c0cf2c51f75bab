"""Faults of the file systems that clusters have, which a preloaded library (shim.c) lets a folder lie on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.faults.registry import ALIKE, fault
from tests.faults.worlds import (
    arguments,
    content,
    evaluated,
    expected,
    finish,
    holds,
    refused,
    rows,
    run,
    start,
    wait_for,
    write_world,
)

BELOW = "SHIM_BELOW"
SLOW = "tests.faults.envs:slow"
HOLDS = (
    "of three runs begun at once one runs; a second one is refused; killed (SIGKILL), the same command goes on; "
    f"{ALIKE}; nothing is left over"
)
MACHINES = "/proc/self/mountinfo", "/proc/sys/kernel/random/boot_id"


def shimmed(folder: Path, locks: str, machine: str = "") -> dict[str, str]:
    """Environment in which `folder/place` is on such a file system. locks: what they do there, see shim.c.

    machine: another name is another machine, which has mounted the folder over the network.
    """
    place, library = folder / "place", folder / "shim.so"
    place.mkdir(exist_ok=True)
    if not library.exists():
        source = Path(__file__).with_name("shim.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    files = {}
    if machine:
        mounts = f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / {place} rw - nfs4 server:/lab rw\n"
        for path, text in zip(MACHINES, (mounts, f"{machine}\n"), strict=True):
            files[path] = folder / f"{machine}-{Path(path).name}"
            files[path].write_text(text)
    instead = ":".join(f"{path}={other}" for path, other in files.items())
    number = str(getattr(errno, locks, locks))
    return {"LD_PRELOAD": str(library), BELOW: str(place), "SHIM_LOCKS": number, "SHIM_FILES": instead}


def _holds(folder: Path, locks: str) -> str:
    """Try all of `HOLDS`; returns what the run said that went on."""
    environment = {**shimmed(folder, locks), "FAULT_DELAY": "0.005"}
    root, place = write_world(folder / "place" / "data"), folder / "place"
    together = [start(arguments(root, place / "three", env=SLOW), environment) for _ in range(3)]
    assert sorted(finish(each)[0] for each in together) == [0, 2, 2]
    _whole(place / "three")

    command = arguments(root, place / "run", env=SLOW)
    first = start(command, environment)
    wait_for(lambda: len(rows(place / "run")) >= 2 or first.poll() is not None, "rows")
    os.killpg(first.pid, signal.SIGSTOP)
    holds(refused(*command, environment=environment), "another process is writing there (process ", str(place))
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert 2 <= len(rows(place / "run")) < 12
    said = evaluated(*command, environment=environment)
    _whole(place / "run")
    code, reported = run(["report", str(place / "run"), f"--data-root={root}", f"--env={SLOW}"], environment)
    assert code == 0, reported
    return said


def _whole(folder: Path) -> None:
    """Compare with an undisturbed run; nothing is there twice, and no lock or temporary file."""
    assert content(folder) == expected(SLOW), "rows or trajectories differ"
    assert len(rows(folder)) == len(expected(SLOW)[0])
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


@fault("a folder whose locks are NFS's: none of folders, none of files that are only read", HOLDS)
def nfs_locks(folder: Path) -> None:
    assert "taken over" not in _holds(folder, "nfs")


@fault(
    "a folder without a lock manager (ENOLCK), as NFS mounted without one",
    HOLDS + "; a line says what was taken over",
)
def no_lock_manager(folder: Path) -> None:
    holds(_holds(folder, "ENOLCK"), "is gone without letting go of it; taken over")


@fault(
    "a folder that knows no locks (ENOSYS), as Lustre without flock", HOLDS + "; a line says what was taken over"
)
def locks_unknown(folder: Path) -> None:
    holds(_holds(folder, "ENOSYS"), "is gone without letting go of it; taken over")


@fault(
    "two machines that begin one run in one folder at the same moment, without seeing each other's locks, 3 times",
    f"one runs, the other is refused in one line; {ALIKE}; nothing is left over",
)
def two_machines_at_once(folder: Path) -> None:
    root, place = write_world(folder / "place" / "data"), folder / "place"
    machines = [{**shimmed(folder, "own", name), "FAULT_DELAY": "0.05"} for name in ("one", "two")]
    for number in range(3):
        out = place / f"run{number}"
        together = [start(arguments(root, out, env=SLOW), environment) for environment in machines]
        ended = sorted(finish(each) for each in together)
        assert [code for code, _ in ended] == [0, 2], ended
        holds(ended[1][1], "another process is writing there (process ", str(out))
        _whole(out)


@fault(
    "two machines on one folder that do not see each other's locks, the first stopped for more than a minute",
    "the second is refused while the first is at work, waits a minute and takes over with a line when it is not; "
    f"the first, going on, writes nothing more and ends; {ALIKE}",
)
def two_machines(folder: Path) -> None:
    root, place = write_world(folder / "place" / "data"), folder / "place"
    ours, theirs = ({**shimmed(folder, "own", name), "FAULT_DELAY": "0.05"} for name in ("one", "two"))
    command = arguments(root, place / "run", env=SLOW)
    first: Any = start(command, ours)
    wait_for(lambda: len(rows(place / "run")) >= 1 or first.poll() is not None, "rows")
    holds(refused(*command, environment=theirs), "another process is writing there (process ", str(place))
    os.killpg(first.pid, signal.SIGSTOP)
    stopped = len(rows(place / "run"))
    assert stopped < 12, "it has ended before it was stopped"
    second = start(command, theirs)
    wait_for(lambda: len(rows(place / "run")) > stopped or second.poll() is not None, "rows of the second")
    os.killpg(first.pid, signal.SIGCONT)
    code, said = finish(first)
    assert code != 0
    holds(said, "has taken it over; this process, ", "writes nothing more there")
    code, said = finish(second)
    assert code == 0, said
    holds(said, "looking for up to 60 s whether it is still at work", "taken over")
    _whole(place / "run")
