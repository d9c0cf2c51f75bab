"""Data and runs of the command line that faults are tried on: a few episodes on a floor, agents that only walk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.envs.embedded.render.glb_writer import GlbWriter, quad
from tests.fakes import make_episode
from tests.runs import write_dataset
from vlnbench.evaluation.records import ROWS, SUMMARY, Row, RowKey, read_rows, read_trajectories
from vlnbench.interfaces import Trajectory

ROOT = Path(__file__).parents[2]
SCENES = Path("scene_datasets")
LIMIT_S = 300.0
EPISODES = 12

VLNBENCH = """
import signal, sys
from vlnbench.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without it
raise SystemExit(main(sys.argv[1:]))
"""
"""The command line, as from a terminal."""


def write_world(root: Path) -> Path:
    """Twelve episodes in two scenes, each a floor of 8 m by 8 m; returns the data root."""
    plain = [make_episode(i, scene="ab"[i % 2], distance=0.5 + i / 4) for i in range(EPISODES)]
    write_dataset(root, "rxr-ce", [replace(episode, instruction_id=episode.episode_id) for episode in plain])
    positions, indices, _ = quad(4.0, 4.0)
    for scene in "ab":
        folder = root / SCENES / scene
        folder.mkdir(parents=True)
        writer = GlbWriter()
        writer.mesh(positions, indices)
        writer.save(folder / f"{scene}.glb")
    return root


def arguments(root: Path, out: Path, *more: str, env: str = "tests.faulty:plane") -> list[str]:
    """Arguments of an evaluation: on a plane without a simulator, unless `env` is empty."""
    options = ["--benchmark=rxr-ce", "--allow-partial", f"--data-root={root}", f"--out={out}", "--envs=1"]
    chosen = () if any(each.startswith("--agent=") for each in more) else ("--agent=random",)
    return ["eval", *options, *([f"--env={env}"] if env else []), *chosen, *more]


def start(command: list[str], environment: Mapping[str, str | None] | None = None, **how: Any) -> Any:
    """The command line in a process group of its own. environment: changes, None removes a variable.

    how: of `Popen`, and `before`: a program that starts it.
    """
    changed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environment or {})}
    kept = {name: value for name, value in os.environ.items() if name not in changed}
    return subprocess.Popen(
        [*how.pop("before", ()), sys.executable, "-c", VLNBENCH, *command],
        env=kept | {name: value for name, value in changed.items() if value is not None},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True, **how},
    )


def finish(process: Any) -> tuple[int, str]:
    """Exit code and what was said on standard error, of which nothing may be a traceback."""
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"not done after {LIMIT_S:g} s") from None
    text = (said or b"").decode(errors="replace")
    assert "Traceback" not in text, text[-3000:]
    return process.returncode, text


def run(command: list[str], environment: Mapping[str, str | None] | None = None, **how: Any) -> tuple[int, str]:
    return finish(start(command, environment, **how))


def evaluated(*command: str, environment: Mapping[str, str | None] | None = None, **how: Any) -> str:
    """What an evaluation says that must end well."""
    code, said = run(list(command), environment, **how)
    assert code == 0, f"exit code {code}: {said[-3000:]}"
    return said


def refused(*command: str, environment: Mapping[str, str | None] | None = None, **how: Any) -> str:
    """The one line with which a command refuses a mistake."""
    code, said = run(list(command), environment, **how)
    (line,) = [line for line in said.splitlines() if line.startswith("vlnbench: ")]
    assert code == 2, f"exit code {code}: {said[-3000:]}"
    return line


def holds(text: str, *parts: str) -> None:
    """Compare what was said with what it must name."""
    missing = [part for part in parts if part not in text]
    assert not missing, f"without {missing}: {text[-3000:]}"


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / ROWS).read_text().splitlines() if (folder / ROWS).exists() else []
    return [json.loads(line) for line in lines]


def content(folder: Path) -> tuple[list[Row], dict[RowKey, Trajectory]]:
    """Rows without their times, and trajectories, of a complete run; where a row was written anew, the last."""
    assert (folder / SUMMARY).exists()
    found = sorted((replace(row, seconds={}) for row in read_rows(folder)), key=lambda row: row.key)
    return found, read_trajectories(folder)


@cache
def expected(env: str) -> tuple[list[Row], dict[RowKey, Trajectory]]:
    """What an undisturbed run leaves, wherever it lies."""
    with tempfile.TemporaryDirectory() as folder:
        root = write_world(Path(folder) / "data")
        evaluated(*arguments(root, Path(folder) / "run", env=env))
        return content(Path(folder) / "run")


def same(folder: Path, env: str = "tests.faulty:plane") -> None:
    """Compare a run with an undisturbed one."""
    assert content(folder) == expected(env), "rows or trajectories differ"


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not after {LIMIT_S:g} s"
        time.sleep(0.005)


def copied(root: Path, to: Path) -> Path:
    shutil.copytree(root, to)
    return to
