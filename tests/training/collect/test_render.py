"""Walks published as actions alone, as StreamVLN's EnvDrop is: rendered, resumed, refused."""

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

import pytest

from agents.common.sets.trajectories import read_trajectories
from tests.training.collect.test_collect import WIDTH, request
from vlnbench.cli import main
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.training.collect.collect import collect
from vlnbench.training.collect.options import RenderOptions
from vlnbench.training.collect.render import PUBLISHED, render

pytestmark = pytest.mark.slow  # walks houses


@pytest.fixture(scope="module")
def collected(houses: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("collected") / "R2R"
    collect(request(houses, out))
    return out


@pytest.fixture
def published(collected: Path, tmp_path: Path) -> Path:
    """The same set without its frames."""
    folder = tmp_path / "trajectory_data" / "R2R"
    folder.mkdir(parents=True)
    shutil.copy(collected / TRAJECTORIES, folder)
    return folder


def options(folder: Path, houses: Path, **changes: Any) -> RenderOptions:
    asked = RenderOptions(folder, "houses-r2r", "train", houses, frame_width=WIDTH, sim="embedded")
    return replace(asked, **changes)


def frames(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.jpg"))}


def change(folder: Path, number: int, **changes: Any) -> None:
    records = json.loads((folder / TRAJECTORIES).read_text())
    records[number] |= changes
    (folder / TRAJECTORIES).write_text(json.dumps(records))


def test_a_set_of_actions_is_seen_as_it_was_walked(houses: Path, collected: Path, published: Path) -> None:
    before = (published / TRAJECTORIES).read_bytes()
    told = render(options(published, houses, dry_run=True))
    assert "walks with" in told
    assert "GB and" in told
    assert [path.name for path in published.iterdir()] == [TRAJECTORIES]
    told = render(options(published, houses, workers=2))
    assert frames(published) == frames(collected)
    assert (published / TRAJECTORIES).read_bytes() == before
    assert len(read_trajectories(published)) == len(json.loads(before))
    assert render(options(published, houses)) == told
    assert render(options(published, houses, dry_run=True)) == "nothing is left to render"


def test_a_killed_rendering_goes_on(houses: Path, collected: Path, published: Path) -> None:
    arguments = [
        "data",
        "render",
        published,
        "--benchmark",
        "houses-r2r",
        "--split",
        "train",
        "--data-root",
        houses,
    ]
    command = [sys.executable, "-m", "vlnbench", *map(str, arguments), "--frame-width", str(WIDTH)]
    for kills in (1, 2, 0):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while kills and process.poll() is None and len([*published.glob("images/[!.]*")]) < kills:
            time.sleep(0.02)
        if kills:
            os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == (-signal.SIGKILL if kills else 0)
    assert frames(published) == frames(collected)


def test_what_ends_elsewhere_is_left_out_and_the_published_list_is_kept(houses: Path, published: Path) -> None:
    before = (published / TRAJECTORIES).read_bytes()
    change(published, 1, actions=[-1, 2, 2])
    changed = (published / TRAJECTORIES).read_bytes()
    told = render(options(published, houses))
    assert "left out, ended 1 m or more from the goal: 1" in told
    assert (published / PUBLISHED).read_bytes() == changed
    assert len(read_trajectories(published, shortest=1)) == len(json.loads(before)) - 1
    assert render(options(published, houses)) == told


def test_walks_of_other_episodes_are_refused_soon(houses: Path, published: Path) -> None:
    records = json.loads((published / TRAJECTORIES).read_text())
    (published / TRAJECTORIES).write_text(json.dumps([{**record, "actions": [-1, 2]} for record in records]))
    with pytest.raises(
        UsageError, match=r"4 of the first 4 walks ended 1 m or more .* they are not of these episodes"
    ):
        render(options(published, houses))
    assert not (published / PUBLISHED).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": [-1, 7]}, "record 0: field 'actions': expected -1 and then actions from 1 to 3"),
        ({"actions": [1]}, "record 0: field 'actions': expected -1"),
        ({"actions": [-1] + [1] * 500}, "expected at most 498"),
        ({"video": "../x"}, "record 0: field 'video': expected a path below"),
        ({"video": "x_r2r_000001"}, "expected images/<scan>_<set>_<episode>"),
        ({"video": "images/elsewhere_r2r_000001"}, "is of no episode of"),
    ],
)
def test_records_that_cannot_be_replayed_are_one_line(
    houses: Path, published: Path, changes: dict[str, Any], message: str
) -> None:
    change(published, 0, **changes)
    with pytest.raises(UsageError) as caught:
        render(options(published, houses))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in published.iterdir()] == [TRAJECTORIES]


def test_whoever_would_collect_or_train_on_it_is_told_to_render(
    houses: Path, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", "--out", str(published), "--data-root", str(houses), "--sim", "embedded"]) == 2
    assert f"`vlnbench data render {published}`" in capsys.readouterr().err
    with pytest.raises(UsageError, match=f"`vlnbench data render {published}`"):
        read_trajectories(published)
    named = published.with_name("Mine")
    published.rename(named)
    assert main(["data", "render", str(named), "--data-root", str(houses)]) == 2
    assert "not the name of a published set; say with --benchmark and --split" in capsys.readouterr().err
