"""Run folders, file by file: what is written, what is read back and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.runs import make_identity
from vlnbench.errors import RunError, UsageError
from vlnbench.evaluation.answers.file import AnswersFile
from vlnbench.evaluation.records import (
    Row,
    RunFolder,
    check_same_run,
    decode_trajectory,
    encode_trajectory,
    read_attempts,
    read_manifest,
    read_rows,
    read_trajectories,
)
from vlnbench.interfaces import Action, Pose, Trajectory

ROW = Row("houses-r2r", "f", "val_unseen", "7", 1, "scene", "t", 5, "ok", None, {"success": 1.0}, {"env": 2.0})
KEY = ("houses-r2r", "val_unseen", "7", 1)
TURN = (0.0, 0.6, 0.0, 0.8)
WALK = Trajectory(
    (Pose((0.0, 1.0, 2.0), TURN), Pose((3.0, 4.0, 5.5), TURN)), (Action.TURN_LEFT,), (True,), (float("inf"), 2.5)
)
WRITTEN = {
    "positions": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.5]],
    "rotations": [[0.0, 0.6, 0.0, 0.8], [0.0, 0.6, 0.0, 0.8]],
    "actions": [2],
    "collided": [1],
    "goal_distances": [None, 2.5],
}
MANIFEST: dict[str, Any] = {"identity": asdict(make_identity()), "metrics_version": 1}


def text(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_row_has_a_key_and_may_have_failed() -> None:
    assert ROW.key == KEY
    states = {status: replace(ROW, status=status).failed for status in ("ok", "unscored", "error", "timeout")}
    assert states == {"ok": False, "unscored": False, "error": True, "timeout": True}
    bare = Row("b", "f", "s", "1", 0, "scene", "t", 0, "error")
    assert (bare.reason, bare.scores, bare.seconds, bare.report) == (None, {}, {}, {})


def test_what_a_finished_episode_leaves(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", MANIFEST) as folder:
        assert folder.path == tmp_path / "run"
        folder.append(ROW, WALK)
        folder.append(replace(ROW, repeat=2, status="error", reason="broke"), None, "a stack\nof lines")
        folder.write_summary({"n": 2})
        assert json.loads(text(tmp_path / "run/trajectories.jsonl")[0]) == {"key": list(KEY), **WRITTEN}
        assert [json.loads(line) for line in text(tmp_path / "run/episodes.jsonl")] == [
            asdict(ROW),
            {**asdict(ROW), "repeat": 2, "status": "error", "reason": "broke"},
        ]
    names = ["episodes.jsonl", "errors.log", "manifest.json", "summary.json", "trajectories.jsonl"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names
    assert (tmp_path / "run/errors.log").read_text() == "episode 7, repeat 2\na stack\nof lines\n"
    assert json.loads((tmp_path / "run/summary.json").read_text()) == {"n": 2}
    assert read_manifest(tmp_path / "run") == MANIFEST
    assert read_rows(tmp_path / "run") == [ROW, replace(ROW, repeat=2, status="error", reason="broke")]
    assert read_trajectories(tmp_path / "run") == {KEY: WALK}


def test_rows_are_added_and_the_last_one_counts(tmp_path: Path) -> None:
    for status in ("error", "ok"):
        with RunFolder(tmp_path, MANIFEST) as folder:
            folder.append(
                replace(ROW, status=status), WALK if status == "error" else replace(WALK, collided=(False,))
            )
    assert len(text(tmp_path / "episodes.jsonl")) == 2
    assert read_rows(tmp_path) == [ROW]
    assert read_trajectories(tmp_path)[KEY].collided == (False,)


def test_a_torn_line_of_either_file_is_cut_off(tmp_path: Path) -> None:
    with RunFolder(tmp_path, MANIFEST) as folder:
        folder.append(ROW, WALK)
    for name in ("episodes.jsonl", "trajectories.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"torn":')
    with RunFolder(tmp_path, MANIFEST) as folder:
        folder.append(replace(ROW, repeat=2), WALK)
    assert [row.repeat for row in read_rows(tmp_path)] == [1, 2]
    assert list(read_trajectories(tmp_path)) == [KEY, (*KEY[:3], 2)]


def test_attempts_say_when_where_and_with_how_many_rows(tmp_path: Path) -> None:
    with RunFolder(tmp_path, MANIFEST) as folder:
        folder.begin_attempt()
        folder.append(ROW, None)
        folder.append(replace(ROW, repeat=2), None)
        folder.begin_attempt()
    first, second = map(json.loads, text(tmp_path / "attempts.jsonl"))
    assert (first["rows"], second["rows"]) == (0, 2)
    assert (second["host"], second["pid"]) == (socket.gethostname(), os.getpid())
    began = datetime.fromisoformat(second["began"])
    assert began.utcoffset() == timedelta(0)
    assert timedelta(0) <= datetime.now(timezone.utc) - began < timedelta(minutes=5)
    assert len(second["began"]) == len("2026-01-01T00:00:00+00:00")


def test_an_empty_folder_goes_and_nothing_else(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", MANIFEST) as folder:
        folder.begin_attempt()
        folder.write_summary({})
        (tmp_path / "run/errors.log").touch()
        folder.discard_if_empty()
    assert not (tmp_path / "run").exists()
    with RunFolder(tmp_path / "mine", MANIFEST) as folder:
        (tmp_path / "mine/notes").touch()
        folder.discard_if_empty()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]
    for name in ("episodes.jsonl", "trajectories.jsonl"):
        with RunFolder(tmp_path / name, MANIFEST) as folder:
            (tmp_path / name / name).write_text("{}\n")
            folder.discard_if_empty()
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == [
            "episodes.jsonl",
            "manifest.json",
            "trajectories.jsonl",
        ]


def test_a_folder_is_locked_while_it_is_open(tmp_path: Path) -> None:
    with RunFolder(tmp_path, MANIFEST), pytest.raises(UsageError, match="another process is writing there"):
        RunFolder(tmp_path, MANIFEST).__enter__()
    with RunFolder(tmp_path, MANIFEST):
        pass
    open_files = len(os.listdir("/proc/self/fd"))
    with RunFolder(tmp_path, MANIFEST):
        assert len(os.listdir("/proc/self/fd")) == open_files + 3  # the lock, rows and trajectories
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_file_that_cannot_be_opened_leaves_no_lock(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    (tmp_path / "trajectories.jsonl").mkdir()
    for _ in range(2):
        with pytest.raises(UsageError, match=rf"^{tmp_path}: cannot be written \(Is a directory\)$"):
            RunFolder(tmp_path, MANIFEST).__enter__()


WRITES: dict[str, Callable[[RunFolder], None]] = {
    "attempts.jsonl": RunFolder.begin_attempt,
    "errors.log": lambda folder: folder.append(ROW, WALK, "a stack"),
    "summary.json": lambda folder: folder.write_summary({}),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_cannot_be_written_stops_the_run(tmp_path: Path, name: str) -> None:
    message = rf"^{tmp_path}: cannot be written \(Is a directory\); what is recorded is safe: run the same command"
    with RunFolder(tmp_path, MANIFEST) as folder:
        (tmp_path / name).mkdir()
        with pytest.raises(RunError, match=message):
            WRITES[name](folder)
    assert read_rows(tmp_path) == []


APPENDED = ("episodes.jsonl", "trajectories.jsonl", "attempts.jsonl", "errors.log", "answers.jsonl")


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", [*APPENDED, "summary.json"])
def test_nothing_is_written_through_a_link_in_a_folder_of_others(tmp_path: Path, name: str, there: bool) -> None:
    target, run = tmp_path / "target", tmp_path / "run"
    if there:
        target.write_text("# a line\nand half of one")
    run.mkdir()
    (run / "manifest.json").write_text(json.dumps(MANIFEST))
    (run / name).symlink_to(target)
    refused = pytest.raises(UsageError, match=rf"{name}: a link, through which nothing is written")
    checked = contextlib.nullcontext() if name == "summary.json" else refused
    with checked, RunFolder(run, MANIFEST) as folder, AnswersFile(run, True) as answers:
        folder.begin_attempt()
        folder.append(ROW, WALK, "a stack")
        answers.append(KEY, ())
        folder.write_summary({})
    assert (target.read_text() if target.exists() else None) == ("# a line\nand half of one" if there else None)


def test_the_row_comes_after_its_trajectory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row marks its episode as done, so nothing of it may still be missing."""
    with RunFolder(tmp_path, MANIFEST) as folder:
        bad = replace(WALK, goal_distances=(float("nan"), 1.0))  # cannot be written as JSON
        with pytest.raises(ValueError, match="not JSON compliant"):
            folder.append(ROW, bad)
    assert read_rows(tmp_path) == []


