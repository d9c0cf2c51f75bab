"""NaVILA's own training sets as they are laid out: what is read, what is not learned from, trainings on them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from agents.common.decoders.placeholders import IGNORED
from agents.common.packing.samples import Sample
from agents.common.sight.decoding import frame_count
from agents.common.towers.siglip import network_input, resize
from agents.navila.agent import BLACK, Prompts
from agents.navila.options import NaVILAInputs
from agents.navila.samples import QuestionDataset, read_set, spread
from tests.agents.navila.test_definition import Letters, shown
from tests.runs import train
from tests.videos import frame, write_video
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action

FORWARD = "The next action is move forward 75 cm."
LEFT = "The next action is turn left 45 degrees."


def write(path: Path, records: list[Any], lines: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, records)) if lines else json.dumps(records))


def moves(folder: Path, frames: str, *, lines: bool = False, more: tuple[dict[str, Any], ...] = ()) -> None:
    """R2R, RxR or Human: frames, and a question for two of them."""
    (folder / frames / "7").mkdir(parents=True)
    names = [f"7/frame_{number}.jpg" for number in range(10)]
    for number, name in enumerate(names):
        Image.fromarray(frame(number)).save(folder / frames / name)
    asked = {"video_id": "7", "q": "Leave the ROOM .\nthen stop."}
    records = [asked | {"frames": names[:2], "a": FORWARD}, asked | {"frames": names, "a": LEFT}]
    write(folder / "annotations.json", [*records, *more], lines)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The five folders of the published sets, JSON and JSON lines."""
    root = tmp_path_factory.mktemp("navila") / "NaVILA-Dataset"
    moves(root / "R2R", "train")
    moves(root / "RxR", "train", lines=True)
    moves(root / "Human", "raw_frames")
    described = [{"video_id": str(number), "instruction": f"Walk to door {number}."} for number in (1, 2)]
    write(root / "EnvDrop" / "annotations.json", described, lines=True)
    turns = [{"from": "human", "value": "What?\n<image>"}, {"from": "gpt", "value": "a bed"}]
    scenes = [
        {"video_id": "scene0760_00", "q": "<video>\nHow many chairs?", "a": ["two", "2"]},
        {"video": "scene0001_00.mp4", "conversations": turns},
    ]
    write(root / "ScanQA" / "annotations" / "ScanQA_v1.0_train_reformat.json", scenes)
    for name, count in (("EnvDrop/videos/1", 20), ("EnvDrop/videos/2", 5)):
        write_video(root / f"{name}.mp4", count)
    for name, count in (("ScanQA/videos/scene0760_00", 20), ("ScanQA/videos/scene0001_00", 3)):
        write_video(root / f"{name}.mp4", count)
    return root


def sample(folder: Path, index: int, seed: int = 0, **more: Any) -> Sample:
    prompts = Prompts(Letters(begins=True), NaVILAInputs(), 8)  # type: ignore[arg-type]
    return QuestionDataset(read_set(folder, 8), prompts, 16, **more).sample(index, random.Random(seed))


def taught(found: Sample) -> str:
    return shown([id_ for id_ in found.labels if id_ != IGNORED])


def seen(numbers: list[int]) -> torch.Tensor:
    black = np.zeros((16, 16, 3), np.uint8)
    return network_input([black if number == BLACK else resize(frame(number), 16) for number in numbers])


@pytest.mark.parametrize("name", ["R2R", "RxR", "Human"])
def test_moves_are_taught_by_frames(published: Path, name: str) -> None:
    content = read_set(published / name, 8)
    assert content.counts == {"instructions": 1, "questions": 2}
    assert [content.expected(index) for index in range(2)] == [(Action.MOVE_FORWARD,) * 3, (Action.TURN_LEFT,) * 3]
    names = [path and path.name for path in content.asked(1).paths]
    assert names == [f"frame_{number}.jpg" for number in (0, 1, 2, 3, 5, 6, 7, 9)]
    assert content.asked(0).paths[:6] == (None,) * 6
    found = sample(published / name, 0)
    assert taught(found) == FORWARD + "\x02"
    assert '"Leave the room. Then stop."' in shown(found.input_ids)
    assert not content.left_out


