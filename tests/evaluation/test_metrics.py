from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fakes import make_episode
from tests.runs import make_identity
from vlnbench.evaluation.metrics import (
    FAILURES,
    STUCK_ACTIONS,
    Scores,
    coverage_weighted_by_length,
    dynamic_time_warping,
    failure_kind,
    normalized_dtw,
    score,
)
from vlnbench.interfaces import Action, Episode, Pose, Trajectory

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
        cls=1.0,
        path_length=5.0,
        steps=21,
        collisions=0,
        stopped=True,
        failure="success",
    )


@given(path, st.booleans())
def test_every_score_is_in_range_and_ordered(points: list, stop: bool) -> None:
    episode = make_episode(1)
    scores = score(walk([(0.0, 0.0, 0.0), *points], episode, stop), episode)
    assert scores.ndtw is not None
    assert scores.sdtw is not None
    assert 0.0 <= scores.spl <= scores.success <= scores.oracle_success <= 1.0
    assert 0.0 <= scores.sdtw <= scores.ndtw <= 1.0
    assert scores.cls is not None
    assert 0.0 <= scores.cls <= 1.0
    assert (scores.failure == "success") == (scores.success == 1.0)
    assert scores.distance_to_goal is not None
    assert scores.oracle_distance is not None
    assert scores.oracle_distance <= scores.distance_to_goal


def slow_cls(p: np.ndarray, r: np.ndarray) -> float:
    """The formulas of Jain et al. 2019, word by word."""
    coverage = sum(math.exp(-min(math.dist(a, b) for b in p) / 3.0) for a in r) / len(r)
    expected = coverage * sum(math.dist(a, b) for a, b in itertools.pairwise(r))
    length = sum(math.dist(a, b) for a, b in itertools.pairwise(p))
    return coverage * (expected / (expected + abs(expected - length)) if expected + length > 0.0 else 1.0)


@given(path, path)
@example([(0.0, 0.0, 0.0)], [(1.0, 0.0, 0.0)])
@example([(0.0, 0.0, 0.0)], [(1.0, 0.0, 0.0), (2.0, 0.0, 0.0)])
def test_cls_equals_its_definition_and_ignores_waiting(p: list, r: list) -> None:
    a, b = np.array(p), np.array(r)
    cls = coverage_weighted_by_length(a, b, 3.0)
    assert cls == pytest.approx(slow_cls(a, b), rel=1e-9, abs=1e-12)
    assert 0.0 <= cls <= 1.0
    assert coverage_weighted_by_length(np.repeat(a, 3, axis=0), b, 3.0) == pytest.approx(cls, rel=1e-9, abs=1e-12)
    assert coverage_weighted_by_length(b, b, 3.0) == pytest.approx(1.0)


def episode_of(kind: str) -> Trajectory:
    """A trajectory towards a goal 5 m ahead that ends in the given way."""
    episode = make_episode(1, distance=5.0)
    away = [(0.0, 0.0, 0.25 * i) for i in range(40)]
    there = [(0.0, 0.0, -0.25 * i) for i in range(21)]
    points, stop = {
        "success": (there, True),
        "passed_goal": ([*there, *away], True),
        "stopped_early": (away[:3], True),
        "never_stopped": (away, False),
        "stuck": (away[:3] + [away[2]] * STUCK_ACTIONS, False),
        "unreachable": (there, True),
    }[kind]
    path = walk(points, episode, stop)
    if kind == "unreachable":
        path = replace(path, goal_distances=(math.inf,) * len(path.poses))
    return path


@pytest.mark.parametrize("kind", [kind for kind in FAILURES if kind not in ("error", "unknown")])
def test_every_kind_of_ending_is_recognized(kind: str) -> None:
    assert failure_kind(episode_of(kind), 3.0) == kind


def test_ending_within_reach_without_stop_has_passed_the_goal() -> None:
    reached = episode_of("success")
    cut = Trajectory(reached.poses[:-1], reached.actions[:-1], reached.collided[:-1], reached.goal_distances[:-1])
    assert failure_kind(cut, 3.0) == "passed_goal"


def test_turning_on_the_spot_or_standing_for_a_while_is_not_stuck() -> None:
    stuck = episode_of("stuck")
    turning = replace(stuck, actions=(Action.MOVE_FORWARD,) * 2 + (Action.TURN_LEFT,) * STUCK_ACTIONS)
    assert failure_kind(turning, 3.0) == "never_stopped"
    once = replace(turning, actions=(*turning.actions[:-1], Action.MOVE_FORWARD))
    assert failure_kind(once, 3.0) == "stuck"
    shorter = Trajectory(stuck.poses[:-1], stuck.actions[:-1], stuck.collided[:-1], stuck.goal_distances[:-1])
    assert failure_kind(shorter, 3.0) == "never_stopped"


