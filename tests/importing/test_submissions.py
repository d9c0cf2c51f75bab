from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import RandomAgent, StopAgent
from tests.importing import foreign
from tests.importing.test_formats import imported
from tests.runs import record, with_instruction_ids, write_dataset
from vlnbench.cli import main
from vlnbench.evaluation.recorded import load_run
from vlnbench.interfaces import Agent

ENV = "tests.importing.foreign:Plane"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return foreign.data(tmp_path)


@pytest.mark.parametrize("agent", [RandomAgent, StopAgent])
def test_a_submission_is_scored_as_the_run_was(agent: type[Agent], root: Path, tmp_path: Path) -> None:
    record(root, agent(), tmp_path / "own", "r2r-ce")
    assert main(["export", "own", "--format=evalai-r2r", "--out=predictions.json", "--allow-partial"]) == 0
    done = imported(tmp_path / "predictions.json", root, split="val_unseen", env=ENV)
    own, theirs = load_run(tmp_path / "own"), load_run(done.folder)
    assert theirs.identity.imported == "evalai"
    assert own.rows.keys() == theirs.rows.keys()
    for key, row in own.rows.items():
        expected = {**row.scores, "collisions": None}
        found = theirs.rows[key].scores
        assert {k: v for k, v in found.items() if isinstance(v, float)} == pytest.approx(
            {k: v for k, v in expected.items() if isinstance(v, float)}
        )
        assert (found["failure"], found["steps"], found["collisions"]) == (
            row.scores["failure"],
            row.scores["steps"],
            None,
        )
        assert theirs.trajectories[key].actions == own.trajectories[key].actions
    assert "scored here with the distances of plane-1" in done.remarks


def test_paths_of_the_rxr_challenge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: episode 0's goal is 4 m ahead; a path that ends 1.5 m before it succeeds with SPL 1."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path, "rxr-ce", with_instruction_ids(range(100, 109)))
    paths = [
        {"instruction_id": 100, "path": [[0, 0, 0], [0, 0, -2.5]]},
        {"instruction_id": 101, "path": [[0, 0, 0]]},
    ]
    foreign.write(tmp_path / "val.jsonl", "".join(json.dumps(each) + "\n" for each in paths))
    done = imported(
        tmp_path / "val.jsonl", tmp_path, format="evalai", benchmark="rxr-ce", split="val_unseen", env=ENV
    )
    rows = {row.episode_id: row.scores for row in load_run(done.folder).rows.values()}
    names = ("success", "spl", "distance_to_goal", "path_length", "steps", "collisions", "failure")
    assert [rows["0"][name] for name in names] == [1.0, 1.0, 1.5, 2.5, None, None, "success"]
    assert [rows["1"][name] for name in names] == [0.0, 0.0, 4.5, 0.0, None, None, "stopped_early"]


def entry(z: float, stop: object = False, heading: float = 0.0) -> dict[str, Any]:
    return {"position": [0.0, 0.0, z], "heading": heading, "stop": stop}


STOPS: dict[str, tuple[list[dict[str, Any]], tuple[float, int, str]]] = {
    "at the goal": ([entry(0.0), entry(-2.0), entry(-2.0, True)], (1.0, 2, "success")),
    "in numbers": ([entry(0.0, 0), entry(-2.0, 0), entry(-2.0, 1)], (1.0, 2, "success")),
    "never": ([entry(0.0), entry(-2.0)], (0.0, 1, "passed_goal")),
    "at the start": ([entry(0.0), entry(0.0, True)], (0.0, 1, "stopped_early")),
    "at the start, one entry": ([entry(0.0, True)], (0.0, 1, "stopped_early")),
    "nothing at all": ([entry(0.0)], (0.0, 0, "never_stopped")),
}


@pytest.mark.parametrize("name", STOPS)
def test_where_an_agent_stopped(name: str, root: Path, tmp_path: Path) -> None:
    """By hand: episode 0's goal is 4 m ahead."""
    path, expected = STOPS[name]
    foreign.write(tmp_path / "predictions.json", json.dumps({"0": path}))
    done = imported(tmp_path / "predictions.json", root, split="val_unseen", env=ENV)
    (row,) = load_run(done.folder).rows.values()
    assert tuple(row.scores[field] for field in ("success", "steps", "failure")) == expected


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "elsewhere": (lambda: {"0": [entry(-1.0)]}, "begins 1.00 m from the start of episode 0; another --split"),
    "stop": (lambda: {"0": [entry(0.0), entry(0.0, True), entry(-0.25)]}, "goes on after 'stop'"),
    "stop first": (lambda: {"0": [entry(0.0, True), entry(-0.25)]}, "goes on after 'stop'"),
    "no stop": (
        lambda: {"0": [entry(0.0), {"position": [0, 0, 0], "heading": 0}]},
        "predictions.json: episode '0': entry 2: field 'stop': expected true, false, 1 or 0, found nothing",
    ),
    "stop in words": (lambda: {"0": [entry(0.0, "no")]}, "field 'stop': expected true, false, 1 or 0, found no"),
    "stop of 2": (lambda: {"0": [entry(0.0), entry(0.0, 2)]}, "field 'stop': expected true, false, 1 or 0"),
    "empty": (lambda: {"0": []}, "field 'path': expected 1 to 20000 poses"),
    "heading": (lambda: {"0": [{"position": [0, 0, 0]}]}, "expected entries with position, heading in radians"),
    "point": (lambda: {"0": [entry(float("nan"))]}, "expected positions of three finite numbers"),
    "id": (lambda: {"77": [entry(0.0)]}, "1 of 1 episodes, 77 first, are not in r2r-ce val_unseen"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_path_of_its_episode(
    name: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, expected = WRONG[name]
    foreign.write(tmp_path / "predictions.json", json.dumps(content()))
    arguments = ["import", "predictions.json", "--format=evalai", "--split=val_unseen", f"--data-root={root}"]
    assert main([*arguments, f"--env={ENV}"]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_paths_need_the_data_and_another_heading_is_named(root: Path, tmp_path: Path) -> None:
    foreign.write(
        tmp_path / "predictions.json", json.dumps({"0": [entry(0.0, heading=1.0), entry(0.0, True, 1.0)]})
    )
    arguments = ["import", "predictions.json", "--split=val_unseen"]
    assert main([*arguments, "--data-root=nowhere"]) == 2
    done = imported(tmp_path / "predictions.json", root, split="val_unseen", env=ENV)
    assert any("DIFFERS: 1 paths begin with another heading" in remark for remark in done.remarks)


def test_splits_without_goals_cannot_be_scored(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = [replace(episode, goals=(), ground_truth=None) for episode in foreign.EPISODES]
    write_dataset(tmp_path / "hidden", "houses-r2r", hidden)
    file = tmp_path / "hidden" / "datasets" / "houses_r2r" / "val_unseen" / "val_unseen_gt.json.gz"
    file.unlink()
    foreign.write(tmp_path / "predictions.json", json.dumps({"0": [entry(0.0)]}))
    arguments = ["predictions.json", "--benchmark=houses-r2r", "--split=val_unseen", "--data-root=hidden"]
    assert main(["import", *arguments, f"--env={ENV}"]) == 2
    said = capsys.readouterr().err
    assert "has no goals, so nothing can be scored" in said or "field 'goals'" in said
