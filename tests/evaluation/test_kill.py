"""Whole runs from the command line that are killed, interrupted, starved of disk or hang, and resumed."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import RandomAgent
from tests.fakes import PlaneEnv, make_episode, make_set
from tests.runs import write_dataset
from vlnbench.cli import main
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import RunError, UsageError
from vlnbench.evaluation import evaluate as evaluate_module
from vlnbench.evaluation.evaluate import evaluate, make_plan
from vlnbench.evaluation.records import (
    ATTEMPTS,
    MANIFEST,
    ROWS,
    SUMMARY,
    TRAJECTORIES,
    Row,
    Score,
    read_rows,
    read_trajectories,
)
from vlnbench.evaluation.tally import Tally
from vlnbench.rollout.inline import Inline
from vlnbench.util.durable import files

pytestmark = pytest.mark.slow  # runs in processes of their own

ROOT = Path(__file__).parents[2]

VLNBENCH = """
import signal, sys
from vlnbench.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without it
raise SystemExit(main(sys.argv[1:]))
"""
"""The command line, as from a terminal."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = [make_episode(i, scene="abcde"[i % 5], distance=2.0 + i % 7 / 4) for i in range(60)]
    episodes = [replace(episode, instruction_id=episode.episode_id) for episode in plain]
    return write_dataset(tmp_path_factory.mktemp("data"), "rxr-ce", episodes)


def start(data: Path, folder: Path, *arguments: str, faults: str = "", agent: str = "gt-replay") -> Any:
    options = ["--benchmark", "rxr-ce", "--allow-partial", "--data-root", str(data), "--out", str(folder)]
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            VLNBENCH,
            "eval",
            "--agent",
            agent,
            *options,
            "--envs",
            "2",
            "--env",
            "tests.faulty:plane",
            *arguments,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FAULTS": faults},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: Any) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=300)
    return process.returncode, stderr


def timeless(folder: Path) -> list[str]:
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    return sorted(json.dumps({**row, "seconds": {}}) for row in rows)


def wait_for(condition: Callable[[], bool], process: Any = None, limit_s: float = 300.0) -> None:
    """Wait until a condition holds, or the process has ended."""
    end = time.monotonic() + limit_s
    while not condition() and (process is None or process.poll() is None):
        assert time.monotonic() < end
        time.sleep(0.005)


def count(folder: Path) -> int:
    return (folder / ROWS).read_bytes().count(b"\n") if (folder / ROWS).exists() else 0


def has_rows(folder: Path, number: int) -> bool:
    return count(folder) >= number


