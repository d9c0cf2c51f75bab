"""`vlnbench status`: what a folder tells of a run that goes on elsewhere."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import RandomAgent
from tests.runs import record, write_dataset
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.records import ATTEMPTS, MANIFEST, ROWS, SUMMARY
from vlnbench.evaluation.status import format_status, read_status
from vlnbench.util.durable.locks import locked

BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of nine episodes of which four are done, begun with two, the last one 90 seconds after it went on."""
    folder = tmp_path / "run"
    record(write_dataset(tmp_path / "data"), RandomAgent(), folder)
    (folder / SUMMARY).unlink()
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()[:4]]
    rows[1] |= {"status": "timeout", "reason": "no progress for 2 s", "scores": {}}
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"torn')
    attempts = [{"began": "2026-02-01T00:00:00+00:00", "host": "a", "pid": 1, "rows": 0}]
    attempts += [{"began": BEGAN.isoformat(), "host": "b", "pid": 7, "rows": 2}]
    (folder / ATTEMPTS).write_text("".join(json.dumps(attempt) + "\n" for attempt in attempts))
    touch(folder / ROWS, 90)
    return folder


def touch(path: Path, seconds: float) -> None:
    time = (BEGAN + timedelta(seconds=seconds)).timestamp()
    os.utime(path, (time, time))


def test_a_run_that_is_interrupted(run: Path) -> None:
    status = read_status(run, BEGAN + timedelta(seconds=150))
    assert (status["planned"], status["done"], status["running"]) == (9, 4, False)
    assert (status["episodes_per_h"], status["seconds_left"]) == (80.0, 225.0)
    assert (status["last_row"], status["last_row_age_s"]) == ("2026-03-01T12:01:30+00:00", 60.0)
    assert [failure["status"] for failure in status["failures"]] == ["timeout"]
    assert status["metrics"]["SR"]["n"] == 4
    lines = format_status(status).splitlines()
    assert lines[0] == "houses-r2r val_unseen: agent in plane-1; not running"
    assert lines[1] == "4 of 9 episodes, 1 failed; last 2026-03-01T12:01:30+00:00, 0:01:00 ago"
    assert lines[2].startswith("SR 25.0 % (SE 14.4, [0.3, 98.2], n 4), SPL 25.0 % ")
    assert re.fullmatch(r"80 episodes/h(; (agent \d+ %)?(, )?(simulator \d+ %)?)?", lines[3])
    assert lines[4].endswith(": timeout: no progress for 2 s")


def test_a_run_that_goes_on(run: Path) -> None:
    with locked(run):
        status = read_status(run, BEGAN + timedelta(seconds=180))
    assert (status["running"], status["episodes_per_h"], status["seconds_left"]) == (True, 40.0, 450.0)
    lines = format_status(status).splitlines()
    assert lines[0].endswith("; running on b (process 7)")
    assert lines[3].startswith("40 episodes/h, 0:07:30 left")


def test_reading_changes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()}
    assert main(["status", str(run), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 4
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()} == before


def test_a_complete_run_and_one_without_rows(run: Path, tmp_path: Path) -> None:
    (run / ROWS).unlink()
    status = read_status(run)
    assert (status["done"], status["episodes_per_h"], status["last_row"]) == (0, None, None)
    assert "0 of 9 episodes, 0 failed; nothing recorded yet" in format_status(status)
    record(tmp_path / "data", RandomAgent(), run)
    status = read_status(run)
    assert format_status(status).splitlines()[0].endswith("; complete")
    assert status["attempt"]["pid"] == os.getpid()
    assert len((run / ATTEMPTS).read_text().splitlines()) == 3
    record(tmp_path / "data", RandomAgent(), run)
    assert len((run / ATTEMPTS).read_text().splitlines()) == 3


def training(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True)
    manifest: dict[str, Any] = {"schedule": {"steps": 100, "windows_per_step": 4}}
    (folder / "train.json").write_text(json.dumps(manifest))
    (folder / "train_log.jsonl").write_text(json.dumps({"step": step, "loss": 1.5, "windows_per_s": 2.0}) + "\n")
    touch(folder / "train_log.jsonl", 0)
    return folder


def test_trainings_and_matrices(run: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    status = read_status(training(work / "train" / "key" / "run", 40), BEGAN + timedelta(seconds=5))
    assert (status["done"], status["planned"], status["steps_per_h"], status["seconds_left"]) == (
        40,
        100,
        1800.0,
        120,
    )
    assert format_status(status).splitlines() == [
        "training: not running",
        "40 of 100 steps; last 2026-03-01T12:00:00+00:00, 0:00:05 ago",
        "1800 steps/h; loss 1.5000, 2.00 windows/s",
    ]
    (work / "matrix.json").write_text("{}")
    (work / "eval" / "key").mkdir(parents=True)
    run.rename(work / "eval" / "key" / "run")
    status = read_status(work)
    assert [(each["kind"], each["done"]) for each in status["runs"]] == [("training", 40), ("evaluation", 4)]
    assert "4/9" in format_status(status)


def test_a_training_says_where_its_time_goes_and_what_every_process_takes(tmp_path: Path) -> None:
    folder = training(tmp_path / "run", 40)
    entry = {
        "step": 40,
        "loss": 1.5,
        "windows_per_s": 2.0,
        "seconds": {"load": 0.5, "vision": 1.5, "backward": 2.0, "save": 0.0},
        "memory": [{"reserved": 46 * 10**9, "host": 5}, {"reserved": 78 * 10**9, "host": 9}],
        "memory_spread": {"spread": 32 * 10**9},
    }
    (folder / "train_log.jsonl").write_text(json.dumps(entry) + "\n")
    told = format_status(read_status(folder)).splitlines()[-1]
    assert told.endswith(
        "loss 1.5000, 2.00 windows/s; load 12 %, vision 38 %, backward 50 %; "
        "GPU memory reserved 46.00 (rank 0) to 78.00 GB (rank 1)"
    )
    (folder / "train_log.jsonl").write_text(json.dumps(entry | {"memory": [{"host": "much"}]}) + "\n")
    with pytest.raises(UsageError, match="field 'memory': expected a list of objects with numbers of bytes"):
        read_status(folder)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [(None, "expected the folder of an evaluation"), ("{", "broken JSON"), ("[]", "expected an object")],
)
def test_other_folders_are_refused(tmp_path: Path, manifest: str | None, message: str) -> None:
    if manifest is not None:
        (tmp_path / MANIFEST).write_text(manifest)
    with pytest.raises(UsageError, match=message):
        read_status(tmp_path)


def test_of_many_failed_episodes_the_first_are_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlnbench.evaluation.status.MOST_FAILURES", 2)
    rows = [json.loads(line) for line in (run / ROWS).read_text().splitlines()[:4]]
    broken = [{**row, "status": "error", "reason": f"broke {i}", "scores": {}} for i, row in enumerate(rows)]
    (run / ROWS).write_text("".join(json.dumps(row) + "\n" for row in broken))
    status = read_status(run)
    assert (status["n_failed"], [each["reason"] for each in status["failures"]]) == (4, ["broke 0", "broke 1"])
    assert format_status(status).endswith("error: broke 1\nand 2 more failed")
