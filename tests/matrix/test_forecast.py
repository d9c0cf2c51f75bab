from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.conftest import PLAN, Write
from vlnbench.matrix import forecast
from vlnbench.matrix.forecast import documents, estimate_times, format_detectable, format_times, setting_hours
from vlnbench.matrix.spec import Matrix, read_matrix
from vlnbench.matrix.work.stages import Stages, stages_of

COMMITTED = Path(__file__).parents[2] / "results" / "tunable_parts_x_envdrop"
WORK = Path("work")


def measured(windows_per_s: float = 2.0) -> dict[str, Any]:
    """Results of a matrix whose only setting trained 4 steps of 2 windows and was evaluated on 50 episodes."""
    options = {"checkpoint": "preset:streamvln-tiny", "tunable_parts": ["mm_mlp_adapter"], "batch": 2}
    options |= {"accumulation": 1, "frames": 32, "lora_rank": 0, "gradient_checkpointing": False}
    row = {
        "name": "a",
        "status": "done",
        "labels": {"part": "a"},
        "options": options,
        "evaluate": {"benchmark": "houses-r2r"},
        "steps": 4,
        "windows_per_s": windows_per_s,
        "seconds": {"train": 14.0, "val_seen": 100.0},
        "results": {"val_seen": {"episodes": 50, "metrics": {}, "scenes": {"SR": {}}}},
        "machine": {"cores": 2, "cpu": "Some CPU", "gpus": []},
        "train": {"world_size": 1},
    }
    return {"name": "before", "axes": {"part": ["a"]}, "splits": ["val_seen"], "rows": [row]}


def small(write: Write) -> Matrix:
    train = {
        "checkpoint": "preset:streamvln-tiny",
        "trajectories": "sets",
        "steps": 10,
        "batch": 2,
        "accumulation": 1,
    }
    axes = {"tunable_parts": [["mm_vision_tower"], ["mm_mlp_adapter"]], "seed": [0, 1]}
    return read_matrix(write(train=train, axes=axes, evaluate={"splits": ["val_seen"], "episodes": 25}))


def every(matrix: Matrix) -> list[Stages]:
    return [stages_of(matrix, WORK, setting) for setting in matrix.settings]


def test_times_are_those_of_like_commands(write: Write) -> None:
    """20 windows at 2 a second and the 10 seconds beside them; 25 episodes at 2 seconds."""
    matrix = small(write)
    plans = {setting.train_key: {**PLAN, "steps": 10} for setting in matrix.settings}
    times = estimate_times(matrix, every(matrix), plans, [measured()])
    assert sorted(set(times.seconds.values())) == [20.0, 50.0]
    assert setting_hours(every(matrix)[0], times) == pytest.approx(70 / 3600)
    assert times.sources == ("before on 2 cores of Some CPU",)
    shown = format_times(matrix.execution, every(matrix), times)
    assert "8 trainings and evaluations take about 0.08 hours" in shown


def test_of_what_was_never_measured_no_time_is_told(write: Write) -> None:
    matrix = small(write)
    plans = {setting.train_key: {**PLAN, "steps": None} for setting in matrix.settings}
    nothing = estimate_times(matrix, every(matrix), plans, [])
    assert "no time is estimated for 8 trainings and evaluations" in format_times(
        matrix.execution, every(matrix), nothing
    )
    assert setting_hours(every(matrix)[0], nothing) is None
    some = estimate_times(matrix, every(matrix), plans, [measured()])  # how many steps is not known
    assert "4 more are like nothing that was measured" in format_times(matrix.execution, every(matrix), some)


def test_whole_splits_take_as_long_as_they_did(write: Write) -> None:
    """How many episodes these have is not known before they are made."""
    axes = {"tunable_parts": [["mm_mlp_adapter"]]}
    matrix = read_matrix(write(axes=axes, evaluate={"splits": ["val_seen"]}))
    plans = {matrix.settings[0].train_key: PLAN}
    times = estimate_times(matrix, every(matrix), plans, [measured()])
    assert times.seconds[every(matrix)[0].evaluations["val_seen"].folder] == 100.0
    part = measured()
    part["rows"][0]["evaluate"]["episodes"] = 50
    assert None in estimate_times(matrix, every(matrix), plans, [part]).seconds.values()


def test_own_results_come_before_those_beside_them(tmp_path: Path) -> None:
    for name in ("b", "a", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "matrix.json").write_text(json.dumps({"name": name, "rows": []}))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "matrix.json").write_text("{}")
    assert [each["name"] for each in documents(tmp_path / "own")] == ["own", "a", "b"]


def test_the_dry_run_says_what_can_be_detected(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = small(write)
    monkeypatch.setattr(forecast, "_scenes", lambda matrix, split: [5] * 20)
    assumed = format_detectable(matrix, [])
    told = " ".join(assumed.split())
    assert "100 episodes in 20 scenes, 1 comparisons" in assumed
    assert "2.5 between seeds" in told
    assert "(assumed)" in told
    line = next(line for line in assumed.splitlines() if line.startswith("tunable_parts"))
    detects, corrected, *more = map(float, line.split()[-5:])
    assert corrected == detects
    assert all(each < detects for each in more)
    found = format_detectable(matrix, [json.loads((COMMITTED / "matrix.json").read_text())])
    assert "tunable_parts_x_envdrop, 29 settings" in found


def test_without_episodes_nothing_is_said_of_effects(write: Write) -> None:
    assert "val_seen: its episodes are not there yet" in format_detectable(small(write), [])
