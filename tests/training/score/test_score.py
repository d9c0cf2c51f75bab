"""Scores on expert walks: means by hand, views of a set, and a network that is asked."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from PIL import Image

from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.training.family.trains import Answer
from vlnbench.training.score.options import ScoreOptions
from vlnbench.training.score.score import score, summarized
from vlnbench.training.score.views import scene_of, view_of

FORWARD, LEFT, STOP = Action.MOVE_FORWARD, Action.TURN_LEFT, Action.STOP


def walk_set(folder: Path, walks: dict[str, list[Action]], color: int = 40) -> Path:
    """A set of walks by name; frame k of walk i is a picture of color 40 * (i + 1), 10 * k."""
    records = []
    for number, (name, actions) in enumerate(walks.items()):
        frames = folder / "images" / name / "rgb"
        frames.mkdir(parents=True)
        for step in range(len(actions)):
            Image.new("RGB", (32, 24), (color * (number + 1), 10 * step, 0)).save(frames / f"{step:03d}.png")
        text = f"Go {name.replace('_', ' ')} and stop."
        records.append(
            {"video": f"images/{name}", "instructions": [text], "actions": [-1, *map(int, actions[:-1])]}
        )
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


WALKS = {
    "a_r2r_000001": [FORWARD, FORWARD, LEFT, FORWARD, STOP],
    "b_r2r_000002": [LEFT, LEFT, FORWARD, STOP],
    "b_r2r_000003": [FORWARD, FORWARD, FORWARD, FORWARD, FORWARD, FORWARD, STOP],
}


def test_means_by_hand() -> None:
    """Two scenes; of five actions three right, of three changes (first steps and LEFT) one, of one STOP none."""
    answers = [
        Answer("a_r2r_000001", 0, FORWARD, None, FORWARD, 0.5),
        Answer("a_r2r_000001", 1, FORWARD, FORWARD, FORWARD, 0.1),
        Answer("a_r2r_000001", 2, LEFT, FORWARD, FORWARD, 2.0),
        Answer("b_r2r_000002", 0, FORWARD, None, None, 1.0),
        Answer("b_r2r_000002", 1, FORWARD, FORWARD, FORWARD, 0.4),
    ]
    found = summarized(answers)
    assert found.loss is not None
    assert (found.actions, found.loss.mean, found.loss.clusters) == (5, pytest.approx(0.8), 2)
    assert found.accuracy is not None
    assert found.accuracy.mean == pytest.approx(0.6)
    assert found.changes is not None
    assert (found.changes.mean, found.changes.n) == (pytest.approx(1 / 3), 3)
    assert found.stop is None
    stopped = summarized([*answers, Answer("b_r2r_000002", 2, STOP, FORWARD, LEFT, 3.0)])
    assert stopped.stop is not None
    assert (stopped.stop.mean, stopped.stop.n) == (0.0, 1)
    assert summarized([]).loss is None


def test_a_scene_is_what_stands_before_the_set() -> None:
    assert scene_of("images/17DRP5sb8fy_r2r_000577") == "17DRP5sb8fy"
    assert scene_of("s0_val_unseen_003_r2r_000001") == "s0_val_unseen_003"


def pixel(path: Path) -> tuple[int, ...]:
    with Image.open(path) as image:
        found = image.convert("RGB").getpixel((0, 0))
    assert isinstance(found, tuple)
    return found


def test_views_have_the_same_walks_with_other_frames(tmp_path: Path) -> None:
    folder = walk_set(tmp_path / "set", WALKS)
    before = sorted(path for path in folder.rglob("*"))
    with view_of(folder, "own") as own:
        assert own == folder
    with view_of(folder, "gray") as gray:
        assert (gray / "annotations.json").read_text() == (folder / "annotations.json").read_text()
        frames = {name: sorted((gray / "images" / name / "rgb").iterdir()) for name in WALKS}
        assert {name: len(found) for name, found in frames.items()} == {
            "a_r2r_000001": 5,
            "b_r2r_000002": 4,
            "b_r2r_000003": 7,
        }
        assert {pixel(path) for found in frames.values() for path in found} == {(128, 128, 128)}
    assert not gray.exists()
    with view_of(folder, "other") as other:
        seen = {
            name: [pixel(path) for path in sorted((other / "images" / name / "rgb").iterdir())] for name in WALKS
        }
    assert [color for color, _, _ in seen["a_r2r_000001"]] == [80] * 5  # of scene b: its second walk is one away
    assert [color for color, _, _ in seen["b_r2r_000003"]] == [40] * 7  # of the only walk in scene a
    assert [step for _, step, _ in seen["b_r2r_000003"]] == [
        0,
        0,
        10,
        20,
        20,
        30,
        40,
    ]  # five frames stretched to seven
    assert sorted(path for path in folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not there; collect the walks"),
        ("{", "cannot be read as JSON"),
        ("[]", "expected a list of records"),
        ('[{"video": "../x"}]', "record 0: field 'video': expected a path below the folder"),
        ("[3]", "record 0: field 'video'"),
    ],
)
def test_what_is_no_set_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "annotations.json").write_text(content)
    with pytest.raises(UsageError) as error, view_of(tmp_path, "own"):
        pass
    assert message in str(error.value)


def test_one_scene_has_no_other(tmp_path: Path) -> None:
    folder = walk_set(tmp_path / "set", {"b_r2r_000002": WALKS["b_r2r_000002"]})
    with pytest.raises(UsageError, match="all of it lies in one scene"), view_of(folder, "other"):
        pass


def question_set(folder: Path) -> Path:
    """Four views of three houses, each with what lies left or right in it, and one more question."""
    records = []
    for number, house in enumerate("aabc"):
        path = folder / f"images/{house}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 24), (40 * number, 0, 0)).save(path)
        pairs = [
            ("<image>\nWhich room is this?", "kitchen"),
            ("How far?", "↑↑"),
            ("Face the lamp.", "←←" if number % 2 else "→"),
        ]
        turns = [
            {"from": who, "value": text}
            for pair in pairs
            for who, text in zip(("human", "gpt"), pair, strict=True)
        ]
        records.append({"id": number, "image": f"images/{house}/{number}.png", "conversations": turns})
    (folder / "conversations.json").write_text(json.dumps(records))
    return folder


def test_views_of_questions_show_other_images_by_the_same_names(tmp_path: Path) -> None:
    folder = question_set(tmp_path / "set")
    names = sorted(path.relative_to(folder) for path in folder.rglob("*.png"))
    for frames, colors in (("gray", [128] * 4), ("other", [80, 120, 0, 40])):
        with view_of(folder, frames) as view:
            assert (view / "conversations.json").read_text() == (folder / "conversations.json").read_text()
            assert [pixel(view / name)[0] for name in names] == colors
    (folder / names[0]).unlink()
    with pytest.raises(UsageError, match=r"0\.png: not there; make the set again"), view_of(folder, "gray"):
        pass


@pytest.mark.slow
def test_questions_are_scored_alone_by_their_first_action(tmp_path: Path) -> None:
    question_set(tmp_path / "set")
    found = score(ScoreOptions(checkpoint="streamvln-tiny", trajectories=tmp_path, sets=("set",), device="cpu"))
    for scores in found["sets"]["set"]["frames"].values():
        assert (scores["actions"], scores["loss"]["clusters"], scores["stop"]) == (4, 3, None)
        assert scores["accuracy"]["mean"] in (0, 0.25, 0.5, 0.75, 1)


@pytest.mark.slow
def test_questions_that_ask_for_no_way_are_not_scored(tmp_path: Path) -> None:
    path = question_set(tmp_path / "set") / "conversations.json"
    path.write_text(path.read_text(encoding="utf-8").replace("\\u2190\\u2190", "left").replace("\\u2192", ""))
    with pytest.raises(UsageError, match="none of its answers is a way to turn"):
        score(ScoreOptions(checkpoint="streamvln-tiny", trajectories=tmp_path, sets=("set",), device="cpu"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "--batch 0: expected 1 or more"),
        ({"sets": ()}, "--sets : expected at least one"),
        ({"frames": ("own", "own")}, "--frames own own: expected at least one, each once"),
        ({"frames": ("red",)}, "--frames red: expected own, gray, other"),
    ],
)
def test_options_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        ScoreOptions(**{"checkpoint": "streamvln-tiny", **changes}).check()  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.slow
def test_the_shipped_checkpoint_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walk_set(tmp_path / "val", WALKS)
    out = tmp_path / "made" / "score.json"
    command = ["score", "--checkpoint", "streamvln-tiny", "--trajectories", str(tmp_path), "--sets", "val"]
    assert main([*command, "--device", "cpu", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    document = json.loads(out.read_text())
    found = document["sets"]["val"]["frames"]
    assert list(found) == ["own", "gray", "other"]
    for frames, scores in found.items():
        assert scores["actions"] == 16
        assert math.isfinite(scores["loss"]["mean"])
        assert scores["changes"]["n"] == 4 + 3 + 2  # first steps, turns begun and ended, STOPs
        assert scores["stop"]["n"] == 3
        assert f"{frames} " in shown
    assert found["own"]["loss"]["mean"] != found["gray"]["loss"]["mean"]
    again = score(
        ScoreOptions(checkpoint="streamvln-tiny", trajectories=tmp_path, sets=("val",), batch=1, device="cpu")
    )
    alone = again["sets"]["val"]["frames"]["own"]["loss"]["mean"]
    assert alone == pytest.approx(found["own"]["loss"]["mean"], abs=1e-4)


def test_random_weights_are_not_scored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--checkpoint", "preset:streamvln-tiny"]) == 2
    assert "without trained weights; nothing to score" in capsys.readouterr().err


def test_questions_are_refused_before_weights_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "Views"
    folder.mkdir()
    (folder / "conversations.json").write_text('[{"image": "images/a/0000.jpg"}]')
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    config = {"architectures": ["Qwen2_5_VLForConditionalGenerationForJanusVLN"], "model_type": "qwen2_5_vl"}
    (checkpoint / "config.json").write_text(json.dumps(config))
    command = ["score", "--checkpoint", str(checkpoint), "--trajectories", str(tmp_path), "--sets", "Views"]
    assert main(command) == 2
    assert "conversations.json holds questions, which janusvln does not read" in capsys.readouterr().err
