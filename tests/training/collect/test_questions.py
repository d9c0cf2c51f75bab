from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents.common.conversations import read_conversations
from agents.vlnce.training.albums import read_albums
from vlnbench.cli import main
from vlnbench.data.sets import CONVERSATIONS
from vlnbench.errors import UsageError
from vlnbench.training.collect.options import QuestionsOptions
from vlnbench.training.collect.questions import JOURNAL, make_questions

pytestmark = pytest.mark.slow  # looks at houses

VIEWS, WIDTH = 9, 64


def request(houses: Path, out: Path, **changes: Any) -> QuestionsOptions:
    asked = QuestionsOptions(out=out, data_root=houses, views=VIEWS, frame_width=WIDTH, seed=0, workers=1)
    return replace(asked, **changes)


@pytest.fixture(scope="module")
def made(houses: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trajectories") / "Questions"
    found = make_questions(request(houses, out, workers=2))
    assert (found.houses, found.views) == (2, VIEWS)
    assert found.questions > 3 * VIEWS
    return out


def contents(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file() and path.name != JOURNAL]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_the_trainer_reads_what_was_made_of_the_train_houses(made: Path) -> None:
    conversations = read_conversations(made)
    records = json.loads((made / CONVERSATIONS).read_text(encoding="utf-8"))
    assert len(conversations) == len({record["id"] for record in records}) == VIEWS
    assert all("train" in record["image"] for record in records)
    assert sorted(str(path.relative_to(made)) for path in made.rglob("*.jpg")) == sorted(
        record["image"] for record in records
    )
    for each in conversations:
        with Image.open(each.images[0]) as image:
            assert image.size == (WIDTH, 3 * WIDTH // 4)


def test_depth_lies_beside_the_images_and_changes_none(houses: Path, made: Path, tmp_path: Path) -> None:
    make_questions(request(houses, tmp_path / "Questions", depth=True))
    changed = {"questions.json", *(f"depth/{name}" for name in _names(made))}
    found = contents(tmp_path / "Questions")
    assert {name for name, content in found.items() if contents(made).get(name) != content} == changed
    album = read_albums(tmp_path / "Questions")
    with Image.open(album.views[0].files[1]) as image:
        millimeters = np.asarray(image)
    assert millimeters.shape == (3 * WIDTH // 4, WIDTH)
    assert 100 < np.median(millimeters) < 10000


def _names(made: Path) -> list[str]:
    images = made / "images"
    return [str(path.relative_to(images).with_suffix(".png")) for path in images.rglob("*.jpg")]


def test_an_interrupted_set_ends_like_an_undisturbed_one(houses: Path, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "Questions"
    shutil.copytree(made, out)
    (out / CONVERSATIONS).unlink()
    lines = (out / JOURNAL).read_text().splitlines(keepends=True)
    (out / JOURNAL).write_text(lines[0] + lines[1][:25])  # cut off in the middle of a line
    lost = json.loads(lines[1])["records"][1]["image"]
    (out / lost).write_bytes(b"half an image")
    make_questions(request(houses, out))
    assert contents(out) == contents(made)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jpg")}
    make_questions(request(houses, out))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.jpg")} == before
    (out / lost).unlink()
    with pytest.raises(UsageError, match=r"images, expected \d; delete .*questions.jsonl and make the set again"):
        make_questions(request(houses, out))


def test_a_killed_command_resumes(houses: Path, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "Questions"
    arguments = [
        "data",
        "questions",
        "--out",
        out,
        "--data-root",
        houses,
        "--frame-width",
        WIDTH,
        "--views",
        VIEWS,
    ]
    command = [sys.executable, "-c", "import sys; from vlnbench.cli import main; sys.exit(main(sys.argv[1:]))"]
    process = subprocess.Popen([*command, *map(str, arguments)], stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(out.rglob("*.jpg")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (out / CONVERSATIONS).exists()
    assert main(list(map(str, arguments))) == 0
    assert contents(out) == contents(made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": 0}, "--views 0: expected at least 1"),
        ({"workers": 0}, "--workers 0: expected at least 1"),
        ({"seed": -1}, "--seed -1: expected at least 0"),
        ({"frame_width": 101}, "--frame-width 101: expected 1 to 640"),
    ],
)
def test_bad_options_are_one_line_and_write_nothing(
    houses: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_questions(request(houses, tmp_path / "out", **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_is_refused(houses: Path, made: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds another set of questions: seed 0 \(now 1\)"):
        make_questions(request(houses, made, seed=1))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty and not the folder of a set of questions"):
        make_questions(request(houses, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
