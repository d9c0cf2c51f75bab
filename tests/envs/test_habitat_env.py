"""The environment's own promises, on the embedded simulator and, where it is installed, on habitat-sim."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.scripted import ShortestPathAgent
from envs.habitat_env import HabitatEnv
from tests.envs.simulators import R2R, SIMULATORS, SMALL, check_replay, subset
from vlnbench.conformance import EnvConformance
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import evaluate, make_plan
from vlnbench.interfaces import Action, Camera, Embodiment, Env, Episode, Observation, Sensor
from vlnbench.rollout.inline import Inline


@pytest.fixture(params=SIMULATORS)
def simulator(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def val_seen(shared: Path) -> EpisodeSet:
    return load_split(R2R, "val_seen", shared / "data")


@pytest.fixture(scope="module")
def recorded(shared: Path) -> dict[str, dict[str, float]]:
    """Per-episode values of the ground-truth replay in the real habitat-sim."""
    path = shared / "data" / "scene_datasets" / "replay_val_seen.json"
    episodes: dict[str, dict[str, float]] = json.loads(path.read_text())["episodes"]
    return episodes


class TestHabitatEnv(EnvConformance):
    body = SMALL

    @pytest.fixture(autouse=True)
    def _data(self, shared: Path, val_seen: EpisodeSet, simulator: str) -> None:
        self.simulator: str = simulator
        self.root, self.episode = shared / "data", val_seen.episodes[0]

    def make_env(self) -> Env:
        sensors: frozenset[Sensor] = frozenset({"rgb", "depth", "pose", "oracle_action"})
        return HabitatEnv(self.body, self.root / "scene_datasets", sensors, self.simulator)

    def make_episode(self) -> Episode:
        return self.episode


class TestOnHouses(EnvConformance):
    """On generated data, so that the contract is tested where no recordings are at hand."""

    @pytest.fixture(autouse=True)
    def _data(self, houses: Path, simulator: str) -> None:
        self.simulator: str = simulator
        self.root = houses
        self.episode = load_split(get_benchmark("houses-r2r"), "val_unseen", houses).episodes[0]

    def make_env(self) -> Env:
        return HabitatEnv(SMALL, self.root / "scene_datasets", frozenset({"rgb", "depth"}), self.simulator)

    def make_episode(self) -> Episode:
        return self.episode


class TestChallengeBody(TestHabitatEnv):
    """Another body: 30 degree turns, no sliding, a navmesh that has to be built, a camera that looks down."""

    body = Embodiment(
        camera=Camera(width=64, height=48, hfov=90.0, height_m=0.88, pitch_deg=-30.0),
        agent_height_m=0.88,
        agent_radius_m=0.18,
        turn_deg=30.0,
        allow_sliding=False,
    )


def assert_same_frames(a: Observation, b: Observation) -> None:
    for image, other in ((a.rgb, b.rgb), (a.depth, b.depth)):
        assert image is not None
        assert other is not None
        np.testing.assert_array_equal(image, other)


def test_looking_tilts_the_cameras_and_leaves_the_body(shared: Path, val_seen: EpisodeSet, simulator: str) -> None:
    scenes = shared / "data" / "scene_datasets"
    sensors: frozenset[Sensor] = frozenset({"rgb", "depth"})
    level = replace(SMALL, tilt_deg=30.0)
    down = replace(SMALL, camera=replace(SMALL.camera, pitch_deg=-30.0))
    with closing(HabitatEnv(down, scenes, sensors, simulator)) as env:
        reference = env.reset(val_seen.episodes[0])
    with closing(HabitatEnv(level, scenes, sensors, simulator)) as env:
        start = env.reset(val_seen.episodes[0])
        tilted = env.step(Action.LOOK_DOWN)
        leveled = env.step(Action.LOOK_UP)
        env.step(Action.LOOK_UP)
        again = env.reset(val_seen.episodes[0])  # a new episode looks ahead
    assert tilted.pose == start.pose
    assert not tilted.collided
    for ours, expected in ((tilted, reference), (leveled, start), (again, start)):
        assert_same_frames(ours, expected)


def test_a_body_that_cannot_look_refuses_to(shared: Path, val_seen: EpisodeSet, simulator: str) -> None:
    with closing(HabitatEnv(SMALL, shared / "data" / "scene_datasets", frozenset(), simulator)) as env:
        env.reset(val_seen.episodes[0])
        with pytest.raises(ValueError, match="LOOK_UP: this body cannot tilt"):
            env.step(Action.LOOK_UP)


def test_replaying_ground_truth_equals_the_real_simulator(
    shared: Path,
    val_seen: EpisodeSet,
    recorded: dict[str, dict[str, float]],
    tmp_path: Path,
    simulator: str,
) -> None:
    check_replay(simulator, subset(val_seen, 6), shared / "data", recorded, tmp_path)


@pytest.mark.slow
def test_replaying_all_of_val_seen_equals_the_real_simulator(
    shared: Path,
    val_seen: EpisodeSet,
    recorded: dict[str, dict[str, float]],
    tmp_path: Path,
    simulator: str,
) -> None:
    check_replay(simulator, val_seen, shared / "data", recorded, tmp_path)


def test_the_oracle_reaches_the_goal_on_the_shortest_path(
    shared: Path, val_seen: EpisodeSet, tmp_path: Path, simulator: str
) -> None:
    agent = ShortestPathAgent()
    env = HabitatEnv(R2R.body, shared / "data" / "scene_datasets", agent.sensors, simulator)
    plan = make_plan(R2R, subset(val_seen, 4), "shortest-path", count=None, seed=0, repeats=1)
    with closing(env):
        summary = evaluate(plan, Inline(agent, env), tmp_path)
    success, spl = summary.metrics["SR"], summary.metrics["SPL"]
    assert success is not None
    assert spl is not None
    assert success.mean == 1.0
    assert spl.mean > 0.99


def test_cameras_that_no_one_asked_for_are_not_rendered(
    shared: Path, val_seen: EpisodeSet, simulator: str
) -> None:
    with closing(HabitatEnv(SMALL, shared / "data" / "scene_datasets", frozenset({"depth"}), simulator)) as env:
        observation = env.reset(val_seen.episodes[0])
    assert observation.rgb is None
    assert observation.depth is not None
    assert observation.oracle_action is None


def test_rendering_elsewhere_leaves_the_agent_where_it_is(
    shared: Path, val_seen: EpisodeSet, simulator: str
) -> None:
    with closing(HabitatEnv(SMALL, shared / "data" / "scene_datasets", frozenset({"rgb"}), simulator)) as env:
        for observation in (env.reset(val_seen.episodes[0]), env.step(Action.TURN_LEFT)):
            assert observation.pose is not None
            assert observation.rgb is not None
            np.testing.assert_array_equal(env.render(observation.pose), observation.rgb)


def test_missing_scenes_are_named_before_the_run(tmp_path: Path, val_seen: EpisodeSet, simulator: str) -> None:
    env = HabitatEnv(SMALL, tmp_path, frozenset(), simulator)
    with pytest.raises(UsageError, match=r"scene file is missing \(field 'scene_id' of episode 31"):
        env.check([episode for episode in val_seen.episodes if episode.episode_id == "31"])


def test_starts_off_the_navmesh_are_named_before_the_run(
    shared: Path, val_seen: EpisodeSet, simulator: str
) -> None:
    env = HabitatEnv(SMALL, shared / "data" / "scene_datasets", frozenset(), simulator)
    lost = replace(val_seen.episodes[3], start_position=(900.0, 0.0, 0.0))
    with pytest.raises(UsageError, match=rf"episode {lost.episode_id}: field 'start_position'"):
        env.check([val_seen.episodes[2], lost])


def test_goals_off_the_navmesh_are_named_before_the_run(
    shared: Path, val_seen: EpisodeSet, simulator: str
) -> None:
    env = HabitatEnv(SMALL, shared / "data" / "scene_datasets", frozenset(), simulator)
    lost = replace(val_seen.episodes[3], goals=((900.0, 0.0, 0.0),))
    with pytest.raises(UsageError, match=rf"episode {lost.episode_id}: field 'goals'"):
        env.check([val_seen.episodes[2], lost])


@pytest.mark.parametrize(
    "content", [b"", b"glTF", b"<html>", b"glTF\x01\0\0\0\x0c\0\0\0", b"glTF\x02\0\0\0\xff\0\0\0"]
)
def test_broken_scene_files_are_named_before_the_run(
    tmp_path: Path, val_seen: EpisodeSet, content: bytes, simulator: str
) -> None:
    episode = val_seen.episodes[0]
    path = tmp_path / episode.scene_id
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"{path.name}: header: "):
        HabitatEnv(SMALL, tmp_path, frozenset(), simulator).check([episode])


def test_broken_navmeshes_are_named_before_the_run(
    shared: Path, tmp_path: Path, val_seen: EpisodeSet, simulator: str
) -> None:
    episode = val_seen.episodes[0]
    path = tmp_path / episode.scene_id
    shutil.copytree((shared / "data" / "scene_datasets" / episode.scene_id).parent, path.parent)
    navmesh = path.with_suffix(".navmesh")
    content = navmesh.read_bytes()
    navmesh.unlink()
    navmesh.write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match=rf"{navmesh.name}"):
        HabitatEnv(SMALL, tmp_path, frozenset(), simulator).check([episode])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"turn_deg": 22.5}, "body.turn_deg 22.5"),
        ({"tilt_deg": 0.5}, "body.tilt_deg 0.5"),
        ({"camera": replace(SMALL.camera, hfov=79.5)}, "body.camera.hfov 79.5"),
        ({"depth_camera": replace(SMALL.camera, hfov=100.5)}, "body.depth_camera.hfov 100.5"),
    ],
)
def test_angles_that_habitat_lab_would_truncate_are_refused(
    tmp_path: Path, simulator: str, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(UsageError, match=rf"^{re.escape(field)}: habitat-lab takes whole degrees only; give"):
        HabitatEnv(replace(SMALL, **change), tmp_path, frozenset({"rgb", "depth"}), simulator)
