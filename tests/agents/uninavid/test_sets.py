"""Uni-NaVid's released set as it is laid out, and a training on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.uninavid.agent import question_text
from agents.uninavid.options import PUBLISHED_SET
from agents.uninavid.samples import read_set
from tests.runs import train
from tests.videos import write_video
from vlnbench.cli import main
from vlnbench.errors import UsageError

ASKED = question_text("Go to the door.")


def record(number: int, answer: str, question: str = ASKED) -> dict[str, Any]:
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"id": f"NAV_ID_VLN_1_{number}", "video": f"nav_videos/1_{number}.mp4", "conversations": turns}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nav-Finetune, with an answer that is no action and a video that is missing."""
    root = tmp_path_factory.mktemp("uninavid") / "Nav-Finetune"
    for number in range(5):
        write_video(root / "nav_videos" / f"1_{number}.mp4", 2 + number)
    records = [record(number, "forward left forward stop") for number in (0, 1, 2, 9)]
    records += [record(3, "forward jump left stop"), record(4, "A red room.", "<image>\nWhat is there?")]
    (root / PUBLISHED_SET).write_text(json.dumps(records))
    return root


def test_the_released_file_is_read_and_what_is_left_out_is_told(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = read_set(published, every=2)
    assert content.file == published / PUBLISHED_SET
    assert content.counts == {"records": 4}
    assert [each.turns[0][1] for each in content.records] == ["forward left forward stop"] * 3 + ["A red room."]
    assert main(["data", "check", "--family", "uninavid", "--sets", str(published)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["ok  ", "FAIL", "FAIL"]
    assert (
        "first record 4: expected one such as 'forward forward forward forward', found 'forward jump" in lines[1]
    )
    assert f"1 records lack files and are left out, first {published}/nav_videos/1_9.mp4" in lines[2]


def test_a_set_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nav_videos").mkdir()
    (tmp_path / PUBLISHED_SET).write_text(json.dumps([record(1, "jump")]))
    with pytest.raises(UsageError, match="1 answers name no action and are left out"):
        read_set(tmp_path, every=2)
    (tmp_path / PUBLISHED_SET).write_text("[]")
    with pytest.raises(UsageError, match="expected a list of records"):
        read_set(tmp_path, every=2)


@pytest.mark.slow
def test_a_training_on_the_released_set(published: Path, tmp_path: Path) -> None:
    sets = ["--trajectories", str(published.parent), "--sets", published.name]
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
    command = ["--family", "uninavid", "--checkpoint", "preset:uninavid-tiny", *sets, *how]
    said = train(*command, "--out", str(tmp_path / "run"))
    assert f"note: {published / PUBLISHED_SET}: 1 answers name no action and are left out" in said
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "train_log.jsonl").read_text().splitlines()]
    assert len(losses) == 2
    assert all(0 < loss < 20 for loss in losses)