actions_with_distances = st.integers(0, STUCK_ACTIONS + 10).flatmap(
    lambda n: st.lists(
        st.tuples(st.sampled_from(list(Action)[:4]), st.floats(0.0, 8.0) | st.just(math.inf)),
        min_size=n,
        max_size=n,
    )
)


@given(
    actions_with_distances, st.floats(0.0, 8.0) | st.just(math.inf), st.integers(0, STUCK_ACTIONS), st.booleans()
)
def test_kinds_are_exhaustive_and_exclude_each_other(steps: list, start: float, moves: int, far: bool) -> None:
    """Exactly one kind's condition, written out independently of the others, holds for any trajectory."""
    depths = [0.25 * min(i, moves) for i in range(len(steps) + 1)]
    poses = tuple(Pose((0.0, 0.0, -depth), (0.0, 0.0, 0.0, 1.0)) for depth in depths)
    actions = tuple(action for action, _ in steps)
    distances = tuple(distance + 3.0 * far for distance in (start, *(distance for _, distance in steps)))
    path = Trajectory(poses, actions, (False,) * len(actions), distances)
    reachable, near, stopped = start < math.inf, min(distances) < 3.0, actions[-1:] == (Action.STOP,)
    success = stopped and distances[-1] < 3.0
    blocked = len(steps) - moves >= STUCK_ACTIONS and Action.MOVE_FORWARD in actions[-STUCK_ACTIONS:]
    open_end = reachable and not near and not stopped
    holds = {
        "unreachable": not reachable,
        "success": reachable and success,
        "passed_goal": reachable and near and not success,
        "stopped_early": reachable and not near and stopped,
        "stuck": open_end and blocked,
        "never_stopped": open_end and not blocked,
    }
    assert [kind for kind, true in holds.items() if true] == [failure_kind(path, 3.0)]
    assert {*holds, "error", "unknown"} == set(FAILURES)


def test_scoring_needs_goals_and_distances() -> None:
    episode = make_episode(1)
    trajectory = walk([(0.0, 0.0, 0.0)], episode)
    with pytest.raises(ValueError, match="no goals"):
        score(trajectory, episode.for_agent())
    with pytest.raises(ValueError, match="one value per pose"):
        score(Trajectory(trajectory.poses, trajectory.actions, trajectory.collided), episode)


@pytest.mark.slow
def test_expected_scores_of_real_ground_truth(shared) -> None:
    """Ground truth scored against itself: the SPL it gets from the dataset's own distances (facts of v1-3)."""
    from pathlib import Path

    from vlnbench.data.benchmarks import get_benchmark
    from vlnbench.data.episodes import load_split

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
            assert (scores.success, scores.ndtw, scores.cls) == (1.0, 1.0, pytest.approx(1.0, rel=1e-12))
            efficiencies.append(scores.spl)
            lengths.append(scores.path_length)
        assert np.mean(efficiencies) == pytest.approx(spl, abs=1e-5)
        assert np.mean(lengths) == pytest.approx(length, abs=1e-3)


def test_a_published_aggregate_is_reproduced_to_the_last_digit(shared) -> None:
    """1,839 per-episode rows of a published agent (CWP's CMA) through our own aggregation."""
    import json
    from pathlib import Path

    from vlnbench.data.benchmarks import get_benchmark
    from vlnbench.data.episodes import load_split
    from vlnbench.evaluation.records import Row
    from vlnbench.evaluation.summary import METRICS, summarize

    folder = Path(shared) / "data" / "cwp_logs"
    log = json.loads((folder / "cwp_cma_val_unseen_episodes.json").read_text())
    published = json.loads((folder / "cwp_cma_val_unseen_aggregate.json").read_text())
    split = load_split(get_benchmark("r2r-ce"), "val_unseen", Path(shared) / "data")
    scenes = {episode.episode_id: episode.scene_id for episode in split.episodes}
    names = {"steps": "steps_taken"}  # ours -> theirs, where they differ
    rows = []
    for episode_id, entry in log.items():
        scores = {metric.field: entry.get(names.get(metric.field, metric.field)) for metric in METRICS}
        ending = {"geodesic_start": 1.0, "failure": "success" if entry["success"] else "stopped_early"}
        place = (episode_id, 0, scenes[episode_id], "", 0)
        rows.append(Row("r2r-ce", "", "val_unseen", *place, status="ok", scores={**scores, **ending}))
    summary = summarize(rows, [row.key for row in rows], make_identity())
    ours = {names.get(metric.field, metric.field): summary.metrics[metric.label] for metric in METRICS}
    assert (summary.n_done, summary.n_errors, len(published)) == (1839, 0, 8)
    assert {name: estimate.mean for name, estimate in ours.items() if estimate is not None} == published
    assert {estimate.clusters for estimate in ours.values() if estimate is not None} == {11}
