"""Every moment at which a command changes a file is one to be killed at: `python -m tests.crash.points NAME`.

A command is run undisturbed once, which counts its changes of files below the folder that it writes. Then, for
each of them, it is killed with all its processes just before that change (a write when half is written), run
again, and what it leaves is compared with what the undisturbed one left. `--every N` takes each Nth change only.
`--fault full` has the disk full at each of them instead: the command must end in one line, and go on afterwards.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from agents.scripted import RandomAgent
from tests.fakes import make_episode
from tests.faulty import FaultyEnv
from tests.runs import record, write_dataset
from vlnbench.cli import main
from vlnbench.evaluation.records import ATTEMPTS, MANIFEST, ROWS, SUMMARY, TRAJECTORIES
from vlnbench.interfaces import Action, Observation, Vec3
from vlnbench.training.collect.collect import JOURNAL

ROOT = Path(__file__).parents[2]
HOOK = Path(__file__).parent / "hook"
LIMIT_S = 300.0

Found = Mapping[str, Any]
"""What a command left: by name of the file, whatever must not differ."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of which every change of a file is enumerated.

    prepare: makes what it reads below a folder, once. arguments: of `vlnbench`, given the folder of what it reads
    and an empty one. watched: the folder that it writes, below the latter. left: what must be alike in the end.
    """

    prepare: Callable[[Path], None]
    arguments: Callable[[Path, Path], list[str]]
    watched: str
    left: Callable[[Path], Found]


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
        }
        sys.stdout.flush()
        process = os.fork()
        if not process:
            _be(command.arguments(given, out), environment, Path(notes, "said"))
        code = _wait(process)
        said = Path(notes, "said").read_text()
        expected = (0, 1, 2) if at and fault == "full" else (0, -signal.SIGKILL)
        if code not in expected or "Traceback" in said:
            raise AssertionError(f"exit code {code}: {said[-2000:]}")
        changes = Path(notes, "changes")
        return code, changes.read_text().splitlines() if changes.exists() else []


def _be(arguments: list[str], environment: Mapping[str, str], said: Path) -> NoReturn:
    """Become a command. Never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(ROOT)
        os.environ.update(environment)
        output = os.open(said, os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(output, stream)
        runpy.run_path(str(HOOK / "sitecustomize.py"))
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
    if (fault == "kill" and code != -signal.SIGKILL) or len(changes) < at:
        raise AssertionError(f"change {at} of {len(changes)}: expected to be killed, exit code {code}")
    run(command, given, out, 0)
    found = command.left(out)
    shutil.rmtree(out)
    return found, changes[at - 1].partition(" ")[2]


# -- commands


def files(folder: Path) -> dict[str, bytes]:
    """Contents of all files below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _plain_data(given: Path) -> None:
    episodes = [make_episode(i, scene="ab"[i % 2], distance=0.5 + i / 4) for i in range(3)]
    write_dataset(given, "rxr-ce", [replace(episode, instruction_id=episode.episode_id) for episode in episodes])
    (given / "scene_datasets" / "mp3d").mkdir(parents=True)


def _eval(given: Path, out: Path) -> list[str]:
    options = ["--benchmark=rxr-ce", "--allow-partial", f"--data-root={given}", f"--out={out / 'run'}"]
    return ["eval", "--agent=random", "--env=tests.faulty:plane", "--envs=1", *options]


def _run_left(out: Path) -> Found:
    folder = out / "run"
    manifest, summary = (json.loads((folder / name).read_text()) for name in (MANIFEST, SUMMARY))
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    trajectories = set((folder / TRAJECTORIES).read_text().splitlines())  # one may be there twice
    if not (folder / ATTEMPTS).read_text().endswith("\n"):
        raise AssertionError(f"{folder / ATTEMPTS}: torn")
    return {
        "files": sorted(files(folder)),
        MANIFEST: {**manifest, "created": ""},
        SUMMARY: {**summary, "seconds": {}},
        ROWS: sorted(json.dumps({**row, "seconds": {}}) for row in rows),
        TRAJECTORIES: sorted(trajectories),
    }


class Guided(FaultyEnv):
    """A plane with pictures, on which the way is straight ahead."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def _observe(self) -> Observation:
        import numpy as np

        return replace(super()._observe(), rgb=np.full((6, 8, 3), self.count, dtype=np.uint8))

    def shortest_path_action(self, target: Vec3, radius_m: float) -> Action:
        near = self.geodesic_distance(tuple(self.position), [target]) <= radius_m
        return Action.STOP if near else Action.MOVE_FORWARD


def _collect(given: Path, out: Path) -> list[str]:
    options = ["--benchmark=rxr-ce", "--set=rxr", "--split=val_unseen", "--allow-partial", f"--data-root={given}"]
    return ["collect", *options, "--env=tests.crash.points:Guided", f"--out={out / 'set'}"]


def _collection_left(out: Path) -> Found:
    found: dict[str, Any] = dict(files(out / "set"))
    entries = [json.loads(line) for line in found[JOURNAL].splitlines()]
    found[JOURNAL] = sorted(json.dumps({**entry, "seconds": None}) for entry in entries)
    return found


def _recorded_run(given: Path) -> None:
    record(write_dataset(given / "data"), RandomAgent(), given / "run")
    (given / "results").mkdir()
    shutil.copy(ROOT / "results" / "published.json", given / "results")


def _add(given: Path, out: Path) -> list[str]:
    if not (out / "results").exists():
        shutil.copytree(given / "results", out / "results")
    committed = out / "results" / "runs" / "houses-r2r-val-unseen-random" / MANIFEST
    if committed.exists():  # it is added: what is left to do is the leaderboard
        return ["leaderboard", f"--results={out / 'results'}"]
    return ["leaderboard", str(given / "run"), "--add", "--name=random", f"--results={out / 'results'}"]


def _houses(given: Path, out: Path) -> list[str]:
    sizes = {"train-houses": 1, "val-unseen-houses": 1, "train-episodes": 2, "val-seen-episodes": 1}
    options = [f"--{name}={value}" for name, value in {**sizes, "val-unseen-episodes": 1}.items()]
    return ["data", "houses", f"--data-root={out / 'data'}", *options]


PRELOADED = (
    "vlnbench.evaluation.session",
    "vlnbench.training.collect.collect",
    "vlnbench.leaderboard.pictures",
    "vlnbench.leaderboard.reproduction",
)

COMMANDS = {
    "eval": Command(_plain_data, _eval, "run", _run_left),
    "collect": Command(_plain_data, _collect, "set", _collection_left),
    "leaderboard": Command(_recorded_run, _add, "results", lambda out: files(out / "results")),
    "houses": Command(lambda given: None, _houses, "data", lambda out: files(out / "data")),
}


def enumerate_points() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=COMMANDS)
    parser.add_argument("--fault", choices=("kill", "full"), default="kill")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    options = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    command, bad, start = COMMANDS[options.name], 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        given, undisturbed, changes = prepared(command, Path(folder))
        tried = range(options.first, len(changes) + 1, options.every)
        for at in tried:
            try:
                found, change = crash(command, Path(folder), given, at, options.fault)
                differing = [n for n in {**undisturbed, **found} if undisturbed.get(n) != found.get(n)]
                problem = f"differs: {differing}" if differing else ""
            except (AssertionError, OSError, ValueError) as error:
                change, problem = "?", str(error)
            bad += bool(problem)
            print(f"{at:4d} of {len(changes)}: {change}{'  ' + problem if problem else ''}", flush=True)
    took = time.monotonic() - start
    print(f"{options.name} {options.fault}: {len(tried)} of {len(changes)} changes, {bad} bad, {took:.0f} s")
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(enumerate_points())