def test_whole_videos_are_described(published: Path) -> None:
    """Of 20 frames eight, of five all of them behind black ones."""
    for index, numbers in enumerate(([0, 2, 5, 8, 10, 13, 16, 19], [BLACK] * 3 + [0, 1, 2, 3, 4])):
        found = sample(published / "EnvDrop", index)
        assert taught(found) == f"Walk to door {index + 1}.\x02"
        assert shown(found.input_ids).count("#") == 8
        assert isinstance(found.images, torch.Tensor)
        assert torch.equal(found.images, seen(numbers))
    content = read_set(published / "EnvDrop", 8)
    assert content.counts == {"instructions": 2, "videos": 2}
    assert content.expected(0) == ()


def test_questions_about_videos_show_their_frames_and_draw_an_answer(published: Path) -> None:
    found = sample(published / "ScanQA", 0)
    assert torch.equal(torch.as_tensor(found.images), seen(spread(20, 8)))
    assert "#\n" * 8 + "How many chairs?" in shown(found.input_ids)
    assert {taught(sample(published / "ScanQA", 0, seed)) for seed in range(8)} == {"two\x02", "2\x02"}
    short = sample(published / "ScanQA", 1)
    assert torch.equal(torch.as_tensor(short.images), seen([0, 1, 2])), "as many as there are"
    assert "#\n" * 3 + "What?" in shown(short.input_ids)
    assert "#" * 2 not in shown(short.input_ids)


def test_spread_frames_are_the_published_ones() -> None:
    assert spread(20, 8) == [0, 2, 5, 8, 10, 13, 16, 19]
    assert spread(8, 8) == list(range(8))
    assert spread(3, 8) == [0, 1, 2]


def test_known_features_of_videos_are_not_decoded(published: Path) -> None:
    keys: list[str] = []

    def known(key: str) -> torch.Tensor | None:
        keys.append(key)
        return torch.zeros(4, 8) if len(keys) % 2 else None

    found = sample(published / "EnvDrop", 1, known=known).images
    plain = sample(published / "EnvDrop", 1).images
    assert isinstance(found, list)
    assert [each.key for each in found[:3]] == [found[0].key] * 3
    assert len({each.key for each in found}) == 6
    for each, wanted in zip(found[3:], torch.as_tensor(plain)[3:], strict=True):
        assert (each.pixels is None) == (each.features is not None)
        assert each.pixels is None or torch.equal(each.pixels, wanted)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (7, "record 2: expected an object"),
        ({"video_id": "7", "frames": ["a.jpg"], "q": "Go."}, "record 2: field 'a': expected a text"),
        ({"video_id": "7", "frames": [], "q": "Go.", "a": FORWARD}, "record 2: field 'frames': expected a list"),
        ({"video_id": "7", "frames": [3], "q": "Go.", "a": FORWARD}, "record 2: field 'frames': expected a path"),
        ({"video_id": "../7", "instruction": "Go."}, "record 2: field 'video_id': expected a path below"),
        ({"video_id": 7, "instruction": "Go."}, "record 2: field 'video_id': expected a text"),
        ({"video_id": "7", "instruction": ""}, "record 2: field 'instruction': expected a text"),
        ({"video": "7.mp4", "conversations": [{}]}, "record 2: field 'conversations': expected turns"),
        ({"q": "Go.", "a": FORWARD}, "record 2: field 'frames': expected .* or a video"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, record: Any, message: str) -> None:
    moves(tmp_path / "R2R", "train", more=(record,))
    with pytest.raises(UsageError, match=message):
        read_set(tmp_path / "R2R", 8)


