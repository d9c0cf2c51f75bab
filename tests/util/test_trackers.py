from __future__ import annotations

import importlib.util
import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runs import write_dataset
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.util import trackers
from vlnbench.util.trackers import TrackedRun, Trackers, numbers, parse_trackers

FAKES = "tests.fake_trackers:"


def told(folder: Path) -> list[list]:
    return [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]


def follow(folder: Path, *names: str, points: int = 5, finish_s: float = 120.0) -> None:
    """Send points and a summary."""
    run = TrackedRun("a run", folder, {"agent": "stop", "seed": 0})
    with Trackers([FAKES + name for name in names], run, finish_s) as following:
        for step in range(points):
            following.log({"SR": step / 10}, step)
        following.summarize({"SR": 0.5})
    assert not multiprocessing.active_children()


def test_a_tracker_gets_the_run_every_point_and_the_summary(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    follow(tmp_path, "Recording")
    assert told(tmp_path) == [
        ["run", "a run", {"agent": "stop", "seed": 0}],
        *(["log", step, {"SR": step / 10}] for step in range(5)),
        ["finish", None, {"SR": 0.5}],
    ]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("RaisesAtOnce", "RuntimeError: no network"),
        ("RaisesInLog", "KeyError: 'loss'"),
        ("RaisesInFinish", "OSError: disk full"),
        ("Exits", "SystemExit: 3"),
        ("Crashes", "its process ended with exit code 9"),
    ],
)
def test_a_tracker_that_breaks_costs_one_warning(
    name: str, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    follow(tmp_path, name, points=20)
    assert capfd.readouterr().err == f"warning: tracker {name} is dropped, the run goes on: {reason}\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Hangs", "HangsInFinish"])
def test_a_tracker_that_hangs_is_ended(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    follow(tmp_path, name, finish_s=4.0)
    assert (
        capfd.readouterr().err
        == f"warning: tracker {name} is dropped, the run goes on: it did not finish in time\n"
    )


@pytest.mark.slow
def test_a_hanging_tracker_with_a_full_queue_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "QUEUE_SIZE", 3)
    with Trackers([FAKES + "Hangs"], TrackedRun("a run", tmp_path, {}), finish_s=3.0) as following:
        following.log({"SR": 0.0}, 0)
        while not (tmp_path / "told.jsonl").exists():  # it is made when it takes its first point
            time.sleep(0.01)
        for step in range(1, 50):
            following.log({"SR": 0.0}, step)
    assert capfd.readouterr().err == (
        "warning: tracker Hangs is dropped, the run goes on: it did not take what was sent\n"
    )


def test_a_slow_tracker_holds_nothing_up_and_loses_points(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "QUEUE_SIZE", 10)
    follow(tmp_path, "Slow", points=60)
    steps = [step for kind, step, _ in told(tmp_path) if kind == "log"]
    assert steps == sorted(steps)
    assert told(tmp_path)[-1] == ["finish", None, {"SR": 0.5}]
    assert capfd.readouterr().err == f"tracker Slow: too slow, {60 - len(steps)} points left out\n"


def test_one_broken_tracker_leaves_the_others_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    follow(tmp_path, "Recording", "RaisesInLog")
    assert [kind for kind, _, _ in told(tmp_path) if kind != "run"] == ["log"] * 5 + ["finish"]
    assert capfd.readouterr().err.count("warning") == 1


def test_a_run_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    run = TrackedRun("a run", tmp_path, {})
    with pytest.raises(UsageError), Trackers([FAKES + "Recording"], run):
        raise UsageError("no such scene")
    assert list(tmp_path.iterdir()) == []


def test_names_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_trackers(()) == ()
    assert parse_trackers([f"{FAKES}Slow", f"{FAKES}Hangs"]) == (f"{FAKES}Slow", f"{FAKES}Hangs")
    with pytest.raises(UsageError, match="--tracker: unknown tracker 'wandbb': did you mean 'wandb'"):
        parse_trackers(["wandbb"])
    with pytest.raises(UsageError, match="has no 'Nothing'"):
        parse_trackers([f"{FAKES}Nothing"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--tracker wandb: the package wandb is not installed"):
        parse_trackers(["wandb"])


def test_numbers_are_found_by_their_path() -> None:
    entry = {"step": 3, "note": "x", "rates": {"tower": 1e-5}, "memory": [{"host": 7, "device": None}]}
    assert numbers(entry) == {"step": 3.0, "rates/tower": 1e-5, "memory/0/host": 7.0}


def test_a_missing_package_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    write_dataset(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    options = ["--data-root", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--tracker", "tensorboard"]
    assert main(["eval", *options]) == 2
    assert "run `pip install tensorboard`" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_the_real_tracker(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: what the package does to its environment stays there."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = f"""
from pathlib import Path
from vlnbench.util.trackers import TrackedRun, Trackers, parse_trackers
if __name__ == "__main__":
    run = TrackedRun("a run", Path({str(tmp_path)!r}), {{"seed": 0}})
    with Trackers(parse_trackers([{name!r}]), run, 200) as t:
        t.log({{"SR": 0.25}}, 1)
        t.log({{"SR": 0.5}}, 2)
        t.summarize({{"SR": 0.5}})
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "warning: tracker" not in result.stderr
    written = {
        "tensorboard": "tensorboard/events*",
        "wandb": "wandb/offline-run-*/*.wandb",
        "trackio": "trackio/*.db",
    }
    files = list(tmp_path.glob(written[name]))
    assert files
    assert sum(file.stat().st_size for file in files) > 100
