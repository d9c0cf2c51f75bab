"""What tests of the environment share: the simulators to run on, subsets of splits, the replay of ground truth."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agents.scripted import GroundTruthReplayAgent
from envs.habitat_env import HabitatEnv
from envs.habitat_lab import has_habitat_sim
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import EpisodeSet
from vlnbench.evaluation.evaluate import evaluate, make_plan
from vlnbench.evaluation.records import read_rows, read_trajectories
from vlnbench.interfaces import Camera
from vlnbench.rollout.inline import Inline

R2R = get_benchmark("r2r-ce")
SMALL = replace(R2R.body, camera=Camera(width=96, height=72, hfov=79.0, height_m=1.25))

needs_habitat_sim = [
    pytest.mark.habitat,
    pytest.mark.skipif(not has_habitat_sim(), reason="habitat-sim is not installed"),
]
SIMULATORS = ["embedded", pytest.param("habitat-sim", marks=needs_habitat_sim)]
"""For parametrized tests that hold on either simulator."""

_RECORDED_FIELDS = (
    "success",
    "oracle_success",
    "spl",
    "ndtw",
    "sdtw",
    "distance_to_goal",
    "oracle_distance",
    "geodesic_start",
    "path_length",
    "collisions",
    "steps",
)


def subset(episode_set: EpisodeSet, scenes: int) -> EpisodeSet:
    """The episodes of the first few scenes in alphabetical order."""
    chosen = sorted({episode.scene_id for episode in episode_set.episodes})[:scenes]
    return replace(episode_set, episodes=tuple(e for e in episode_set.episodes if e.scene_id in chosen))


def check_replay(
    simulator: str,
    episode_set: EpisodeSet,
    root: Path,
    recorded: dict[str, dict[str, float]],
    folder: Path,
) -> None:
    """Replay ground truth and compare with what habitat-sim recorded, episode by episode."""
    agent = GroundTruthReplayAgent()
    env = HabitatEnv(R2R.body, root / "scene_datasets", agent.sensors, simulator)
    plan = make_plan(R2R, episode_set, "gt-replay", count=None, seed=0, repeats=1)
    with closing(env):
        evaluate(plan, Inline(agent, env), folder)
    rows = {row.episode_id: row.scores for row in read_rows(folder)}
    trajectories = {key[2]: value for key, value in read_trajectories(folder).items()}
    assert len(rows) == len(episode_set.episodes)
    for field in _RECORDED_FIELDS:
        difference = [abs(float(row[field] or 0.0) - recorded[id_][field]) for id_, row in rows.items()]
        assert max(difference) <= 1e-4, field
    for id_, trajectory in trajectories.items():
        assert math.dist(trajectory.positions[-1], recorded[id_]["final_position"]) <= 1e-4  # type: ignore[arg-type]
