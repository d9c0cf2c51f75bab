"""Recordings of Rerun, opened by its own library: frames, depth, poses, path, map and what was said, by step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.base import EpisodeAgent
from tests.fakes import PlaneEnv
from tests.runs import nine_episodes, write_dataset
from vlnbench.cli import main
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.evaluation.evaluate import Execution, evaluate, make_plan
from vlnbench.evaluation.records import read_trajectories
from vlnbench.interfaces import Action, Observation, Pose
from vlnbench.report import build, recording
from vlnbench.rollout.executor import Limits
from vlnbench.rollout.inline import Inline


class Speaker(EpisodeAgent):
    """Walks and turns, says so, and in episode 4 something that cannot be read."""

    def act_one(self, observation: Observation) -> Action:
        step = observation.step
        if step == 2 and "6.0 meters" in observation.instruction:
            self.say("\x1b[31m<b>go?</b>", unparsable=True, note="no action")
        else:
            self.say(f"step {step}: ↑", prompt_tokens=100 + step, images=2, log_probability=-0.5)
        return (Action.MOVE_FORWARD, Action.TURN_LEFT)[step % 2] if step < 5 else Action.STOP


class SeeingEnv(PlaneEnv):
    """Frames that say at which step they were seen."""

    shift = 0.0

    def _observe(self) -> Observation:
        seen = super()._observe()
        assert seen.pose is not None
        x, y, z = seen.pose.position
        frame = np.full((6, 8, 3), 40 * self.count, np.uint8)
        depth = np.full((6, 8), 0.5 + self.count, np.float32)
        pose = Pose((x + self.shift, y, z), seen.pose.rotation)
        return Observation(seen.instruction, seen.step, frame, depth, pose)

    def render(self, pose: Pose) -> NDArray[np.uint8]:
        return np.full((6, 8, 3), 200, np.uint8)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on nine episodes below a data root beside it."""
    monkeypatch.setattr(recording, "make_env", lambda *_: SeeingEnv())
    monkeypatch.setattr(build, "make_env", lambda *_: SeeingEnv())
    protocol = get_benchmark("houses-r2r")
    root = write_dataset(tmp_path / "data", episodes=nine_episodes())
    split = load_split(protocol, "val_unseen", root, allow_partial=True)
    plan = make_plan(protocol, split, "speaker", count=None, seed=0, repeats=1)
    keep = Execution(Limits(answers=True))
    evaluate(plan, Inline(Speaker(), PlaneEnv()), tmp_path / "run", execution=keep)
    return tmp_path / "run"


def export(run: Path, out: Path, *more: str) -> int:
    return main(
        [
            "export",
            str(run),
            "--format",
            "rerun",
            "--out",
            str(out),
            "--data-root",
            str(run.parent / "data"),
            *more,
        ]
    )


@pytest.mark.slow
@pytest.mark.needs("rerun")
def test_a_recording_is_opened_by_the_library(run: Path, tmp_path: Path) -> None:
    import rerun.dataframe

    assert export(run, tmp_path / "one.rrd", "--episode-ids", "4") == 0
    found = rerun.dataframe.load_recording(tmp_path / "one.rrd")
    columns = {str(column.entity_path) for column in found.schema().component_columns()}
    world = [f"world/{name}" for name in ("map", "reference", "goals", "start", "agent", "path")]
    figures = ["prompt_tokens", "log_probability", "distance_to_goal", "seconds", "images"]
    texts = ["actions", "episode", "model/answer", "model/log", "world/agent/rgb", "world/agent/depth"]
    assert {f"/{name}" for name in (*world, *texts, *(f"figures/{name}" for name in figures))} <= columns
    (trajectory,) = [each for key, each in read_trajectories(run).items() if key[2] == "4"]

    def values(entity: str, component: str) -> dict[int, Any]:
        view = found.view(index="step", contents=entity)
        table = view.select().read_all().to_pydict()
        (name,) = [name for name in table if name.split(":")[-1] == component and entity in name]
        pairs = zip(table["step"], table[name], strict=True)
        return {step: value for step, value in pairs if value is not None and step >= 0}

    moved = values("/world/agent", "Translation3D")
    assert len(moved) == len(trajectory.poses) == 7
    for step, pose in enumerate(trajectory.poses):
        np.testing.assert_allclose(np.array(moved[step]).ravel(), pose.position, atol=1e-6)
    said = values("/model/log", "Text")
    assert said[2] == ["\x1b[31m<b>go?</b>"]
    assert said[3] == ["step 3: ↑"]
    answers = values("/model/answer", "Text")
    assert answers[2][0].endswith("read as: unparsable\nno action")
    assert answers[5][0].endswith("read as: STOP")
    assert values("/actions", "Text")[5] == ["STOP"]
    assert values("/figures/prompt_tokens", "Scalar")[3] == [103.0]
    depths = values("/world/agent/depth", "ImageBuffer")
    millimeters = np.frombuffer(np.array(depths[3][0], np.uint8).tobytes(), np.uint16)
    assert set(millimeters.tolist()) == {3500}
    assert len(values("/world/agent/rgb", "Blob")) == 7
    path = np.array(values("/world/path", "LineStrip3D")[6][0])
    np.testing.assert_allclose(path, trajectory.positions, atol=1e-6)


@pytest.mark.slow
@pytest.mark.needs("rerun")
def test_of_several_the_unparsable_come_first(run: Path, tmp_path: Path) -> None:
    assert export(run, tmp_path / "some", "--episodes", "2") == 0
    names = {path.name for path in (tmp_path / "some").iterdir()}
    assert len(names) == 2
    assert "4-0.rrd" in names


@pytest.mark.needs("rerun")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--episode-ids", "77"), "--episode-ids 77: no trajectory of such an episode is recorded in this run"),
        (("--episodes", "2"), "one.rrd: holds one episode, and 2 are asked for: name a folder instead"),
        (("--episodes", "10"), "--episodes 10: expected 1 to 9"),
    ],
)
def test_what_cannot_be_is_one_line(
    run: Path, tmp_path: Path, more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(run, tmp_path / "one.rrd", *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "one.rrd").exists()


@pytest.mark.needs("rerun")
def test_another_simulator_is_noticed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SeeingEnv, "shift", 0.5)
    assert export(run, tmp_path / "one.rrd") == 2
    assert "at step 1 plane-1 is elsewhere than the run was" in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if ".rrd" in path.name]


def test_without_the_library_it_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    assert export(run, tmp_path / "one.rrd") == 2
    assert "pip install 'vlnbench[rerun]'" in capsys.readouterr().err
