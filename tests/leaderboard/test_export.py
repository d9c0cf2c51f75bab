from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.base import EpisodeAgent
from agents.scripted import GroundTruthReplayAgent, RandomAgent, StopAgent
from tests.runs import record, with_instruction_ids, write_dataset
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.records import MANIFEST, ROWS, read_trajectories
from vlnbench.interfaces import Action, Episode, Observation, Pose, Trajectory
from vlnbench.leaderboard.export import Format, evalai_r2r, export


class LeftForwardTwice(EpisodeAgent):
    """TURN_LEFT, MOVE_FORWARD, TURN_RIGHT, MOVE_FORWARD, STOP."""

    def act_one(self, observation: Observation) -> Action:
        return [Action.TURN_LEFT, Action.MOVE_FORWARD, Action.TURN_RIGHT, Action.MOVE_FORWARD, Action.STOP][
            observation.step
        ]


LEFT = math.radians(15.0)
FIRST = [-0.25 * math.sin(LEFT), 0.0, -0.25 * math.cos(LEFT)]
SECOND = [FIRST[0], 0.0, FIRST[2] - 0.25]


def same_numbers(found: list, expected: list) -> bool:
    return np.shape(found) == np.shape(expected) and np.allclose(found, expected, rtol=0.0, atol=1e-12)


def test_r2r_entries_equal_the_hand_computed_ones(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data")
    record(data, LeftForwardTwice(), tmp_path / "run")
    assert export(tmp_path / "run", tmp_path / "out.json", "evalai-r2r", tmp_path / "no data needed") == 9
    submission = json.loads((tmp_path / "out.json").read_text())
    assert list(submission) == [str(i) for i in range(9)]
    for entries in submission.values():
        assert all(set(entry) == {"position", "heading", "stop"} for entry in entries)
        assert same_numbers(
            [entry["position"] for entry in entries], [[0, 0, 0], [0, 0, 0], FIRST, FIRST, SECOND, SECOND]
        )
        assert same_numbers([entry["heading"] for entry in entries], [0.0, LEFT, LEFT, 0.0, 0.0, 0.0])
        assert [entry["stop"] for entry in entries] == [False] * 5 + [True]


def test_an_agent_that_did_not_stop_has_no_stop_flag() -> None:
    still = Pose((1.0, 2.0, 3.0), (0.0, 0.0, 0.0, 1.0))
    path = Trajectory((still,) * 3, (Action.TURN_LEFT, Action.TURN_RIGHT), (False,) * 2)
    assert [entry["stop"] for entry in evalai_r2r({"10": path})["10"]] == [False] * 3
    assert list(evalai_r2r({"10": path, "9": path})) == ["9", "10"]


@given(st.floats(-math.pi, math.pi))
def test_heading_is_the_polar_angle_of_the_start_frame_seen_from_the_agent(yaw: float) -> None:
    """VLN-CE: rotate (0, 0, -1) by the inverse of the rotation, then atan2(x, -z)."""
    rotation = (0.0, math.sin(yaw / 2), 0.0, math.cos(yaw / 2))
    matrix = np.array([[math.cos(yaw), 0, math.sin(yaw)], [0, 1, 0], [-math.sin(yaw), 0, math.cos(yaw)]])
    x, _, z = matrix.T @ np.array([0.0, 0.0, -1.0])
    path = Trajectory((Pose((0.0, 0.0, 0.0), rotation),), (), ())
    (entry,) = evalai_r2r({"1": path})["1"]
    assert math.remainder(entry["heading"] - math.atan2(x, -z), 2 * math.pi) == pytest.approx(0.0, abs=1e-12)
    assert -math.pi <= entry["heading"] <= math.pi


def test_rxr_lines_equal_the_hand_computed_ones(tmp_path: Path) -> None:
    numbers = [40, 7, 100, 8, 9, 1000, 0, 41, 5]
    data = write_dataset(tmp_path / "data", "rxr-ce", with_instruction_ids(numbers))
    record(data, LeftForwardTwice(), tmp_path / "run", "rxr-ce")
    assert export(tmp_path / "run", tmp_path / "out.jsonl", "rxr", data) == 9
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["instruction_id"] for line in lines] == sorted(numbers)
    for line in lines:
        assert list(line) == ["instruction_id", "path"]
        assert same_numbers(line["path"], [[0, 0, 0], FIRST, SECOND])


def test_rxr_keeps_a_place_that_is_visited_again(tmp_path: Path) -> None:
    from vlnbench.leaderboard.export import rxr

    places = [(0.0, 0.0, 0.0), (0.0, 0.0, -1.0), (0.0, 0.0, -1.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)]
    path = Trajectory(
        tuple(Pose(place, (0.0, 0.0, 0.0, 1.0)) for place in places), (Action.STOP,) * 4, (False,) * 4
    )
    (episode,) = with_instruction_ids([3])
    expected = [{"instruction_id": 3, "path": [[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 0.0, 0.0]]}]
    assert rxr({"0": path}, {"0": episode}) == expected


