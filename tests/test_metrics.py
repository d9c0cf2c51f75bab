from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import make_episode
from vlnbench.interfaces import Action, Episode, Pose, Trajectory
from vlnbench.metrics import Scores, dynamic_time_warping, normalized_dtw, score

coordinate = st.floats(-20, 20, allow_nan=False, width=32)
path = st.lists(st.tuples(coordinate, coordinate, coordinate), min_size=1, max_size=12)


def walk(points: list[tuple[float, float, float]], episode: Episode, stop: bool = True) -> Trajectory:
    """A trajectory through `points` on a free plane, STOP at the end or not."""
    points = [*points, points[-1]] if stop else points
    last = [Action.STOP] if stop else []
    actions = [Action.MOVE_FORWARD] * (len(points) - 1 - len(last)) + last
    distances = tuple(math.dist(point, episode.goals[0]) for point in points)
    poses = tuple(Pose(point, (0.0, 0.0, 0.0, 1.0)) for point in points)
    return Trajectory(poses, tuple(actions), (False,) * len(actions), distances)


def slow_dtw(a: np.ndarray, b: np.ndarray) -> float:
    table = np.full((len(a) + 1, len(b) + 1), np.inf)
    table[0, 0] = 0.0
    for i in range(len(a)):
        for j in range(len(b)):
            best = min(table[i, j], table[i, j + 1], table[i + 1, j])
            table[i + 1, j + 1] = float(np.linalg.norm(a[i] - b[j])) + best
    return float(table[-1, -1])


@given(path, path)
def test_dtw_equals_the_textbook_table(a: list, b: list) -> None:
    fast, slow = dynamic_time_warping(np.array(a), np.array(b)), slow_dtw(np.array(a), np.array(b))
    assert fast == pytest.approx(slow, rel=1e-12, abs=1e-12)


@given(path, path)
def test_dtw_is_symmetric_and_at_least_the_end_distances(a: list, b: list) -> None:
    x, y = np.array(a), np.array(b)
    cost = dynamic_time_warping(x, y)
    assert cost == pytest.approx(dynamic_time_warping(y, x))
    assert cost >= max(np.linalg.norm(x[0] - y[0]), np.linalg.norm(x[-1] - y[-1])) - 1e-9


@given(path)
def test_ndtw_of_the_reference_itself_is_one_however_long_the_agent_waits(points: list) -> None:
    reference = np.array(points)
    assert normalized_dtw(np.repeat(reference, 3, axis=0), reference, 3.0) == pytest.approx(1.0)


def test_a_perfect_episode_scores_perfectly() -> None:
    episode = make_episode(1, distance=5.0)
    assert episode.ground_truth is not None
    scores = score(walk(list(episode.ground_truth.locations), episode), episode)
    assert scores == Scores(
        success=1.0,
        oracle_success=1.0,
        spl=1.0,
        distance_to_goal=0.0,
        oracle_distance=0.0,
        geodesic_start=5.0,
        ndtw=1.0,
        sdtw=1.0,
        path_length=5.0,
        steps=21,
        collisions=0,
        stopped=True,
    )


def test_success_needs_stop_and_oracle_success_does_not() -> None:
    episode = make_episode(1)
    points = list(episode.ground_truth.locations) if episode.ground_truth else []
    scores = score(walk(points, episode, stop=False), episode)
    assert (scores.success, scores.spl, scores.sdtw, scores.oracle_success) == (0.0, 0.0, 0.0, 1.0)


def test_the_success_distance_is_strict() -> None:
    episode = make_episode(1, distance=5.0)
    at = score(walk([(0.0, 0.0, 0.0), (0.0, 0.0, -2.0)], episode), episode)
    inside = score(walk([(0.0, 0.0, 0.0), (0.0, 0.0, -2.001)], episode), episode)
    assert (at.distance_to_goal, at.success, at.oracle_success) == (3.0, 0.0, 0.0)
    assert (inside.success, inside.oracle_success) == (1.0, 1.0)


def test_detours_cost_spl_in_proportion() -> None:
    episode = make_episode(1, distance=5.0)
    there_and_back = [(0.0, 0.0, 0.0), (0.0, 0.0, 2.5), (0.0, 0.0, -5.0)]
    assert score(walk(there_and_back, episode), episode).spl == pytest.approx(5.0 / 10.0)


def test_an_unreachable_goal_is_a_failure_without_nan() -> None:
    episode = make_episode(1)
    base = walk([(0.0, 0.0, 0.0)], episode)
    trajectory = Trajectory(base.poses, base.actions, base.collided, (math.inf, math.inf))
    scores = score(trajectory, episode)
    assert (scores.success, scores.spl) == (0.0, 0.0)
    assert (scores.distance_to_goal, scores.oracle_distance, scores.geodesic_start) == (None, None, None)
    assert scores.ndtw is not None


def test_stopping_on_the_goal_one_starts_on_is_a_full_success() -> None:
    episode = make_episode(1, distance=0.0)
    scores = score(walk([(0.0, 0.0, 0.0)], episode), episode)
    assert (scores.success, scores.spl) == (1.0, 1.0)


@given(path, st.booleans())
def test_every_score_is_in_range_and_ordered(points: list, stop: bool) -> None:
    episode = make_episode(1)
    scores = score(walk([(0.0, 0.0, 0.0), *points], episode, stop), episode)
    assert scores.ndtw is not None
    assert scores.sdtw is not None
    assert 0.0 <= scores.spl <= scores.success <= scores.oracle_success <= 1.0
    assert 0.0 <= scores.sdtw <= scores.ndtw <= 1.0
    assert scores.distance_to_goal is not None
    assert scores.oracle_distance is not None
    assert scores.oracle_distance <= scores.distance_to_goal


def test_scoring_needs_goals_and_distances() -> None:
    episode = make_episode(1)
    trajectory = walk([(0.0, 0.0, 0.0)], episode)
    with pytest.raises(ValueError, match="no goals"):
        score(trajectory, episode.for_agent())
    with pytest.raises(ValueError, match="one value per pose"):
        score(Trajectory(trajectory.poses, trajectory.actions, trajectory.collided), episode)


def test_expected_scores_of_real_ground_truth(shared) -> None:
    """Ground truth scored against itself: the SPL it gets from the dataset's own distances (facts of v1-3)."""
    from pathlib import Path

    from vlnbench.benchmarks import get_benchmark
    from vlnbench.episodes import load_split

    expected = {"val_seen": (0.97536, 9.765), "val_unseen": (0.96345, 9.169)}
    for split, (spl, length) in expected.items():
        efficiencies, lengths = [], []
        for episode in load_split(get_benchmark("r2r-ce"), split, Path(shared) / "data").episodes:
            truth = episode.ground_truth
            assert truth is not None
            assert episode.geodesic_distance is not None
            poses = tuple(Pose(point, (0.0, 0.0, 0.0, 1.0)) for point in (*truth.locations, truth.locations[-1]))
            distances = (episode.geodesic_distance,) + (0.3,) * (len(poses) - 1)
            actions = (Action.MOVE_FORWARD,) * (len(poses) - 2) + (Action.STOP,)
            scores = score(Trajectory(poses, actions, (False,) * len(actions), distances), episode)
            assert (scores.success, scores.ndtw) == (1.0, 1.0)
            efficiencies.append(scores.spl)
            lengths.append(scores.path_length)
        assert np.mean(efficiencies) == pytest.approx(spl, abs=1e-5)
        assert np.mean(lengths) == pytest.approx(length, abs=1e-3)
