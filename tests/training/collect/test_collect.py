from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents.common.sets.trajectories import read_trajectories
from envs.habitat_env import HabitatEnv
from tests.runs import nine_episodes, write_dataset
from vlnbench.cli import main
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.data.sets import TRAJECTORIES
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Episode
from vlnbench.training.collect.collect import JOURNAL, MANIFEST, collect
from vlnbench.training.collect.options import CollectOptions
from vlnbench.training.collect.walk import (
    MAX_ACTIONS,
    WAYPOINT_RADIUS_M,
    ReferenceRoute,
    WalkTask,
    in_turn,
    shared_paths,
    walk,
)

pytestmark = pytest.mark.slow  # walks houses

WIDTH = 64


def request(houses: Path, out: Path, **changes: Any) -> CollectOptions:
    asked = CollectOptions(
        benchmark="houses-r2r",
        split=None,
        set="r2r",
        out=out,
        data_root=houses,
        workers=1,
        frame_width=WIDTH,
        tours=None,
        sim="embedded",
        gpu=None,
        allow_partial=False,
    )
    return replace(asked, **changes)


@pytest.fixture(scope="module")
def collected(houses: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trajectories") / "R2R"
    result = collect(request(houses, out, workers=2))
    assert result.instructions == 12
    assert not result.left_out
    return out


def contents(root: Path) -> dict[str, bytes]:
    """Contents of all files but the journal and what a kill leaves of a file that was being written."""
    files = [path for path in root.rglob("*") if path.is_file() and path.name != JOURNAL and path.name[0] != "."]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_records_are_in_streamvlns_layout(collected: Path) -> None:
    records = json.loads((collected / TRAJECTORIES).read_text())
    assert len({record["video"] for record in records}) == len(records)
    for record in records:
        assert set(record) == {"id", "video", "instructions", "actions"}
        assert record["actions"][0] == -1
        assert set(record["actions"][1:]) <= {1, 2, 3}
        frames = sorted((collected / record["video"] / "rgb").iterdir())
        assert [frame.name for frame in frames] == [f"{i:03d}.jpg" for i in range(len(record["actions"]))]
        scan, _, number = record["video"].removeprefix("images/").rpartition("_r2r_")
        assert scan.startswith("s0_train_")
        assert number == f"{record['id']:06d}"
        with Image.open(frames[0]) as frame:
            assert frame.size == (WIDTH, WIDTH * 3 // 4)


def test_frames_are_what_the_actions_show_and_the_path_is_followed(houses: Path, collected: Path) -> None:
    env, known = train_split(houses, WIDTH)
    episodes = {int(episode.episode_id): episode for episode in known}
    for record in json.loads((collected / TRAJECTORIES).read_text())[::2]:
        episode = episodes[record["id"]]
        observation = env.reset(episode)
        positions = []
        for i, action in enumerate(record["actions"]):
            if i:
                observation = env.step(Action(action))
            assert observation.rgb is not None
            assert observation.pose is not None
            positions.append(observation.pose.position)
            buffer = io.BytesIO()
            Image.fromarray(observation.rgb).save(buffer, "JPEG")
            assert (collected / record["video"] / "rgb" / f"{i:03d}.jpg").read_bytes() == buffer.getvalue()
        for waypoint in episode.reference_path:
            assert np.linalg.norm(np.array(positions) - waypoint, axis=1).min() < WAYPOINT_RADIUS_M + 0.05
        assert env.geodesic_distance(positions[-1], episode.goals) < 0.3
    env.close()


def test_an_interrupted_collection_ends_like_an_undisturbed_one(
    houses: Path, collected: Path, tmp_path: Path
) -> None:
    out = tmp_path / "R2R"
    shutil.copytree(collected, out)
    lines = (out / JOURNAL).read_text().splitlines(keepends=True)
    (out / JOURNAL).write_text("".join(lines[:2]) + lines[2][:25])  # cut off in the middle of a line
    (out / TRAJECTORIES).unlink()
    killed = json.loads(lines[3])["record"]["video"]
    (out / killed).rename(out / "images" / f".{Path(killed).name}.part")
    (out / f".{TRAJECTORIES}.12").write_text("[")  # killed while writing
    collect(request(houses, out))
    assert contents(out) == contents(collected)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jpg")}
    collect(request(houses, out))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.jpg")} == before


def test_a_kill_before_the_manifest_is_in_place_does_not_stop_the_same_command(
    houses: Path, collected: Path, tmp_path: Path
) -> None:
    (tmp_path / f".{MANIFEST}.12").write_text("{")
    collect(request(houses, tmp_path))
    assert contents(tmp_path) == contents(collected)


def test_a_killed_collection_resumes(houses: Path, collected: Path, tmp_path: Path) -> None:
    out = tmp_path / "R2R"
    arguments = ["collect", "--out", out, "--data-root", houses, "--workers", "2", "--frame-width", WIDTH]
    command = [sys.executable, "-c", "import sys; from vlnbench.cli import main; sys.exit(main(sys.argv[1:]))"]
    for _ in range(20):
        process = subprocess.Popen([*command, *map(str, arguments)], stderr=subprocess.DEVNULL)
        before = journal_lines(out)
        while process.poll() is None and journal_lines(out) <= before:
            time.sleep(0.02)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        if process.wait() == 0:
            break
    assert contents(out) == contents(collected)


def train_split(houses: Path, width: int) -> tuple[HabitatEnv, Sequence[Episode]]:
    """An environment that sees `width` pixels, and the episodes of train."""
    benchmark = get_benchmark("houses-r2r")
    episode_set = load_split(benchmark, "train", houses)
    camera = replace(benchmark.body.camera, width=width, height=width * 3 // 4)
    body = replace(benchmark.body, camera=camera)
    return HabitatEnv(body, episode_set.scenes_dir, frozenset({"rgb"}), "embedded"), episode_set.episodes


def journal_lines(out: Path) -> int:
    return (out / JOURNAL).read_bytes().count(b"\n") if (out / JOURNAL).exists() else 0


def test_a_walk_that_does_not_reach_its_goal_is_left_out_with_the_reason(houses: Path, tmp_path: Path) -> None:
    env, episodes = train_split(houses, width=8)
    episode = episodes[0]
    start_only = replace(episode, reference_path=(episode.start_position,))
    (shared,) = shared_paths([start_only], "r2r")
    walked = walk(env, WalkTask(shared, tmp_path, ReferenceRoute(3.0)), ReferenceRoute(3.0)).product
    assert walked.record is None
    assert walked.reason == "ended 3 m or more from the goal"
    endless = replace(episode, reference_path=(*episode.reference_path, episode.start_position) * 8)
    (shared,) = shared_paths([endless], "r2r")
    walked = walk(env, WalkTask(shared, tmp_path, ReferenceRoute(3.0)), ReferenceRoute(3.0)).product
    assert walked.reason == f"more than {MAX_ACTIONS} actions"


def test_a_part_of_the_tours_is_of_all_scenes_though_the_file_goes_scene_by_scene(
    houses: Path, tmp_path: Path
) -> None:
    env, episodes = train_split(houses, width=8)
    env.close()
    by_scene = sorted(shared_paths(episodes, "r2r"), key=lambda shared: shared.episodes[0].scene_id)
    scenes = [shared.episodes[0].scene_id for shared in by_scene]
    assert scenes[0] == scenes[1] != scenes[-1]
    turned = in_turn(by_scene)
    assert sorted(shared.name for shared in turned) == sorted(shared.name for shared in by_scene)
    count = len(set(scenes))
    assert {shared.episodes[0].scene_id for shared in turned[:count]} == set(scenes)
    collect(request(houses, tmp_path / "some", tours=count))
    walked = json.loads((tmp_path / "some" / TRAJECTORIES).read_text())
    assert len({record["video"].partition("_r2r_")[0] for record in walked}) == count
    assert json.loads((tmp_path / "some" / "collect.json").read_text())["tours_of"] == "scenes in turn"


def test_a_disturbed_walk_finds_back_and_is_the_same_every_time(houses: Path, tmp_path: Path) -> None:
    env, episodes = train_split(houses, width=8)
    (shared,) = shared_paths(episodes[:1], "r2r")
    straight, *disturbed = (
        walk(
            env, WalkTask(shared, tmp_path / str(i), ReferenceRoute(3.0)), ReferenceRoute(3.0, chance)
        ).product.record
        for i, chance in enumerate((0.0, 0.3, 0.3))
    )
    env.close()
    assert straight is not None
    assert disturbed[0] is not None
    assert disturbed[0] == disturbed[1]
    assert len(disturbed[0]["actions"]) > len(straight["actions"])
    assert "strays" not in straight
    assert 0 < len(disturbed[0]["strays"]) < len(disturbed[0]["actions"])
    (tmp_path / "1" / TRAJECTORIES).write_text(json.dumps(disturbed[:1]))
    (read,) = read_trajectories(tmp_path / "1")
    assert read.strays == {position - 1 for position in disturbed[0]["strays"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"disturbance": 1.0}, "--disturbance 1.0: expected 0 to below 1"),
        ({"disturbance": 0.1, "dagger": True}, "--disturbance: with --dagger the model strays by itself"),
        ({"workers": 1025}, "--workers 1025: expected 1 to 1024"),
        ({"set": "rxr"}, "--set rxr: houses-r2r has episodes in r2r format"),
        ({"frame_width": 101}, "--frame-width 101: expected 1 to 640"),
        ({"frame_width": 1280}, "--frame-width 1280: expected 1 to 640"),
        ({"tours": 0}, "--tours 0: train has 1 to"),
        ({"benchmark": "houses"}, "unknown benchmark 'houses'"),
        ({"split": "tests"}, "tests"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    houses: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        collect(request(houses, tmp_path / "out", **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dagger", [False, True])
def test_ids_that_would_share_a_folder_are_refused(tmp_path: Path, dagger: bool) -> None:
    names = dict(zip("036", ("70", "0070", "²"), strict=True))  # episodes of one scene
    episodes = [
        replace(each, episode_id=names.get(each.episode_id, each.episode_id), instruction_id=each.episode_id)
        for each in nine_episodes()
    ]
    root = write_dataset(tmp_path / "data", "rxr-ce", episodes)
    changes = {"benchmark": "rxr-ce", "set": "rxr", "split": "val_unseen", "allow_partial": True}
    with pytest.raises(
        UsageError, match=r"'episode_id': the walks of 70 and 0070 would both be images/a_rxr_000070;"
    ):
        collect(request(root, tmp_path / "out", dagger=dagger, **changes))
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_is_refused(
    houses: Path, collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"holds another collection: frame \[64, 48\] \(now \[32, 24\]\)"):
        collect(request(houses, collected, frame_width=32))
    (tmp_path / "notes.txt").write_text("mine")
    arguments = ["collect", "--out", str(tmp_path), "--data-root", str(houses), "--sim", "embedded"]
    assert main(arguments) == 2
    assert "not empty and not the folder of a collection" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_lost_frames_are_noticed(houses: Path, collected: Path, tmp_path: Path) -> None:
    out = tmp_path / "R2R"
    shutil.copytree(collected, out)
    next(out.rglob("003.jpg")).unlink()
    with pytest.raises(UsageError, match=r"frames, expected \d+; delete .*collected.jsonl and collect again"):
        collect(request(houses, out))