def test_episodes_without_an_instruction_id_cannot_be_exported_as_rxr(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data")
    record(data, StopAgent(), tmp_path / "run")
    with pytest.raises(UsageError, match=r"field 'instruction.instruction_id': expected an integer, found None"):
        export(tmp_path / "run", tmp_path / "out", "rxr", data)
    assert not (tmp_path / "out").exists()


def test_two_episodes_of_one_instruction_are_refused(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", "rxr-ce", with_instruction_ids([1, 2, 3, 4, 5, 6, 7, 8, 1]))
    record(data, StopAgent(), tmp_path / "run", "rxr-ce")
    with pytest.raises(UsageError, match=r"episode 8: field 'instruction.instruction_id' 1 appears twice"):
        export(tmp_path / "run", tmp_path / "out", "rxr", data)


class BreaksOnFive(StopAgent):
    def begin(self, episode: Episode, seed: int) -> None:
        if episode.episode_id == "5":
            raise RuntimeError("the fifth is too much")


def cut_rows(run: Path) -> None:
    (run / ROWS).write_bytes(b"".join((run / ROWS).read_bytes().splitlines(keepends=True)[:4]))


def truncate_dataset(run: Path) -> None:
    """As if the run had been made on nine episodes of a benchmark with more."""
    manifest = json.loads((run / MANIFEST).read_text())
    manifest["identity"]["benchmark"] = "r2r-ce"
    (run / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("options", "agent", "change", "message", "count"),
    [
        ({"count": 4}, StopAgent, None, "it was planned over 4 of 9 episodes", 4),
        ({}, StopAgent, truncate_dataset, "it was planned over 9 of 1839 episodes", 9),
        ({}, StopAgent, cut_rows, "4 of 9 planned episodes are done", 4),
        ({}, BreaksOnFive, None, "1 of 9 episodes ended in an error and left no trajectory", 8),
    ],
)
def test_incomplete_runs_need_allow_partial(
    tmp_path: Path, options, agent, change, message: str, count: int
) -> None:
    data = write_dataset(tmp_path / "data")
    run, out = tmp_path / "run", tmp_path / "out.json"
    record(data, agent(), run, **options)
    if change is not None:
        change(run)
    with pytest.raises(UsageError, match=message):
        export(run, out, "evalai-r2r", data)
    assert not out.exists()
    assert export(run, out, "evalai-r2r", data, allow_partial=True) == count
    assert len(json.loads(out.read_text())) == count


def test_repeats_are_refused(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data")
    record(data, RandomAgent(), tmp_path / "run", repeats=2)
    with pytest.raises(UsageError, match="ran every episode 2 times, but a submission holds one path"):
        export(tmp_path / "run", tmp_path / "out", "evalai-r2r", data, allow_partial=True)


@pytest.mark.parametrize("kind", ["evalai-r2r", "rxr"])
def test_the_command_writes_once_and_overwrites_only_by_force(tmp_path: Path, kind: Format, capsys) -> None:
    data = write_dataset(tmp_path / "data", "rxr-ce", with_instruction_ids(range(9)))
    record(data, GroundTruthReplayAgent(), tmp_path / "run", "rxr-ce")
    out = tmp_path / "out"
    command = ["export", str(tmp_path / "run"), "--format", kind, "--out", str(out), "--data-root", str(data)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"9 episodes as {kind}: {out}" in shown
    assert ("VLN-CE/issues/74" in shown and "val_unseen" in shown) is (kind == "evalai-r2r")
    content = out.read_bytes()
    out.write_bytes(b"mine")
    assert main(command) == 2
    assert f"{out}: exists already" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
    assert main([*command, "--force"]) == 0
    assert out.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out", "run"]


@pytest.mark.parametrize(
    ("folder", "out", "message"), [("none", "x", "not a run folder"), ("run", "a/b", "no folder")]
)
def test_mistakes_are_named(tmp_path: Path, folder: str, out: str, message: str) -> None:
    record(write_dataset(tmp_path / "data"), StopAgent(), tmp_path / "run")
    with pytest.raises(UsageError, match=message):
        export(tmp_path / folder, tmp_path / out, "evalai-r2r", tmp_path / "data")


@pytest.mark.slow
def test_a_run_on_real_episodes_exports_every_pose(shared: Path, tmp_path: Path) -> None:
    def vlnbench(*arguments: str) -> None:
        command = [sys.executable, "-c", "from vlnbench.cli import main; raise SystemExit(main())", *arguments]
        result = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr

    options = ["--benchmark", "r2r-ce", "--split", "val_seen", "--data-root", str(shared / "data")]
    vlnbench("eval", *options, "--agent", "gt-replay", "--episodes", "5", "--out", "run")
    vlnbench("export", "run", "--format", "evalai-r2r", "--out", "out.json", "--allow-partial")
    submission = json.loads((tmp_path / "out.json").read_text())
    recorded = {key[2]: path for key, path in read_trajectories(tmp_path / "run").items()}
    assert submission.keys() == recorded.keys()
    assert len(submission) == 5
    for episode_id, entries in submission.items():
        assert [tuple(entry["position"]) for entry in entries] == [p.position for p in recorded[episode_id].poses]
        assert [entry["stop"] for entry in entries] == [False] * (len(entries) - 1) + [True]
