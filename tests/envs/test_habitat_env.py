from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents.scripted import GroundTruthReplayAgent, ShortestPathAgent
from envs.habitat_env import HabitatEnv
from vlnbench.benchmarks import get_benchmark
from vlnbench.conformance import EnvConformance
from vlnbench.episodes import EpisodeSet, load_split
from vlnbench.errors import UsageError
from vlnbench.evaluate import evaluate, make_plan
from vlnbench.interfaces import Action, Camera, Embodiment, Env, Episode
from vlnbench.records import read_rows, read_trajectories

R2R = get_benchmark("r2r-ce")
SMALL = replace(R2R.body, camera=Camera(width=96, height=72, hfov=79.0, height_m=1.25))


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
    def _data(self, shared: Path, val_seen: EpisodeSet) -> None:
        self.root, self.episode = shared / "data", val_seen.episodes[0]

    def make_env(self) -> Env:
        sensors = frozenset({"rgb", "depth", "pose", "oracle_action"})
        return HabitatEnv(self.body, self.root / "scene_datasets", sensors, "embedded")

    def make_episode(self) -> Episode:
        return self.episode


class TestOnHouses(EnvConformance):
    """On generated data, so that the contract is tested where no recordings are at hand."""

    @pytest.fixture(autouse=True)
    def _data(self, houses: Path) -> None:
        self.root = houses
        self.episode = load_split(get_benchmark("houses-r2r"), "val_unseen", houses).episodes[0]

    def make_env(self) -> Env:
        return HabitatEnv(SMALL, self.root / "scene_datasets", frozenset({"rgb", "depth"}), "embedded")

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


def test_looking_tilts_the_cameras_and_leaves_the_body(shared: Path, val_seen: EpisodeSet) -> None:
    scenes, sensors = shared / "data" / "scene_datasets", frozenset({"rgb", "depth"})
    level = replace(SMALL, tilt_deg=30.0)
    down = replace(SMALL, camera=replace(SMALL.camera, pitch_deg=-30.0))
    env = HabitatEnv(level, scenes, sensors, "embedded")
    start = env.reset(val_seen.episodes[0])
    tilted = env.step(Action.LOOK_DOWN)
    reference = HabitatEnv(down, scenes, sensors, "embedded").reset(val_seen.episodes[0])
    np.testing.assert_array_equal(tilted.rgb, reference.rgb)
    assert tilted.pose == start.pose
    assert not tilted.collided
    np.testing.assert_array_equal(env.step(Action.LOOK_UP).rgb, start.rgb)
    env.step(Action.LOOK_UP)
    np.testing.assert_array_equal(env.reset(val_seen.episodes[0]).rgb, start.rgb)  # a new episode looks ahead


def test_a_body_that_cannot_look_refuses_to(shared: Path, val_seen: EpisodeSet) -> None:
    env = HabitatEnv(SMALL, shared / "data" / "scene_datasets", frozenset(), "embedded")
    env.reset(val_seen.episodes[0])
    with pytest.raises(ValueError, match="LOOK_UP: this body cannot tilt"):
        env.step(Action.LOOK_UP)


def subset(episode_set: EpisodeSet, scenes: int) -> EpisodeSet:
    chosen = sorted({episode.scene_id for episode in episode_set.episodes})[:scenes]
    return replace(episode_set, episodes=tuple(e for e in episode_set.episodes if e.scene_id in chosen))


def check_replay(episode_set: EpisodeSet, root: Path, recorded: dict[str, dict[str, float]], folder: Path) -> None:
    """Replay ground truth and compare with the real simulator, episode by episode."""
    agent = GroundTruthReplayAgent()
    env = HabitatEnv(R2R.body, root / "scene_datasets", agent.sensors, "embedded")
    plan = make_plan(R2R, episode_set, "gt-replay", count=None, seed=0, repeats=1)
    evaluate(plan, agent, env, folder)
    rows = {row.episode_id: row.scores for row in read_rows(folder)}
    trajectories = {key[2]: value for key, value in read_trajectories(folder).items()}
    assert len(rows) == len(episode_set.episodes)
    pairs = [(rows[id_], recorded[id_]) for id_ in rows]
    names = {
        "success": "success",
        "oracle_success": "oracle_success",
        "spl": "spl",
        "ndtw": "ndtw",
        "sdtw": "sdtw",
        "distance_to_goal": "distance_to_goal",
        "oracle_distance": "oracle_distance",
        "geodesic_start": "geodesic_start",
        "path_length": "path_length",
        "collisions": "collisions",
        "steps": "steps",
    }
    for ours, theirs in names.items():
        difference = [abs(float(row[ours] or 0.0) - reference[theirs]) for row, reference in pairs]
        assert max(difference) <= 1e-4, ours
    for id_, trajectory in trajectories.items():
        assert math.dist(trajectory.positions[-1], recorded[id_]["final_position"]) <= 1e-4  # type: ignore[arg-type]