def test_lines_that_are_none_of_ours_are_named(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text(json.dumps(asdict(ROW)) + '\n{"a": 1}\n')
    with pytest.raises(UsageError, match=rf"^{tmp_path}/episodes.jsonl: line 2: field 'a': unknown field$"):
        read_rows(tmp_path)
    good = json.dumps({"key": list(KEY), **WRITTEN})
    for changes, reason in (
        ({"key": None}, "field 'key': expected benchmark, split, episode id and repeat"),
        ({"key": ["a", "b"]}, "field 'key': expected benchmark, split"),
        ({"key": ["a", "b", [], 0]}, "field 'key': expected benchmark, split"),
        ({"actions": [*WRITTEN["actions"][:-1], 9]}, r"not a trajectory \(9 is not a valid Action"),
        ({"actions": 1}, "not a trajectory"),
        ({"rotations": []}, r"not a trajectory \(field 'rotations': expected \d+ times 4 finite numbers"),
        ({"positions": [["0", 0, 0]] * len(WRITTEN["positions"])}, "not a trajectory .*'positions'"),
        ({"goal_distances": [1e999]}, "broken JSON"),
    ):
        line = json.dumps({"key": list(KEY), **WRITTEN, **changes})
        (tmp_path / "trajectories.jsonl").write_text(f"{good}\n{line}\n")
        message = rf"^{tmp_path}/trajectories.jsonl: line 2: {reason}"
        with pytest.raises(UsageError, match=message):
            read_trajectories(tmp_path)
    (tmp_path / "trajectories.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"line 1: field 'key': expected benchmark"):
        read_trajectories(tmp_path)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"episode_id": ["0"]}, "episode_id': expected text, found list"),
        ({"status": "great"}, "status': expected one of ok, error, timeout, unscored, found great"),
        ({"seed": 10**400}, "seed': expected a whole number of up to 18 digits, found a number of more than 18"),
        ({"repeat": True}, "repeat': expected a whole number from 0"),
        ({"reason": "\ud800"}, "reason': expected text or null"),
        ({"scores": [1]}, "scores': expected an object, found list"),
        ({"scores": {"success": "1"}}, "scores.success': expected a number from 0 to 1 or null, found '1'"),
        ({"scores": {"success": 2.0}}, "scores.success': expected a number from 0 to 1 or null, found 2.0"),
        ({"scores": {"failure": "bad luck"}}, "scores.failure': expected one of success"),
        ({"scores": {"own": []}}, "scores.own': expected text, a finite number, a boolean or null"),
        ({"seconds": {"env": "1"}}, "seconds.env': expected a number of seconds"),
        ({"benchmark": None}, "benchmark': expected text"),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_named(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    (tmp_path / "episodes.jsonl").write_text(json.dumps({**asdict(ROW), **changes}) + "\n")
    with pytest.raises(UsageError, match=rf"^{tmp_path}/episodes.jsonl: line 1: field '{field}"):
        read_rows(tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": NaN}', '{"a": Infinity}', f'{{"a": {"9" * 5000}}}'])
def test_what_json_does_not_allow_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "episodes.jsonl").write_text(content + "\n")
    with pytest.raises(UsageError, match=r"episodes.jsonl: line 1: broken JSON \(.{5,200}\)$"):
        read_rows(tmp_path)
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UsageError, match=r"manifest.json: broken JSON \(.{5,200}\)$"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"began": "2026-01-01T00:00:00"}, "began': expected a time with its zone"),
        ({"rows": -1}, "rows': expected a whole number from 0"),
        ({"hardware": "fast"}, "hardware': expected an object"),
        ({"hardware": {"cores": "2"}}, "hardware.cores': expected a whole number"),
    ],
)
def test_attempts_of_others_are_checked(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    attempt = {"began": "2026-01-01T00:00:00+00:00", "rows": 0, **changes}
    (tmp_path / "attempts.jsonl").write_text(json.dumps(attempt) + "\n")
    with pytest.raises(UsageError, match=rf"attempts.jsonl: line 1: field '{field}"):
        read_attempts(tmp_path)


def test_trajectories_are_written_and_read_as_they_are() -> None:
    encoded = encode_trajectory(WALK)
    assert json.loads(json.dumps(encoded, allow_nan=False)) == WRITTEN
    decoded = decode_trajectory(WRITTEN)
    assert decoded == WALK
    assert type(decoded.collided[0]) is bool
    assert type(decoded.actions[0]) is Action
    assert type(decode_trajectory({**WRITTEN, "goal_distances": [1, 2]}).goal_distances[0]) is float
    assert [type(value) for value in (encoded["actions"][0], encoded["collided"][0])] == [int, int]


def test_a_manifest_has_an_identity(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"^{tmp_path}: not a run folder \(manifest.json cannot be read\)$"):
        read_manifest(tmp_path)
    for content in ("{}", '{"identity": "of a run"}'):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(UsageError, match=rf"^{tmp_path}/manifest.json: field 'identity': expected an object$"):
            read_manifest(tmp_path)


def test_another_run_is_refused_and_the_same_one_is_not(tmp_path: Path) -> None:
    check_same_run(tmp_path, MANIFEST, MANIFEST)
    check_same_run(tmp_path, MANIFEST, {**MANIFEST, "created": "earlier"})
    other = {**MANIFEST, "identity": asdict(make_identity(seed=4))}
    with pytest.raises(UsageError, match=r"holds another run: seed 4 \(now 0\); choose another --out$"):
        check_same_run(tmp_path, MANIFEST, other)
    with pytest.raises(UsageError) as caught:
        check_same_run(tmp_path, MANIFEST, {**MANIFEST, "metrics_version": 0})
    assert str(caught.value) == (
        f"{tmp_path}: scored with metrics version 0, this is 1; run `vlnbench rescore {tmp_path} --write` first"
    )
    with pytest.raises(UsageError, match=rf"^{tmp_path}/manifest.json: field 'identity': expected an object"):
        check_same_run(tmp_path, MANIFEST, {})
    with pytest.raises(UsageError, match=r"^this run: field 'identity.seed': expected int"):
        check_same_run(tmp_path, {"identity": {**MANIFEST["identity"], "seed": "x"}}, MANIFEST)


def test_a_run_of_version_1_is_the_same_whatever_type_its_text_was(tmp_path: Path) -> None:
    """Version 1 wrote an agent's values as text: "7" reads back as the number 7, and is still this run."""
    ours = make_identity(agent_identity={"name": "7", "n": 3})
    found = {"identity": ours.as_version_1(), "metrics_version": 1}
    check_same_run(tmp_path, {**MANIFEST, "identity": asdict(ours)}, found)
    found["identity"] = {**ours.as_version_1(), "agent_n": "4"}
    with pytest.raises(UsageError, match=r"agent_identity.n 4 \(now 3\)"):
        check_same_run(tmp_path, {**MANIFEST, "identity": asdict(ours)}, found)


def test_a_folder_of_another_run_is_not_opened(tmp_path: Path) -> None:
    with RunFolder(tmp_path, MANIFEST):
        pass
    other = {**MANIFEST, "identity": asdict(make_identity(seed=4))}
    with pytest.raises(UsageError, match=r"holds another run: seed 0 \(now 4\)"):
        RunFolder(tmp_path, other).__enter__()