def children(pid: int) -> list[int]:
    """The simulators of a run: forked from the process that its main process has started, or started by it."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [forked for child in found for forked in children(child) or [child]]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    code, stderr = finish(start(data, folder))
    assert code == 0, stderr
    assert count(folder) == 60
    return folder


@pytest.mark.parametrize(
    "kills",
    [5, pytest.param(30, marks=pytest.mark.slow), pytest.param(100, marks=[pytest.mark.slow, pytest.mark.long])],
)
def test_a_run_killed_again_and_again_loses_nothing(
    data: Path, undisturbed: Path, tmp_path: Path, kills: int
) -> None:
    """SIGKILL of all processes at once, at random moments: while they start, and while episodes end."""
    chance = random.Random(kills)
    folder = tmp_path / "run"
    for _ in range(kills):
        process = start(data, folder)
        before = count(folder)
        if chance.random() < 0.35 and before < 50:
            wait_for(partial(has_rows, folder, before + chance.randint(1, 3)), process)
            time.sleep(chance.uniform(0.0, 0.03))
        else:
            time.sleep(chance.uniform(0.0, 0.8))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert finish(start(data, folder))[0] == 0
    assert timeless(folder) == timeless(undisturbed)
    assert read_trajectories(folder) == read_trajectories(undisturbed)
    assert {path.name for path in folder.iterdir()} == {path.name for path in undisturbed.iterdir()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_cleanly_and_resumes(
    data: Path, undisturbed: Path, tmp_path: Path, number: signal.Signals
) -> None:
    for attempt in range(3):  # on a busy machine all 60 episodes may end before the signal is sent
        folder = tmp_path / f"run-{attempt}"
        process = start(data, folder)
        wait_for(partial(has_rows, folder, 5), process)
        workers = children(process.pid)
        os.killpg(process.pid, number)  # as a terminal or a job scheduler does: all processes get it
        code, stderr = finish(process)
        if code:
            break
    assert code == 130
    assert len(workers) == 2
    assert "interrupted; run the same command again to resume" in stderr
    assert "Traceback" not in stderr
    assert not any(map(alive, workers))
    assert 5 <= count(folder) < 60
    assert not any(row.failed for row in read_rows(folder))
    assert finish(start(data, folder))[0] == 0
    assert timeless(folder) == timeless(undisturbed)


def test_a_second_run_in_the_same_folder_is_refused_and_does_no_harm(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = start(data, folder)
    wait_for(partial(has_rows, folder, 1), first)
    first.send_signal(signal.SIGSTOP)  # however slow the second one is, the first one is still there
    code, stderr = finish(start(data, folder))
    first.send_signal(signal.SIGCONT)
    assert code == 2
    line = r": another process is writing there \(process \d+ on [\w.-]+\); wait for it or choose another --out\n$"
    assert re.search(re.escape(str(folder)) + line, stderr)
    assert finish(first)[0] == 0
    assert timeless(folder) == timeless(undisturbed)


def test_simulators_die_with_the_main_process_even_when_they_hang(data: Path, tmp_path: Path) -> None:
    process = start(data, tmp_path / "run", faults="3=hang,4=hang", agent="forward")
    wait_for(partial(has_rows, tmp_path / "run", 3), process)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(alive, workers)))


def test_faults_of_simulators_become_rows_and_are_shown(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    faults = "3=segfault,14=exit,25=raise,36=kill"
    code, stderr = finish(start(data, folder, faults=faults))
    assert code == 1  # more than 5 % of 60
    assert "vlnbench: stopped: 4 episodes failed, and --max-errors allows 3 of 60" in stderr
    assert "episode 3: error: the simulator process ended: killed by SIGSEGV" in stderr
    code, stderr = finish(start(data, folder, "--max-errors", "4", faults=faults))
    assert code == 0, stderr
    assert "4 errors" in stderr
    assert json.loads((folder / SUMMARY).read_text())["n_errors"] == 4
    assert finish(start(data, folder, "--retry-errors"))[0] == 0
    assert json.loads((folder / SUMMARY).read_text())["n_errors"] == 0
    ok = [line for line in timeless(folder) if '"status": "ok"' in line]
    assert ok == timeless(undisturbed)


HANGING = """
import time
from agents.scripted import StopAgent

class Hangs(StopAgent):
    def act(self, observations):
        if self.calls > 5:
            time.sleep(1000)
        self.calls += 1
        return super().act(observations)

    calls = 0
