"""habitat-lab's own classes drive the embedded simulator, and its measures agree with ours."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.habitat_lab import import_habitat
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.evaluation.metrics import score
from vlnbench.interfaces import Action, Pose, Trajectory

habitat = import_habitat()

import envs.embedded.simulator  # noqa: E402, F401  (registers Embedded-v0)


@pytest.fixture(scope="module")
def val_seen(shared: Path) -> EpisodeSet:
    return load_split(get_benchmark("r2r-ce"), "val_seen", shared / "data")


def stock_config(shared: Path, **simulator: Any) -> Any:
    """habitat-lab's own vln_r2r.yaml; only the simulator and the paths are changed."""
    data = shared / "data"
    overrides = [
        "habitat.simulator.type=Embedded-v0",
        "habitat.dataset.split=val_seen",
        f"habitat.dataset.data_path='{data}/datasets/R2R_VLNCE_v1-3_preprocessed/{{split}}/{{split}}.json.gz'",
        f"habitat.dataset.scenes_dir='{data}/scene_datasets'",
        "habitat.environment.iterator_options.shuffle=False",
        "habitat.task.measurements.success.success_distance=3.0",
        "habitat.simulator.agents.main_agent.sim_sensors.rgb_sensor.width=64",
        "habitat.simulator.agents.main_agent.sim_sensors.rgb_sensor.height=64",
        "habitat.simulator.agents.main_agent.sim_sensors.depth_sensor.width=64",
        "habitat.simulator.agents.main_agent.sim_sensors.depth_sensor.height=64",
        "+habitat/task/measurements=[collisions,top_down_map]",
        "habitat.task.measurements.top_down_map.map_resolution=128",
        *(f"habitat.simulator.{key}={value}" for key, value in simulator.items()),
    ]
    return habitat.get_config("benchmark/nav/vln_r2r.yaml", overrides)


@pytest.mark.slow
def test_stock_env_task_dataset_sensors_and_measures_run(shared: Path, val_seen: EpisodeSet) -> None:
    env = habitat.Env(stock_config(shared))
    try:
        assert len(env.episodes) == 778
        truths = {episode.episode_id: episode for episode in val_seen.episodes}
        for _ in range(3):
            observations = env.reset()
            episode = truths[str(env.current_episode.episode_id)]
            assert observations["instruction"]["text"] == episode.instruction
            assert observations["rgb"].shape == (64, 64, 3)
            assert observations["depth"].shape == (64, 64, 1)
            assert 0.0 <= observations["depth"].min() <= observations["depth"].max() <= 1.0
            check_measures(env, episode)
    finally:
        env.close()


def check_measures(env: Any, episode: Any) -> None:
    """Walk the ground truth; habitat-lab's measures must equal our scores of the same trajectory."""
    poses, collided, distances = [pose_of(env)], [], [env.get_metrics()["distance_to_goal"]]
    actions = [Action(action) for action in episode.ground_truth.actions]
    for action in actions:
        assert not env.episode_over
        before = env.get_metrics()["collisions"]["count"] if env.get_metrics()["collisions"] else 0
        env.step(int(action))
        poses.append(pose_of(env))
        distances.append(env.get_metrics()["distance_to_goal"])
        collided.append(env.get_metrics()["collisions"]["count"] > before)
    assert env.episode_over
    theirs = env.get_metrics()
    ours = score(Trajectory(tuple(poses), tuple(actions), tuple(collided), tuple(distances)), episode)
    assert ours.success == theirs["success"]
    assert ours.spl == pytest.approx(theirs["spl"], abs=1e-6)
    assert ours.distance_to_goal == pytest.approx(theirs["distance_to_goal"], abs=1e-6)
    assert theirs["top_down_map"]["map"].any()


def pose_of(env: Any) -> Pose:
    state = env.sim.get_agent_state()
    x, y, z = (float(value) for value in state.position)
    return Pose((x, y, z), (state.rotation.x, state.rotation.y, state.rotation.z, state.rotation.w))


def test_the_simulator_interface_answers(shared: Path) -> None:
    env = habitat.Env(stock_config(shared))
    try:
        env.reset()
        sim = env.sim
        sim.seed(3)
        first = sim.sample_navigable_point()
        sim.seed(3)
        assert sim.sample_navigable_point() == first
        assert sim.is_navigable(first)
        start, goal = env.current_episode.start_position, env.current_episode.goals[0].position
        points = sim.get_straight_shortest_path_points(start, goal)
        length = sum(float(np.linalg.norm(b - a)) for a, b in pairwise(points))
        assert sim.geodesic_distance(start, goal) == pytest.approx(length, rel=1e-5)
        assert sim.geodesic_distance(start, [goal, start]) == 0.0
        before = sim.get_agent_state()
        elsewhere = sim.get_observations_at(first, [0.0, 1.0, 0.0, 0.0])
        assert elsewhere["rgb"].shape == (64, 64, 3)
        assert np.array_equal(sim.get_agent_state().position, before.position)
        sim.get_observations_at(first, [0.0, 1.0, 0.0, 0.0], keep_agent_at_new_pose=True)
        np.testing.assert_allclose(sim.get_agent_state().position, first, atol=1e-6)
        assert sim.render("rgb").shape == (64, 64, 3)
        assert sim.distance_to_closest_obstacle(first) >= 0.0
        assert list(sim.forward_vector) == [0.0, 0.0, -1.0]
        assert list(sim.up_vector) == [0.0, 1.0, 0.0]
    finally:
        env.close()


def test_sensors_that_only_habitat_sim_has_are_refused(shared: Path) -> None:
    from vlnbench.errors import UsageError

    config = stock_config(shared)
    with habitat.config.read_write(config):
        config.habitat.simulator.agents.main_agent.sim_sensors.rgb_sensor.type = "HabitatSimFisheyeRGBSensor"
    with pytest.raises(
        UsageError, match="sensor type 'HabitatSimFisheyeRGBSensor': the embedded simulator renders"
    ):
        habitat.Env(config)


def test_habitat_labs_dataset_class_reads_generated_houses(houses: Path) -> None:
    overrides = [
        "habitat.simulator.type=Embedded-v0",
        "habitat.dataset.split=val_unseen",
        f"habitat.dataset.data_path='{houses}/datasets/houses_r2r/{{split}}/{{split}}.json.gz'",
        f"habitat.dataset.scenes_dir='{houses}/scene_datasets'",
    ]
    env = habitat.Env(habitat.get_config("benchmark/nav/vln_r2r.yaml", overrides))
    try:
        assert len(env.episodes) == 6
        observations = env.reset()
        assert observations["rgb"].shape == (256, 256, 3)
        assert observations["instruction"]["text"].endswith(".")
        assert len(observations["instruction"]["tokens"]) == 200
        assert env.get_metrics()["distance_to_goal"] > 3.0
    finally:
        env.close()
