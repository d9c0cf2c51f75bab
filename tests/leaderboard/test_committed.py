from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from agents.scripted import RandomAgent
from tests.fakes import make_episode
from tests.runs import record, write_dataset
from vlnbench.cli import main
from vlnbench.data.generate import ensure_data
from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.costs import hours
from vlnbench.evaluation.metrics import score
from vlnbench.evaluation.recorded import load_run
from vlnbench.evaluation.records import ATTEMPTS, MANIFEST, ROWS, TRAJECTORIES
from vlnbench.evaluation.rescore import rescore
from vlnbench.leaderboard import committed
from vlnbench.leaderboard.committed import DESCRIBED, Entry, add_run, committed_runs, trajectories_sha256

ROOT = Path(__file__).parents[2]
RUNS = sorted(path.parent for path in (ROOT / "results" / "runs").glob(f"*/{MANIFEST}"))
NEEDS_GROUND_TRUTH = {"ndtw", "sdtw", "cls", "failure"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data")


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    record(data, RandomAgent(), tmp_path / "run", repeats=2)
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(RUNS[0], id=RUNS[0].name),
        *(pytest.param(run, id=run.name, marks=pytest.mark.slow) for run in RUNS[1:]),
    ],
)
def test_rows_of_this_repository_are_those_of_their_trajectories(folder: Path) -> None:
    """Whatever needs no dataset: the rest is compared by `test_the_evidence_is_scored_again`."""
    run = load_run(folder)
    described = run.manifest[DESCRIBED]
    assert described["committed"]
    assert described["count"] == len(run.rows) == run.identity.planned
    assert described["sha256"] == trajectories_sha256(run)
    for key, row in run.rows.items():
        episode = make_episode(0)  # has a goal; distances to it are recorded
        again = asdict(score(run.trajectories[key], episode, run.benchmark.success_distance_m))
        for name in again.keys() - NEEDS_GROUND_TRUTH:
            assert row.scores[name] == pytest.approx(again[name], rel=1e-9, abs=1e-12, nan_ok=False), (key, name)


@pytest.mark.long
@pytest.mark.slow
def test_the_evidence_is_scored_again(tmp_path: Path) -> None:
    for folder in RUNS:
        run = load_run(folder)
        ensure_data(run.benchmark, tmp_path, run.identity.split)
        result = rescore(folder, tmp_path)
        assert (result.n_changed, result.changed) == (0, {}), folder
        assert result.summary.complete


def test_a_committed_run_is_scored_again(run: Path, data: Path, tmp_path: Path) -> None:
    target = add_run(run, tmp_path / "results", Entry(name="random"))
    before = contents(target)
    assert rescore(target, data, write=True).n_changed == 0
    assert contents(target) == before
    rows = [json.loads(line) for line in (run / ROWS).read_text().splitlines()]
    for row in rows:
        row["scores"]["steps"] = 501
    (run / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    spoilt = add_run(run, tmp_path / "results", Entry(name="spoilt"))
    assert rescore(spoilt, data).changed == {"steps": 18}
    assert main(["rescore", str(spoilt), "--data-root", str(data), "--write"]) == 0
    assert {**contents(spoilt), "entry.json": b""} == {**before, "entry.json": b""}


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    first, second = (contents(add_run(run, tmp_path / name, Entry(name="random"))) for name in "ab")
    assert first == second
    described = json.loads(first[MANIFEST])[DESCRIBED]
    assert described["made_by"].startswith(
        "vlnbench eval --agent=agent --benchmark=houses-r2r --split=val_unseen --seed=0 --repeats=2 and"
    )


def test_hours_are_committed_without_names_of_machines(run: Path, tmp_path: Path) -> None:
    [own] = map(load_run, [run])
    [(committed_run, _)] = committed_runs(add_run(run, tmp_path / "results", Entry(name="random")).parents[1])
    found = hours(table_of(own.rows.values()), own.attempts)
    assert found.device
    assert hours(table_of(committed_run.rows.values()), committed_run.attempts) == found
    assert committed_run.attempts == tuple(
        {name: value for name, value in each.items() if name not in ("host", "pid")} for each in own.attempts
    )


def test_where_a_checkpoint_lay_is_not_committed(run: Path, tmp_path: Path) -> None:
    lines = (run / ATTEMPTS).read_text().splitlines()
    said = [
        "checkpoint /home/me/my/model: 3 M parameters, 1 m/s",
        "frames: 1 MB",
        "from hf:ORG/NAME and runs/a/model",
    ]
    told = [json.dumps({**json.loads(line), "agent": said}) for line in lines]
    (run / ATTEMPTS).write_text("".join(f"{line}\n" for line in told))
    [(found, _)] = committed_runs(add_run(run, tmp_path / "results", Entry(name="random")).parents[1])
    assert [each["agent"] for each in found.attempts] == [
        ["checkpoint model: 3 M parameters, 1 m/s", *said[1:]]
    ] * len(lines)


def test_large_trajectories_are_left_out_with_their_hash(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(contents(add_run(run, tmp_path / "a", Entry(name="random")))[MANIFEST])[DESCRIBED]
    monkeypatch.setattr(committed, "MAX_TRAJECTORY_BYTES", 1000)
    target = add_run(run, tmp_path / "b", Entry(name="random"))
    assert f"{TRAJECTORIES}.gz" not in contents(target)
    assert json.loads(contents(target)[MANIFEST])[DESCRIBED] == {**whole, "committed": False}
    lines = (run / TRAJECTORIES).read_text().splitlines(keepends=True)
    (run / TRAJECTORIES).write_text("".join(reversed(lines)))
    [(again, _)] = committed_runs(tmp_path / "a")
    assert trajectories_sha256(again) == whole["sha256"]
    with pytest.raises(UsageError, match="the trajectory is missing"):
        rescore(target, data)


@pytest.mark.parametrize("nth", range(1, 5))
def test_what_a_killed_process_left_is_made_anew(run: Path, tmp_path: Path, nth: int) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from vlnbench.leaderboard.committed import Entry, add_run
real, count = os.replace, [0]
def replace(*paths, **where):
    count[0] += 1
    if count[0] == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(*paths, **where)
os.replace = replace
add_run(Path(sys.argv[1]), Path(sys.argv[2]), Entry(name="random"))
"""
    command = [sys.executable, "-c", script, str(run), str(tmp_path / "results"), str(nth)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, env=env).returncode == -signal.SIGKILL
    assert committed_runs(tmp_path / "results") == []
    target = add_run(run, tmp_path / "results", Entry(name="random"))
    assert contents(target) == contents(add_run(run, tmp_path / "whole", Entry(name="random")))
    with pytest.raises(UsageError, match="exists already"):
        add_run(run, tmp_path / "results", Entry(name="random"))


def test_a_folder_with_something_else_is_kept(run: Path, tmp_path: Path) -> None:
    target = add_run(run, tmp_path, Entry(name="random"))
    (target / MANIFEST).rename(target / "mine")
    before = contents(target)
    with pytest.raises(UsageError, match="exists already"):
        add_run(run, tmp_path, Entry(name="random"))
    assert contents(target) == before