"""


def test_an_agent_that_hangs_is_ended_by_the_watchdog(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging_agent.py").write_text(HANGING)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    # on a busy machine the first episodes take seconds
    process = start(data, folder, "--episode-timeout", "20", agent="hanging_agent:Hangs")
    wait_for(partial(has_rows, folder, 5), process)
    assert process.poll() is None, process.communicate()[1]
    workers = children(process.pid)
    code, stderr = finish(process)
    assert code == 124
    assert "no progress for 20 s" in stderr
    assert "hanging_agent.py" in stderr
    assert not any(map(alive, workers))
    assert 5 <= count(folder) < 60
    assert not any(row.failed for row in read_rows(folder))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--envs", "0", "--envs 0: expected 1 to 1024"),
        ("--repeats", "1000000000", "--repeats 1000000000: expected 1 to 1000"),
        ("--agents", "1025", "--agents 1025: expected 1 to 1024"),
        ("--gpus", "0,,1", "--gpus 0,,1: expected names of different GPUs, separated by commas"),
        ("--gpus", "1,1", "--gpus 1,1: expected names of different GPUs, separated by commas"),
        ("--max-errors", "-1", "--max-errors -1.0: expected 0 or more"),
        ("--max-errors", "nan", "--max-errors nan: expected 0 or more"),
        ("--episode-timeout", "0", "--episode-timeout 0.0: expected a number above 0"),
        ("--max-batch", "0", "--max-batch 0: expected 1 or more"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: str,
    message: str,
) -> None:
    monkeypatch.setattr("vlnbench.cli.signal.signal", lambda *_: None)
    assert main(["eval", "--out", str(tmp_path / "run"), option, value]) == 2
    assert capsys.readouterr().err == f"vlnbench: error: {message}\n"
    assert not (tmp_path / "run").exists()


class FaultyDisk:
    """`os` with a disk that is full at one of its calls that change something; half of a write goes through."""

    def __init__(self, fails_at: int = -1) -> None:
        self.calls, self._fails_at = 0, fails_at

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in ("write", "fsync", "replace", "ftruncate", "open"):
            return function

        def faulty(*arguments: Any, **where: Any) -> Any:
            self.calls += 1
            if self.calls - 1 == self._fails_at:
                if name == "write":
                    os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*arguments, **where)

        return faulty


def test_a_full_disk_at_any_call_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate_module, "git_revision", lambda: None)
    plan = make_plan(get_benchmark("houses-r2r"), make_set("x", 2), "random", count=None, seed=0, repeats=1)

    def run(folder: Path, disk: FaultyDisk) -> None:
        monkeypatch.setattr(files, "os", disk)
        evaluate(plan, Inline(RandomAgent(), PlaneEnv()), folder)

    counting = FaultyDisk()
    run(tmp_path / "whole", counting)
    assert counting.calls > 15
    for fails_at in range(counting.calls):
        folder = tmp_path / f"{fails_at}"
        with pytest.raises((RunError, UsageError), match=r"No space left on device"):
            run(folder, FaultyDisk(fails_at))
        run(folder, FaultyDisk())
        assert timeless(folder) == timeless(tmp_path / "whole"), fails_at
        assert read_trajectories(folder) == read_trajectories(tmp_path / "whole")
        assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}


def test_what_a_kill_leaves_of_a_manifest_is_no_obstacle(tmp_path: Path) -> None:
    plan = make_plan(get_benchmark("houses-r2r"), make_set("x", 2), "random", count=None, seed=0, repeats=1)
    for name in (".manifest.json.123", ".summary.json.45"):  # the summary comes when there is a manifest
        (tmp_path / name).write_text('{"form')
        evaluate(plan, Inline(RandomAgent(), PlaneEnv()), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {ATTEMPTS, MANIFEST, ROWS, TRAJECTORIES, SUMMARY}


def test_a_folder_that_cannot_be_made_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    plan = make_plan(get_benchmark("houses-r2r"), make_set("x", 2), "random", count=None, seed=0, repeats=1)
    with pytest.raises(UsageError, match=r"run: cannot be written \(Not a directory\)"):
        evaluate(plan, Inline(RandomAgent(), PlaneEnv()), tmp_path / "file" / "run")


def test_progress_tells_success_errors_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("vlnbench.evaluation.tally.time.monotonic", lambda: now[0])
    kept = [row("ok", 1.0, "a"), row("error", scene="b")]
    tally = Tally(kept)
    now[0] += 36.0
    tally.add(row("ok", 0.0, "b"))
    assert tally.note(10) == "SR 33.3 % [0.1, 99.7], 1 error, 100 episodes/h, 0:06:00 left"
    assert tally.values()["seconds/agent"] == 3.0
    assert tally.values()["memory/host"] > 0
    tally.add(row("timeout", scene="a"))
    assert re.fullmatch(r"SR 25.0 % \[.*\], 2 errors, 200 episodes/h, 0:02:42 left", tally.note(9))
    long = Tally([row("timeout") for _ in range(99)])
    now[0] += 3600.0
    for _ in range(1300):
        long.add(row("ok", 1.0, "b"))
    assert re.search(r", 99 errors, 1300 episodes/h, 92:18:28 left$", long.note(120_000))
    assert len(f"99999/99999, {long.note(120_000)}") <= 80
    secret = Tally([])
    now[0] += 1.0
    secret.add(row("unscored"))
    assert secret.note(0).startswith("no scores, 3600 episodes/h")


def row(status: str, success: float | None = None, scene: str = "a") -> Row:
    scores: dict[str, Score] = {} if success is None else {"success": success, "spl": success, "steps": 7}
    seconds = {} if success is None else {"agent": 3.0, "env": 1.0}
    return Row("b", "f", "s", "1", 0, scene, "1", 0, status, None, scores, seconds)


def test_a_torn_line_longer_than_a_block_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / TRAJECTORIES
    for kept in (b"", b'{"a":1}\n{"b":2}\n'):
        for torn in (
            b"",
            b"x",
            b"x" * (files._BLOCK - 1),
            b"x" * files._BLOCK,
            b"x" * (3 * files._BLOCK + 5),
        ):
            path.write_bytes(kept + torn)
            with files.open_for_append(path) as file:
                files.append_line(file, {"c": 3})
            assert path.read_bytes() == kept + b'{"c":3}\n'