def test_replaying_ground_truth_equals_the_real_simulator(
    shared: Path, val_seen: EpisodeSet, recorded: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    check_replay(subset(val_seen, 6), shared / "data", recorded, tmp_path)


@pytest.mark.slow
def test_replaying_all_of_val_seen_equals_the_real_simulator(
    shared: Path, val_seen: EpisodeSet, recorded: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    check_replay(val_seen, shared / "data", recorded, tmp_path)


def test_the_oracle_reaches_the_goal_on_the_shortest_path(
    shared: Path, val_seen: EpisodeSet, tmp_path: Path
) -> None:
    agent = ShortestPathAgent()
    env = HabitatEnv(R2R.body, shared / "data" / "scene_datasets", agent.sensors, "embedded")
    plan = make_plan(R2R, subset(val_seen, 4), "shortest-path", count=None, seed=0, repeats=1)
    summary = evaluate(plan, agent, env, tmp_path)
    success, spl = summary.metrics["SR"], summary.metrics["SPL"]
    assert success is not None
    assert spl is not None
    assert success.mean == 1.0
    assert spl.mean > 0.99


def test_cameras_that_no_one_asked_for_are_not_rendered(shared: Path, val_seen: EpisodeSet) -> None:
    env = HabitatEnv(SMALL, shared / "data" / "scene_datasets", frozenset({"depth"}), "embedded")
    observation = env.reset(val_seen.episodes[0])
    assert observation.rgb is None
    assert observation.depth is not None
    assert observation.oracle_action is None
    env.close()


def test_rendering_elsewhere_leaves_the_agent_where_it_is(shared: Path, val_seen: EpisodeSet) -> None:
    env = HabitatEnv(SMALL, shared / "data" / "scene_datasets", frozenset({"rgb"}), "embedded")
    first = env.reset(val_seen.episodes[0])
    after = env.step(Action.TURN_LEFT)
    assert first.pose is not None
    assert after.pose is not None
    np.testing.assert_array_equal(env.render(first.pose), first.rgb)
    np.testing.assert_array_equal(env.render(after.pose), after.rgb)
    env.close()


def test_missing_scenes_are_named_before_the_run(tmp_path: Path, val_seen: EpisodeSet) -> None:
    env = HabitatEnv(SMALL, tmp_path, frozenset(), "embedded")
    with pytest.raises(UsageError, match=r"scene file is missing \(field 'scene_id' of episode 31"):
        env.check([episode for episode in val_seen.episodes if episode.episode_id == "31"])


def test_starts_off_the_navmesh_are_named_before_the_run(shared: Path, val_seen: EpisodeSet) -> None:
    env = HabitatEnv(SMALL, shared / "data" / "scene_datasets", frozenset(), "embedded")
    lost = replace(val_seen.episodes[3], start_position=(900.0, 0.0, 0.0))
    with pytest.raises(UsageError, match=rf"episode {lost.episode_id}: field 'start_position'"):
        env.check([val_seen.episodes[2], lost])


@pytest.mark.parametrize(
    "content", [b"", b"glTF", b"<html>", b"glTF\x01\0\0\0\x0c\0\0\0", b"glTF\x02\0\0\0\xff\0\0\0"]
)
def test_broken_scene_files_are_named_before_the_run(tmp_path: Path, val_seen: EpisodeSet, content: bytes) -> None:
    episode = val_seen.episodes[0]
    path = tmp_path / episode.scene_id
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"{path.name}: header: "):
        HabitatEnv(SMALL, tmp_path, frozenset(), "embedded").check([episode])


def test_angles_that_habitat_lab_would_truncate_are_refused(shared: Path, val_seen: EpisodeSet) -> None:
    body = replace(SMALL, turn_deg=22.5)
    env = HabitatEnv(body, shared / "data" / "scene_datasets", frozenset(), "embedded")
    with pytest.raises(ValueError, match=r"turn_deg 22\.5: habitat-lab takes whole degrees only"):
        env.reset(val_seen.episodes[0])
