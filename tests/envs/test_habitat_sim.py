"""habitat-sim itself, and both simulators side by side in one process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envs.backends import choose_backend
from envs.habitat_env import HabitatEnv
from tests.envs.simulators import R2R, SMALL, needs_habitat_sim, subset
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.interfaces import Action, Camera, Embodiment, Episode, Observation, Pose, Sensor

pytestmark = needs_habitat_sim

CHALLENGE = replace(
    SMALL,
    camera=Camera(width=80, height=60, hfov=79.0, height_m=0.88),
    depth_camera=Camera(width=64, height=64, hfov=90.0, height_m=0.5, pitch_deg=-10.0),
    agent_height_m=0.88,
    agent_radius_m=0.18,
    turn_deg=30.0,
    tilt_deg=30.0,
    allow_sliding=False,
)
"""A body unlike R2R's in everything that a simulator has to get right."""


@pytest.fixture(scope="module")
def val_seen(shared: Path) -> EpisodeSet:
    return load_split(R2R, "val_seen", shared / "data")


@pytest.fixture(scope="module")
def scenes_dir(shared: Path) -> Path:
    return shared / "data" / "scene_datasets"


@contextmanager
def side_by_side(
    body: Embodiment, scenes_dir: Path, sensors: frozenset[Sensor]
) -> Iterator[tuple[HabitatEnv, HabitatEnv]]:
    """The same environment on habitat-sim and on the embedded simulator."""
    theirs = HabitatEnv(body, scenes_dir, sensors, "habitat-sim")
    ours = HabitatEnv(body, scenes_dir, sensors, "embedded")
    with closing(theirs), closing(ours):
        yield theirs, ours


def one_per_scene(episode_set: EpisodeSet, scenes: int) -> list[Episode]:
    first = {episode.scene_id: episode for episode in reversed(subset(episode_set, scenes).episodes)}
    return list(first.values())


def pose_of(observation: Observation) -> Pose:
    assert observation.pose is not None
    return observation.pose


def assert_equal(theirs: Observation, ours: Observation) -> None:
    np.testing.assert_allclose(pose_of(ours).position, pose_of(theirs).position, rtol=0, atol=1e-6)
    np.testing.assert_allclose(pose_of(ours).rotation, pose_of(theirs).rotation, rtol=0, atol=1e-6)
    assert ours.collided == theirs.collided
    assert ours.rgb is not None
    assert theirs.rgb is not None
    assert np.abs(ours.rgb.astype(int) - theirs.rgb).mean() < 0.3
    assert ours.depth is not None
    assert theirs.depth is not None
    # Pixels on an edge may fall to either side of it; half of the others agree to a hundredth of a millimeter.
    assert np.mean(np.abs(ours.depth - theirs.depth) > 1e-3) < 0.002


@pytest.mark.parametrize("body", [SMALL, CHALLENGE], ids=["r2r", "challenge"])
def test_random_walks_are_equal(val_seen: EpisodeSet, scenes_dir: Path, body: Embodiment) -> None:
    choices = [Action.MOVE_FORWARD] * 4 + [Action.TURN_LEFT, Action.TURN_RIGHT]
    if body.tilt_deg is not None:
        choices += [Action.LOOK_UP, Action.LOOK_DOWN]
    random = np.random.default_rng(7)
    collisions = 0
    with side_by_side(body, scenes_dir, frozenset({"rgb", "depth"})) as (theirs, ours):
        for episode in one_per_scene(val_seen, 3):
            assert_equal(theirs.reset(episode), ours.reset(episode))
            for action in random.choice(choices, size=200):
                seen = theirs.step(Action(action))
                assert_equal(seen, ours.step(Action(action)))
                collisions += seen.collided
                here = pose_of(seen).position
                distance = theirs.geodesic_distance(here, episode.goals)
                assert ours.geodesic_distance(here, episode.goals) == pytest.approx(distance, abs=1e-6)
    assert collisions > 20


@pytest.mark.slow
def test_the_oracles_take_the_same_actions(val_seen: EpisodeSet, scenes_dir: Path) -> None:
    def actions(env: HabitatEnv, episode: Episode) -> list[Action]:
        taken: list[Action] = []
        observation = env.reset(episode)
        while len(taken) < R2R.max_steps and Action.STOP not in taken:
            assert observation.oracle_action is not None
            taken.append(observation.oracle_action)
            if taken[-1] != Action.STOP:
                observation = env.step(taken[-1])
        return taken

    with side_by_side(R2R.body, scenes_dir, frozenset({"oracle_action"})) as (theirs, ours):
        episodes = subset(val_seen, 8).episodes
        unlike = [e.episode_id for e in episodes if actions(theirs, e) != actions(ours, e)]
    assert unlike == []


def test_a_body_that_the_shipped_navmesh_does_not_fit_gets_another(val_seen: EpisodeSet, scenes_dir: Path) -> None:
    episode = val_seen.episodes[0]
    maps = []
    for body in (R2R.body, CHALLENGE):
        with side_by_side(body, scenes_dir, frozenset()) as envs:
            for env in envs:
                env.reset(episode)
            theirs, ours = (env.top_down_map(episode.start_position[1], 0.02).navigable for env in envs)
        np.testing.assert_array_equal(ours, theirs)
        maps.append(theirs)
    shipped, built = maps
    assert built.sum() < 0.9 * shipped.sum()


def test_a_scene_dataset_file_beside_the_scenes_changes_nothing(
    val_seen: EpisodeSet, scenes_dir: Path, tmp_path: Path
) -> None:
    episode = val_seen.episodes[0]
    scene = Path(episode.scene_id)
    shutil.copytree((scenes_dir / scene).parent, (tmp_path / scene).parent)
    stages = {"default_attributes": {"up": [0, 1, 0], "front": [0, 0, -1]}, "paths": {".glb": ["*/*.glb"]}}
    config = tmp_path / scene.parts[0] / "mp3d.scene_dataset_config.json"
    config.write_text(json.dumps({"stages": stages}))
    frames = []
    for folder in (scenes_dir, tmp_path):
        with closing(HabitatEnv(SMALL, folder, frozenset({"rgb"}), "habitat-sim")) as env:
            frame = env.reset(episode).rgb
        assert frame is not None
        frames.append(frame)
    np.testing.assert_array_equal(frames[0], frames[1])


def test_it_is_preferred_and_named_with_its_version() -> None:
    import habitat_sim

    assert choose_backend("auto").name == f"habitat-sim-{habitat_sim.__version__}"


def test_it_draws_on_the_gpu_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_backend("habitat-sim").gpu_device_id == -1
    assert choose_backend("habitat-sim", gpu=3).gpu_device_id == 3


def test_it_is_quiet_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNUM_LOG", "verbose")
    monkeypatch.delenv("HABITAT_SIM_LOG", raising=False)
    choose_backend("habitat-sim")
    assert (os.environ["MAGNUM_LOG"], os.environ["HABITAT_SIM_LOG"]) == ("verbose", "quiet")
