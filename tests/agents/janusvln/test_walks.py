"""Training sets in both published layouts: what is read, and what the user may get wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agents.common.sets.steps import StepSet, read_steps
from agents.janusvln.agent import shown_steps
from tests.agents.janusvln.walks import write_episodes, write_frame, write_trajectories
from tests.agents.recorded import traces
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action


def read(folder: Path, **changes: Any) -> StepSet:
    return read_steps(folder, 8, **changes)


def records(found: StepSet) -> list[tuple[list[str], str]]:
    """Names of the frames and the answer of every sample."""
    made = []
    for number, _, step in found.keys:
        walk = found.walks[number]
        shown = [walk.frames[each] for each in shown_steps(step, 8)]
        made.append(([str(walk.folder / name) for name in shown], walk.actions[step].name))
    return made


def test_recorded_samples_are_made_in_their_order(goldens: Path) -> None:
    """Frame for frame, the order of names without leading zeros included."""
    root = goldens / "train_data"
    known = traces(goldens)["training"]["records"]
    found = [record for name in ("R2R", "ScaleVLN") for record in records(read(root / name))]
    assert found == [([str(root / file) for file in each["files"]], each["answer"]) for each in known]


NAMES = [f"step_{i}_{('MOVE_FORWARD', 'TURN_LEFT')[i % 2]}.png" for i in range(11)] + ["step_11_STOP.png"]


def test_episodes_with_a_folder_of_frames_each(tmp_path: Path) -> None:
    folder = write_episodes(tmp_path / "R2R", {7: NAMES, 3: ["step_0_TURN_RIGHT.png"], 5: ["step_0_STOP.png"]})
    (folder / "train/5/step_0_STOP.png").unlink()
    (folder / "train/5").rmdir()
    found = read(folder)
    first, second = found.walks
    assert (first.name, second.name) == ("7", "3")
    assert first.texts == ("Walk to the red chair and stop.",), "stripped"
    assert first.frames[:5] == tuple(NAMES[i] for i in (0, 10, 11, 1, 2)), "as text"
    assert first.actions[:3] == (Action.MOVE_FORWARD, Action.MOVE_FORWARD, Action.STOP)
    assert second.actions == (Action.TURN_RIGHT,)
    faults = {"episodes without frames": 1, "walks not in order (--chronological)": 1}
    assert found.counts == {"trajectories": 2, "instructions": 2, **faults}
    assert found.lengths()[:3] == [(1, 31), (2, 31), (3, 31)]
    assert found.lengths()[11] == (9, 31), "the current frame and eight of those before"
    ordered = read(folder, chronological=True)
    assert ordered.walks[0].frames == tuple(NAMES)
    assert ordered.counts == {"trajectories": 2, "instructions": 2, "episodes without frames": 1}


def test_the_episodes_of_the_published_frames_are_those_of_the_published_dataset(tmp_path: Path) -> None:
    """JanusVLN's download has frames alone: train.json is R2R-CE's own, below the same data root."""
    folder = write_episodes(tmp_path / "trajectory_data" / "R2R-CE-640x480", {1: NAMES[:2]}, frames="images")
    content = (folder / "train.json").read_bytes()
    (folder / "train.json").unlink()
    with pytest.raises(UsageError, match=r"train.json \(R2R-CE's own train.json.gz\) beside train/ or images/"):
        read(folder)
    published = tmp_path / "datasets" / "r2r" / "train" / "train.json.gz"
    published.parent.mkdir(parents=True)
    published.write_bytes(gzip.compress(content))
    found = read(folder)
    assert found.file == published
    assert len(found.keys) == 2
    folder.rename(folder.with_name("Mine"))
    with pytest.raises(UsageError, match="no training set"):
        read(folder.with_name("Mine"))


def test_gzipped_episodes_of_rxr_beside_images(tmp_path: Path) -> None:
    folder = write_episodes(tmp_path / "RxR", {1: NAMES[:2]}, frames="images")
    content = (folder / "train.json").read_bytes()
    (folder / "train.json").unlink()
    (folder / "train_guide.json.gz").write_bytes(gzip.compress(content))
    assert len(read(folder).keys) == 2


def test_trajectories_keep_blanks_and_their_first_instruction(tmp_path: Path) -> None:
    folder = write_trajectories(tmp_path / "ScaleVLN")
    found = read(folder)
    assert [len(walk.frames) for walk in found.walks] == [11, 3], "short ones, too"
    assert [walk.texts for walk in found.walks] == [("  Walk to the red chair and stop. ",)] * 2
    assert found.walks[1].actions == (Action.MOVE_FORWARD, Action.TURN_LEFT, Action.STOP)
    assert found.walks[1].before == (None, Action.MOVE_FORWARD, Action.TURN_LEFT)
    assert found.windows == 14
    every = read(folder, every_text=True)
    assert every.windows == 28
    assert list(every.texts())[1] == "Turn left 0 times."


def test_strays_are_no_samples_and_labels_of_experts_are_learned(tmp_path: Path) -> None:
    folder = write_trajectories(tmp_path / "DAgger", (4,))
    path = folder / "annotations.json"
    (record,) = json.loads(path.read_text())
    path.write_text(json.dumps([record | {"strays": [2], "labels": [3, 3, 1, 0]}]))
    found = read(folder)
    assert [step for _, _, step in found.keys] == [0, 2, 3]
    assert found.walks[0].actions == (Action.TURN_RIGHT, Action.TURN_RIGHT, Action.MOVE_FORWARD, Action.STOP)
    assert found.walks[0].before[1] == Action.MOVE_FORWARD, "what was done"


def spoil_name(folder: Path) -> None:
    write_frame(folder / "train/7/step_0_JUMP.png", 0)


def spoil_json(folder: Path) -> None:
    (folder / "train.json").write_text('{"episodes": [{"episode_id"')


def spoil_id(folder: Path) -> None:
    (folder / "train.json").write_text('{"episodes": [{"episode_id": "../7"}]}')


def spoil_text(folder: Path) -> None:
    (folder / "train.json").write_text('{"episodes": [{"episode_id": 7, "instruction": "go"}]}')


def spoil_frames(folder: Path) -> None:
    (folder / "train").rename(folder / "elsewhere")


def spoil_all(folder: Path) -> None:
    (folder / "train/7").rename(folder / "train/8")


def spoil_empty(folder: Path) -> None:
    (folder / "train/7/step_0_STOP.png").unlink()


def spoil_set(folder: Path) -> None:
    (folder / "train.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_name, "step_0_JUMP.png: expected a name step_K_ACTION with one of STOP, MOVE_FORWARD"),
        (spoil_json, "train.json: not a readable (gzipped) JSON file"),
        (spoil_id, "train.json: episode 0: episode_id: expected a number or a plain word"),
        (spoil_text, "train.json: episode 0: instruction: expected an object with instruction_text"),
        (spoil_frames, "train.json: no folder train or images beside it, which has the frames"),
        (spoil_all, "train: no frames for any of 1 episodes of train.json; extract the archives"),
        (spoil_empty, "7: no frames step_K_ACTION.png; extract the archives completely"),
        (spoil_set, "R2R: no training set; expected annotations.json, or train.json (R2R-CE's own train.json.gz)"),
    ],
)
def test_broken_sets_are_one_line(tmp_path: Path, spoil: Any, message: str) -> None:
    folder = write_episodes(tmp_path / "R2R", {7: ["step_0_STOP.png"]})
    spoil(folder)
    with pytest.raises(UsageError) as caught:
        read(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