def test_broken_files_are_refused_in_a_line(published: Path, tmp_path: Path) -> None:
    (tmp_path / "annotations.json").write_text('{"video_id": "7", "frames"')
    with pytest.raises(UsageError, match=r"annotations\.json: not a readable"):
        read_set(tmp_path, 8)
    write(tmp_path / "annotations.json", [])
    with pytest.raises(UsageError, match="expected a list of samples or walks"):
        read_set(tmp_path, 8)
    (tmp_path / "annotations.json").unlink()
    with pytest.raises(
        UsageError, match=r"annotations\.json: not there; expected a set with annotations\.json or"
    ):
        read_set(tmp_path, 8)
    write(tmp_path / "annotations.json", [{"video_id": "1", "instruction": "Go."}])
    with pytest.raises(UsageError, match=r"1 records lack files and teach nothing, first .*1\.mp4; extract"):
        read_set(tmp_path, 8)
    (tmp_path / "1.mp4").write_bytes(b"no video")
    with pytest.raises(UsageError, match=r"1\.mp4: cannot be read as a video"):
        sample(tmp_path, 0)
    assert frame_count(published / "EnvDrop" / "videos" / "1.mp4") == 20


def test_odd_answers_and_missing_files_are_told(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"video_id": "7", "q": "Go.", "frames": ["7/frame_0.jpg"]}
    odd = (
        asked | {"a": "Jump over the sofa."},
        asked | {"a": ""},
        asked | {"a": FORWARD, "frames": ["8/lost.jpg"]},
    )
    moves(tmp_path / "R2R", "train", more=(odd[0], odd[2]))
    content = read_set(tmp_path / "R2R", 8)
    assert content.windows == 3
    assert content.counts["questions whose frames are missing, which teach nothing"] == 1
    assert taught(sample(tmp_path / "R2R", 2)) == ""
    assert not torch.any(torch.as_tensor(sample(tmp_path / "R2R", 2).images) != -1)
    assert len(content.left_out) == 2
    folders = [str(tmp_path / "R2R"), str(published / "RxR"), str(published / "ScanQA"), str(tmp_path / "Nowhere")]
    assert main(["data", "check", "--family", "navila", "--sets", ",".join(folders)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["ok  ", "FAIL", "FAIL", "ok  ", "ok  ", "FAIL"]
    assert "1 answers name no action and are left out, first record 2: expected one such as" in lines[1]
    assert "found 'Jump over the sofa.'" in lines[1]
    assert "first " + str(tmp_path / "R2R" / "train" / "8" / "lost.jpg") in lines[2]
    assert "2 videos; 2 windows" in lines[4]
    assert main(["data", "check", "--sets", folders[0]]) == 2
    assert "--sets: expected with --family" in capsys.readouterr().err


@pytest.mark.slow
def test_trainings_on_all_published_sets(published: Path, tmp_path: Path) -> None:
    sets = ["--trajectories", str(published), "--sets", "R2R,RxR,Human,EnvDrop,ScanQA"]
    how = [
        "--steps",
        "2",
        "--batch",
        "2",
        "--accumulation",
        "1",
        "--workers",
        "0",
        "--zero",
        "0",
        "--log-every",
        "1",
    ]
    command = ["--family", "navila", "--checkpoint", "preset:navila-tiny", *sets, *how]
    said = train(*command, "--out", str(tmp_path / "run"))
    assert [line.split()[0] for line in said.splitlines() if line.startswith(("EnvDrop", "ScanQA"))] == [
        "EnvDrop",
        "ScanQA",
    ]
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "train_log.jsonl").read_text().splitlines()]
    assert len(losses) == 2
    assert all(0 < loss < 20 for loss in losses)
    cached = [*command, "--tunable-parts", "language_model", "--feature-cache", str(tmp_path / "cache")]
    train(*cached, "--out", str(tmp_path / "frozen"))
    assert (tmp_path / "frozen" / "model" / "config.json").is_file()
