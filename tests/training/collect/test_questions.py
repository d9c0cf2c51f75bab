from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents.common.sets.conversations import read_conversations
from agents.common.sets.views import read_views
from envs.embedded.assets import SceneAssets
from envs.houses.edition import HOUSES, SCENES_DIR
from envs.houses.files.manifest import read_config
from envs.houses.files.questions import HFOV_DEG, house_views
from envs.houses.files.semantics import CATEGORIES, Semantics
from envs.houses.generator import GENERATOR
from envs.houses.plan.house import make_house
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
    assert (found.scenes, found.views) == (2, VIEWS)
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
    view = read_views(tmp_path / "Questions")
    with Image.open(view.views[0].files[1]) as image:
        millimeters = np.asarray(image)
    assert millimeters.shape == (3 * WIDTH // 4, WIDTH)
    assert 100 < np.median(millimeters) < 10000


def test_semantic_images_show_what_the_questions_name(houses: Path, made: Path, tmp_path: Path) -> None:
    """What to face lies where the answer turns, and the room is the one that is asked for."""
    make_questions(request(houses, tmp_path / "Questions", semantic=True))
    assert not (tmp_path / "Questions/depth").exists()
    objects, colors, rooms = json.loads((tmp_path / "Questions/categories.json").read_text()).values()
    asked: Counter[bool | str] = Counter()
    focal = WIDTH / 2 / np.tan(np.radians(HFOV_DEG / 2))
    for conversation in read_conversations(tmp_path / "Questions"):
        path = tmp_path / "Questions/semantic" / conversation.images[0].relative_to(tmp_path / "Questions/images")
        with Image.open(path.with_suffix(".png")) as image:
            seen = np.asarray(image)
        assert seen.shape == (3 * WIDTH // 4, WIDTH, 3)
        answers = {question.removeprefix("<image>\n"): answer for question, answer in conversation.turns}
        below = seen[-1, :, 2][seen[-1, :, 0] == 0]
        assert not len(below) or any(rooms[number - 1] in answers["Which room is this?"] for number in below)
        for question, answer in answers.items():
            found = re.fullmatch(r"Face the (?:(\S+) )?(.+)\.", question)
            if found and found[1] in {None, *colors} and found[2] in objects:
                shown = seen[..., 0] == objects.index(found[2]) + 1
                if found[1] is not None:
                    shown &= seen[..., 1] == colors.index(found[1]) + 1
                bearings = np.degrees(np.arctan((WIDTH / 2 - 0.5 - shown.nonzero()[1]) / focal))
                assert len(bearings) > 0, question
                asked[found[1] is None] += 1
                if shown.mean() >= 0.01:  # what lies there is told by pixels
                    turned = 15 * (answer.count("←") - answer.count("→"))
                    assert abs(bearings.mean() - turned) < 9, question
        asked["room"] += sum(question == f"Face the {room}." for question in answers for room in rooms)
    assert min(asked[kind] for kind in (True, False)) > 5
    assert asked["room"] > 0
    next((tmp_path / "Questions/semantic").rglob("*.png")).unlink()
    with pytest.raises(UsageError, match=r"semantic/.*images and \d records, expected \d; delete"):
        make_questions(request(houses, tmp_path / "Questions", semantic=True))


def test_semantic_images_of_objects_above_one_another(houses: Path) -> None:
    """Every pixel has a room, but where nothing is hit; floor below a table is floor."""
    name, config = GENERATOR.view_source(houses).scenes()[0], read_config(houses, HOUSES)
    scene, looked = house_views(houses, config, name, 0, 20)
    semantics, renderer = Semantics(make_house(name, config)), SceneAssets(houses / SCENES_DIR / scene).renderer
    for view in looked:
        x, y, z = view.position
        depth = renderer.render_from((48, 64), 79.0, (x, y + 1.25, z), view.rotation).depth
        assert depth is not None
        found = semantics.image(semantics.shown(view, depth, 10.0))
        assert not semantics.image(semantics.shown(view, depth, 1.0))[depth >= 1.0].any()
        assert (found[..., 2] > 0).mean() > 0.95
        assert ((found[..., 0] > 0) == (found[..., 1] > 0)).all()
        down = (np.arange(48)[:, None] + 0.5 - 24) * np.tan(np.radians(39.5)) / 32
        floor = np.isclose(y + 1.25 - depth * down, 0, atol=0.01)
        names = np.unique(found[..., 0][floor])
        assert set(names) <= {0, 1 + CATEGORIES["object"].index("rug")}


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
    with pytest.raises(
        UsageError, match=r"images and \d records, expected \d; delete .*questions.jsonl and make the set again"
    ):
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
        ({"views": 0}, "--views 0: expected 1 or more"),
        ({"workers": 0}, "--workers 0: expected 1 to 1024"),
        ({"seed": -1}, "--seed -1: expected 0 or more"),
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
