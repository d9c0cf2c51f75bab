"""Faults of disks, folders, data and scenes."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.scripted import RandomAgent
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
from tests.runs import record, write_dataset

HOUSES = ("data", "houses", "--train-houses=1", "--val-unseen-houses=1", "--train-episodes=2")
HOUSES_WITH = ("--val-seen-episodes=1", "--val-unseen-episodes=1")


@fault(
    "`data houses` begun twice at once in one folder; and again, the first killed (SIGKILL) while it generates",
    "every process that is not killed ends well; the files are those of one alone; nothing is left over",
)
def houses_twice(folder: Path) -> None:
    evaluated(*HOUSES, *HOUSES_WITH, f"--data-root={folder / 'alone'}")
    for name, killed in (("together", False), ("killed", True)):
        command = [*HOUSES, *HOUSES_WITH, f"--data-root={folder / name}"]
        first, second = (start(command) for _ in range(2))
        if killed:
            wait_for((folder / "killed" / SCENES).exists, "scenes")
            os.killpg(first.pid, signal.SIGKILL)
        codes = [finish(each)[0] for each in (first, second)]
        assert codes[1] == 0, codes
        assert codes[0] == (-signal.SIGKILL if killed else 0), codes
        assert _below(folder / name) == _below(folder / "alone")


def _below(root: Path) -> dict[str, bytes]:
    """All files, hidden ones too."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@fault(
    "`export` to EvalAI killed (SIGKILL) at ten moments, then done again",
    "there is no submission or a whole one; nothing is left over",
)
def export_killed(folder: Path) -> None:
    root = write_dataset(folder / "data")
    record(root, RandomAgent(), folder / "run")
    whole = folder / "whole.json"
    command = ["export", str(folder / "run"), "--format=evalai-r2r", "--allow-partial"]
    began = time.monotonic()
    evaluated(*command, f"--out={whole}")
    took = time.monotonic() - began
    (folder / "out").mkdir()
    for moment in range(10):
        out = folder / "out" / f"{moment}.json"
        process = start([*command, f"--out={out}"])
        time.sleep(took * (0.5 + moment / 18))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not out.exists() or out.read_bytes() == whole.read_bytes()
        evaluated(*command, "--force", f"--out={out}")
        assert out.read_bytes() == whole.read_bytes()
    assert len(list((folder / "out").iterdir())) == 10


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
