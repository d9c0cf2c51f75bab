"""Faults of disks, folders, data and scenes."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.registry import ALIKE, fault
from tests.faults.worlds import (
    LIMIT_S,
    ROOT,
    SCENES,
    VLNBENCH,
    arguments,
    copied,
    evaluated,
    finish,
    holds,
    refused,
    run,
    same,
    start,
    wait_for,
    write_world,
)


@fault(
    "a disk (tmpfs) of 8, 24 and 56 KiB, too small for the run",
    f"one line and exit code 1 or 2; with more room the same command goes on, and {ALIKE}",
)
def full_disk(folder: Path) -> None:
    root = write_world(folder / "data")
    for kib in (8, 24, 56):
        disk, kept = folder / f"disk-{kib}", folder / f"kept-{kib}"
        disk.mkdir()
        script = """
            mount -t tmpfs -o size=$1k none "$2" || exit 77
            shift; disk=$1; kept=$2; shift 2
            "$@"; first=$?
            mount -o remount,size=64m none "$disk" && "$@"; second=$?
            cp -r "$disk/run" "$kept"
            echo "codes $first $second" >&2
        """
        evaluation = [sys.executable, "-c", VLNBENCH, *arguments(root, disk / "run")]
        shell = ["unshare", "--mount", "sh", "-c", script, "sh", str(kib), str(disk), str(kept), *evaluation]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        first, second = map(int, done.stderr.splitlines()[-1].split()[1:])
        assert (first in (1, 2), second) == (True, 0), done.stderr
        assert "No space left on device" in done.stderr
        same(kept)


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)


@fault(
    "a user who may not write where --out lies, and one who may not read the data",
    "one line that names the folder or file, exit code 2, nothing written",
)
def folders_of_others(folder: Path) -> None:
    root = write_world(folder / "data")
    (folder / "place").mkdir()
    before = sorted(folder.rglob("*"))
    with _read_only(folder / "place"):
        line = refused(*arguments(root, folder / "place" / "run"), **_as_nobody())
    holds(line, "place", "Permission denied")
    (dataset,) = root.rglob("*guide.json.gz")
    mode = stat.S_IMODE(dataset.stat().st_mode)
    dataset.chmod(0)
    line = refused(*arguments(root, folder / "run"), **_as_nobody())
    dataset.chmod(mode)
    holds(line, dataset.name, "Permission denied")
    assert sorted(folder.rglob("*")) == before


def _as_nobody() -> dict[str, Any]:
    """A process without the rights of root, and without a home; root becomes nobody in a namespace of users."""
    private = {"HOME": "/nonexistent", "XDG_CACHE_HOME": None, "TMPDIR": None, "PYTHONDONTWRITEBYTECODE": "1"}
    return {"environment": private, "cwd": "/", "before": ["unshare", "--user"] if os.geteuid() == 0 else []}


@fault("an unprivileged user without a home folder", f"the run ends well; {ALIKE}")
def unprivileged_user(folder: Path) -> None:
    root = write_world(folder / "data")
    (folder / "place").mkdir()
    evaluated(*arguments(root, folder / "place" / "run"), **_as_nobody())
    same(folder / "place" / "run")


@fault("two runs in one folder, twice", "the second is refused in one line; the first ends as if alone")
def two_runs_in_one_folder(folder: Path) -> None:
    root = write_world(folder / "data")
    for number in range(2):
        _second_is_refused(root, folder / f"run-{number}")


def _second_is_refused(root: Path, out: Path) -> None:
    first = start(arguments(root, out, env="tests.faults.envs:slow"), {"FAULT_DELAY": "0.005"})
    wait_for(lambda: (out / "manifest.json").exists() or first.poll() is not None, "a manifest")
    assert first.poll() is None, "it has ended before the second began"
    os.killpg(first.pid, signal.SIGSTOP)  # however slow the second one is, the first one is still there
    line = refused(*arguments(root, out))
    os.killpg(first.pid, signal.SIGCONT)
    holds(line, "another process is writing there", str(out))
    code, said = finish(first)
    assert code == 0, said
    same(out)


@fault(
    "an episode's instruction changed between two commands on one folder",
    "the second command is refused in one line that names what differs; the rows are untouched",
)
def data_changed(folder: Path) -> None:
    root = write_world(folder / "data")
    evaluated(*arguments(root, folder / "run"))
    before = (folder / "run" / "episodes.jsonl").read_bytes()
    shutil.rmtree(root)
    write_world(root)
    (dataset,) = root.rglob("*guide.json.gz")
    text = gzip.decompress(dataset.read_bytes()).replace(b"meters ahead", b"meters onward")
    dataset.write_bytes(gzip.compress(text, mtime=0))
    line = refused(*arguments(root, folder / "run"))
    holds(line, "dataset_sha256", str(folder / "run"))
    assert (folder / "run" / "episodes.jsonl").read_bytes() == before


REAL = "tests.faults.envs:Watched"


def _scene_fault(folder: Path, how: str, says_: str) -> None:
    """Run with a scene that a fault befalls in the middle; mend it, retry, compare."""
    root = write_world(folder / "data")
    whole = copied(root / SCENES / "b", folder / "whole")
    scene = root / SCENES / "b" / "b.glb"
    environment = {"FAULT_SCENE": str(scene), "FAULT_HOW": how, "FAULT_OTHER": str(root / SCENES / "a" / "a.glb")}
    command = arguments(root, folder / "run", env=REAL)
    code, said = run(command, environment)
    assert code in (1, 2), f"exit code {code}: {said}"
    holds(said, says_, "b.glb")
    shutil.rmtree(scene.parent)
    shutil.copytree(whole, scene.parent)
    evaluated(*command, "--retry-errors")
    same(folder / "run", REAL)


@fault(
    "a scene deleted while the run is in another one",
    f"one line that names the file, exit code 1 or 2; with the scene back the same command goes on, and {ALIKE}",
)
def scene_deleted(folder: Path) -> None:
    _scene_fault(folder, "deleted", "b.glb")


@fault(
    "a scene replaced by half of itself while the run is in another one",
    f"one line that names the file, exit code 1 or 2; with the scene back the same command goes on, and {ALIKE}",
)
def scene_cut_off(folder: Path) -> None:
    _scene_fault(folder, "cut", "header")
