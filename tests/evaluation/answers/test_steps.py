"""Steps of runs as data frames."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import vlnbench
from tests.evaluation.answers.test_file import KEEP, Speaker, run
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import Execution
from vlnbench.evaluation.records import read_trajectories
from vlnbench.interfaces import Action, Observation


class Mumbler(Speaker):
    """Asked at every third step, for three actions; at step 3 it has to be asked twice."""

    broken = True

    def act_one(self, observation: Observation) -> Action:
        action = super().act_one(observation)
        vars(self).pop("_said")
        if observation.step == 3:
            self.say("?", unparsable=True, note="no action")
        if observation.step % 3 == 0:
            self.say("go", actions=[action] * 3, prompt_tokens=7)
        return action


def test_every_step_stands_with_what_was_said(tmp_path: Path) -> None:
    run(tmp_path, KEEP, Mumbler())
    rows = vlnbench.load(tmp_path)
    steps = rows.steps
    assert steps.groupby("episode_id").size().sort_index().tolist() == [
        {7: 7, 0: 1}[0 if status == "error" else 7] for status in rows.sort_values("episode_id")["status"]
    ]
    assert rows["steps"].max() == 7, "the number of steps is a column as before"
    one = rows[rows["episode_id"] == "0"].steps
    (trajectory,) = [each for key, each in read_trajectories(tmp_path).items() if key[2] == "0"]
    assert one["action"].tolist() == [action.name for action in trajectory.actions]
    assert one["z"].tolist() == [pose.position[2] for pose in trajectory.poses[:-1]]
    assert one["distance_to_goal"].tolist() == list(trajectory.goal_distances[:-1])
    assert one["asked"].tolist() == [0, 0, 0, 3, 3, 3, 6]
    assert one["tries"].dropna().tolist() == [1, 2, 1]
    assert one["text"].dropna().tolist() == ["go"] * 3
    assert one.loc[3, "parsed"] == "MOVE_FORWARD MOVE_FORWARD MOVE_FORWARD"
    assert one.loc[4, "text"] is pd.NA
    broken = rows[rows["status"] == "error"].steps
    assert (broken["step"].tolist(), broken["action"].isna().all()) == ([0], True)


def test_without_answers_there_are_poses_and_actions(tmp_path: Path) -> None:
    run(tmp_path, Execution())
    steps = vlnbench.load(tmp_path).steps
    assert len(steps) == 9 * 7
    assert steps["text"].isna().all()


def test_a_table_that_says_no_more_whose_it_is_is_one_line(tmp_path: Path) -> None:
    run(tmp_path, Execution())
    rows = vlnbench.load(tmp_path)
    with pytest.raises(UsageError, match="the table lacks the column 'run'"):
        _ = rows[["success"]].steps
    assert rows[rows["success"] > 7].steps.empty


@pytest.mark.parametrize("keeps", [True, False])
def test_steps_are_the_same_from_a_parquet_file(tmp_path: Path, keeps: bool) -> None:
    """Texts, whole numbers with gaps and columns without a value among them."""
    pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    run(tmp_path / "run", KEEP if keeps else Execution(), Mumbler())
    steps = vlnbench.load(tmp_path / "run").steps
    steps.to_parquet(tmp_path / "steps.parquet")
    found = pd.read_parquet(tmp_path / "steps.parquet")
    assert found["text"].notna().any() == keeps
    pd.testing.assert_frame_equal(found, steps, check_exact=True)
