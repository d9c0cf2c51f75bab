"""Every metric on trajectories small enough to work out by hand; the arithmetic stands beside the numbers.

Geodesic distances are given, not computed: they need not be the straight lines between the points.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.fakes import make_episode
from vlnbench.evaluation.metrics import (
    FAILURES,
    METRICS_VERSION,
    STUCK_ACTIONS,
    STUCK_RADIUS_M,
    UNREACHABLE_POLICY,
    coverage_weighted_by_length,
    dynamic_time_warping,
    failure_kind,
    normalized_dtw,
    score,
)
from vlnbench.interfaces import Action, Episode, GroundTruth, Pose, Trajectory, Vec3

FORWARD, LEFT, STOP = Action.MOVE_FORWARD, Action.TURN_LEFT, Action.STOP
REFERENCE = ((0.0, 0.0, 0.0), (3.0, 0.0, 0.0), (6.0, 0.0, 0.0))
"""Ground truth of every episode here: 6 m in a straight line, three locations."""


def episode(truth: Sequence[Vec3] | None = REFERENCE) -> Episode:
    return replace(make_episode(1), ground_truth=None if truth is None else GroundTruth(tuple(truth), ()))


def trajectory(
    points: Sequence[Vec3], actions: Sequence[Action], distances: Sequence[float], hits: Sequence[int] = ()
) -> Trajectory:
    """Poses at `points`; the actions with these indices collided."""
    assert len(points) == len(actions) + 1 == len(distances)
    poses = tuple(Pose(point, (0.0, 0.0, 0.0, 1.0)) for point in points)
    collided = tuple(i in hits for i in range(len(actions)))
    return Trajectory(poses, tuple(actions), collided, tuple(distances))


DETOUR = trajectory(
    [(0, 0, 0), (0, 0, 4), (0, 0, 4), (3, 0, 0), (6, 0, 0), (6, 0, 0)],
    [FORWARD, LEFT, FORWARD, FORWARD, STOP],
    [6.0, 7.5, 7.5, 3.0, 0.5, 0.5],
    hits=(0, 2),
)
"""Four meters to the side, a turn on the spot, five meters back to the reference, three along it, STOP."""


def test_a_success_with_a_detour() -> None:
    """Path length 4 + 0 + 5 + 3 + 0 = 12, so SPL = 6 / max(6, 12) = 1/2.

    DTW: the turn adds no point, so the path is (0,0,0), (0,0,4), (3,0,0), (6,0,0). The first, third and fourth lie
    on the reference; the second is 4 m from its first location and 5 m from its second: 4 m in all. Three
    locations: nDTW = exp(-4 / (3 * 3)) = exp(-4/9) = 0.641180.
    CLS: every location is touched, coverage 1; expected length 6, walked 12: 6 / (6 + |6 - 12|) = 1/2.
    """
    assert asdict(score(DETOUR, episode())) == {
        "success": 1.0,
        "oracle_success": 1.0,
        "spl": 0.5,
        "distance_to_goal": 0.5,
        "oracle_distance": 0.5,
        "geodesic_start": 6.0,
        "ndtw": pytest.approx(0.641180, abs=1e-6),
        "sdtw": pytest.approx(0.641180, abs=1e-6),
        "cls": 0.5,
        "path_length": 12.0,
        "steps": 5,
        "collisions": 2,
        "stopped": True,
        "failure": "success",
    }


def test_a_failure_that_passed_the_goal() -> None:
    """The same walk, but the goal is 2.9 m from the second point and 4 m from the last one.

    No success, so SPL and SDTW are 0; the path is the same, so nDTW and CLS are.
    """
    path = replace(DETOUR, goal_distances=(6.0, 2.9, 2.9, 3.5, 4.0, 4.0))
    scores = asdict(score(path, episode()))
    expected = {"success": 0.0, "oracle_success": 1.0, "spl": 0.0, "sdtw": 0.0, "failure": "passed_goal"}
    expected |= {"distance_to_goal": 4.0, "oracle_distance": 2.9, "stopped": True, "cls": 0.5}
    assert {name: scores[name] for name in expected} == expected
    assert scores["ndtw"] == pytest.approx(0.641180, abs=1e-6)


def test_a_path_shorter_than_the_distance_is_no_better_than_perfect() -> None:
    """STOP 2 m before a goal 5 m away, after 3 m: SPL = 5 / max(5, 3) = 1, not 5/3."""
    path = trajectory([(0, 0, 0), (3, 0, 0), (3, 0, 0)], [FORWARD, STOP], [5.0, 2.0, 2.0])
    scores = score(path, episode())
    assert (scores.success, scores.spl, scores.path_length) == (1.0, 1.0, 3.0)


def test_spl_takes_the_distance_at_reset_and_not_the_one_of_the_dataset() -> None:
    """8 m walked; the simulator says 6 m, the dataset 5 m: SPL = 6/8."""
    path = trajectory([(0, 0, 0), (8, 0, 0), (8, 0, 0)], [FORWARD, STOP], [6.0, 1.0, 1.0])
    assert score(path, replace(episode(), geodesic_distance=5.0)).spl == 0.75


def test_the_start_counts_for_oracle_success() -> None:
    """The start is 2 m from the goal, every later pose 3 m or more."""
    path = trajectory([(0, 0, 0), (3, 0, 0), (3, 0, 0)], [FORWARD, STOP], [2.0, 5.0, 5.0])
    scores = score(path, episode())
    assert (scores.success, scores.oracle_success, scores.oracle_distance) == (0.0, 1.0, 2.0)
    assert (scores.distance_to_goal, scores.failure) == (5.0, "passed_goal")


def test_no_stop_is_no_success_however_near() -> None:
    path = trajectory([(0, 0, 0), (3, 0, 0)], [FORWARD], [3.0, 0.0])
    scores = score(path, episode())
    assert (scores.success, scores.oracle_success, scores.stopped, scores.steps) == (0.0, 1.0, False, 1)
    assert (scores.spl, scores.sdtw, scores.distance_to_goal, scores.failure) == (0.0, 0.0, 0.0, "passed_goal")


def test_three_meters_are_not_within_three_meters() -> None:
    for distance, rate, failure in ((3.0, 0.0, "stopped_early"), (2.999, 1.0, "success")):
        path = trajectory([(0, 0, 0), (1, 0, 0), (1, 0, 0)], [FORWARD, STOP], [4.0, distance, distance])
        scores = score(path, episode())
        assert (scores.success, scores.oracle_success, scores.failure) == (rate, rate, failure)


def test_path_length_climbs_stairs() -> None:
    """Steps of (2, 1, 2) and (0, -6, 8): sqrt(4 + 1 + 4) + sqrt(36 + 64) = 3 + 10 = 13."""
    path = trajectory([(0, 0, 0), (2, 1, 2), (2, -5, 10)], [FORWARD, FORWARD], [9.0, 9.0, 9.0])
    assert score(path, episode()).path_length == 13.0


def test_another_success_distance_is_used_everywhere() -> None:
    """At 0.25 m: the detour ends 0.5 m away, so it fails; nDTW = exp(-4 / (3 * 0.25)) = exp(-16/3) = 0.004828.

    CLS of a path 0.25 m beside the reference: every location at e^-1 = 0.367879; expected length
    6 * 0.367879 = 2.207277, walked 6: 0.367879 * 2.207277 / (2.207277 + 3.792723) = 0.135335.
    """
    scores = score(DETOUR, episode(), success_distance_m=0.25)
    assert (scores.success, scores.oracle_success, scores.failure) == (0.0, 0.0, "stopped_early")
    assert scores.ndtw == pytest.approx(0.004828, abs=1e-6)
    beside = trajectory([(0, 0, 0.25), (3, 0, 0.25), (6, 0, 0.25)], [FORWARD, FORWARD], [6.0, 3.0, 1.0])
    assert score(beside, episode(), success_distance_m=0.25).cls == pytest.approx(0.135335, abs=1e-6)


def test_without_ground_truth_there_is_no_ndtw() -> None:
    scores = score(DETOUR, episode(None))
    assert (scores.ndtw, scores.sdtw, scores.cls) == (None, None, None)
    assert (scores.success, scores.spl) == (1.0, 0.5)


def test_no_path_to_the_goal_has_no_distance() -> None:
    path = replace(DETOUR, goal_distances=(math.inf,) * 6)
    scores = score(path, episode())
    assert (scores.success, scores.spl, scores.oracle_success, scores.sdtw) == (0.0, 0.0, 0.0, 0.0)
    assert (scores.distance_to_goal, scores.oracle_distance, scores.geodesic_start) == (None, None, None)
    assert scores.failure == "unreachable"


def test_a_goal_that_the_start_cannot_reach_is_no_success_from_elsewhere() -> None:
    """There is no path from the start, and the agent came out 0.5 m from the goal all the same."""
    path = replace(DETOUR, goal_distances=(math.inf, 7.5, 7.5, 3.0, 0.5, 0.5))
    scores = score(path, episode())
    assert (scores.success, scores.spl, scores.sdtw, scores.oracle_success) == (0.0, 0.0, 0.0, 1.0)
    assert (scores.distance_to_goal, scores.geodesic_start, scores.failure) == (0.5, None, "unreachable")


def test_rates_are_numbers_in_files_and_flags_are_flags() -> None:
    written = json.dumps(asdict(score(DETOUR, episode())))
    for part in ('"success": 1.0', '"oracle_success": 1.0', '"stopped": true', '"steps": 5', '"collisions": 2'):
        assert part in written


def test_starting_and_stopping_on_the_goal_is_perfect() -> None:
    """Nothing to walk and nothing walked: SPL 1."""
    path = trajectory([(0, 0, 0), (0, 0, 0)], [STOP], [0.0, 0.0])
    scores = score(path, episode([(0, 0, 0)]))
    assert (scores.spl, scores.ndtw, scores.sdtw, scores.cls, scores.path_length) == (1.0, 1.0, 1.0, 1.0, 0.0)
    assert scores.steps == 1


def test_ndtw_is_divided_by_the_reference_and_not_by_the_path() -> None:
    """Path of five points over a reference of two, 0 and 4 m along x: the points 0, 1, 2, 3, 4 cost 0, 1, 2, 1, 0,
    each at the nearer end: nDTW = exp(-4 / (2 * 3)) = 0.513417. By the path's length it were exp(-4 / 15)."""
    points, reference = [[float(x), 0, 0] for x in range(5)], [[0.0, 0, 0], [4.0, 0, 0]]
    assert normalized_dtw(np.array(points), np.array(reference), 3.0) == pytest.approx(0.513417, abs=1e-6)


def test_waiting_costs_no_ndtw_and_returning_does() -> None:
    """Reference at x = 0 and 2. Points 0, 1, 1, 1, 2: one meter off, once: nDTW = exp(-1 / (2 * 3)) = 0.846482.
    Points 0, 1, 0, 1, 2 move every time: 1 m off twice, exp(-2 / 6) = 0.716531."""
    reference = np.array([[0.0, 0, 0], [2.0, 0, 0]])
    for xs, expected in (((0, 1, 1, 1, 2), 0.846482), ((0, 1, 0, 1, 2), 0.716531)):
        path = np.array([[float(x), 0, 0] for x in xs])
        assert normalized_dtw(path, reference, 3.0) == pytest.approx(expected, abs=1e-6)


def test_a_move_along_one_axis_is_a_move() -> None:
    """Points that differ in height alone are two: 0 and 1 m above a reference of one location cost 1 m."""
    path, reference = np.array([[0.0, 0, 0], [0.0, 1, 0]]), np.array([[0.0, 0, 0]])
    assert normalized_dtw(path, reference, 3.0) == pytest.approx(math.exp(-1 / 3), abs=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "cost"),
    [
        ([0], [5], 5),
        ([0, 1, 2], [0, 1, 2], 0),
        ([0, 0, 0], [0], 0),
        ([0, 3], [0, 1, 2, 3], 2),  # 0-0, 0-1 (1), 3-2 (1), 3-3
        ([0, 4, 0], [0], 4),
        ([1, 2, 3], [2], 2),  # 1, 0, 1
        ([0, 1], [1, 0], 2),  # order counts: both ends 1 apart; the corner between them is free
    ],
)
def test_dtw_on_a_line(a: list[int], b: list[int], cost: float) -> None:
    x, y = (np.array([[float(value), 0, 0] for value in side]) for side in (a, b))
    assert dynamic_time_warping(x, y) == cost
    assert dynamic_time_warping(y, x) == cost


@pytest.mark.parametrize("sides", [(0, 1), (1, 0)])
def test_dtw_needs_points_on_both_sides(sides: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least one point on each side"):
        dynamic_time_warping(*(np.zeros((n, 3)) for n in sides))


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        # Half the way: 2 of 3 locations touched, the third 3 m off: PC = (2 + e^-1) / 3 = 0.789293.
        # EPL = 6 PC = 4.735759; 3 m walked: LS = 4.735759 / (4.735759 + 1.735759) = 0.731785.
        ([(0, 0, 0), (3, 0, 0)], 0.577593),
        # All of it: 1.
        ([(0, 0, 0), (6, 0, 0), (3, 0, 0)], 6 / 9),  # and back 3 m: PC = 1, EPL = 6, walked 9: 6 / (6 + 3)
        # Nothing: PC = (1 + e^-1 + e^-2) / 3 = 0.501072, EPL = 3.006430, walked 0: LS = EPL / 2 EPL = 1/2.
        ([(0, 0, 0)], 0.250536),
    ],
)
def test_cls_on_the_reference(points: list[Vec3], expected: float) -> None:
    found = coverage_weighted_by_length(np.array(points, dtype=float), np.array(REFERENCE), 3.0)
    assert found == pytest.approx(expected, abs=1e-6)


def test_cls_where_neither_has_a_length() -> None:
    """One point each, 3 m apart: coverage e^-1, length score 1."""
    one, other = np.array([[0.0, 0, 0]]), np.array([[3.0, 0, 0]])
    assert coverage_weighted_by_length(one, other, 3.0) == pytest.approx(math.exp(-1), abs=1e-12)


def blocked(xs: Sequence[float], actions: Sequence[Action]) -> Trajectory:
    """Positions along x, always 9 m from the goal."""
    return trajectory([(x, 0.0, 0.0) for x in xs], actions, [9.0] * len(xs))


def test_the_words_for_endings_and_their_order() -> None:
    assert FAILURES == (
        "success",
        "passed_goal",
        "stopped_early",
        "stuck",
        "never_stopped",
        "unreachable",
        "error",
        "unknown",
    )
    assert (STUCK_ACTIONS, STUCK_RADIUS_M) == (25, 0.05)
    assert (METRICS_VERSION, UNREACHABLE_POLICY) == (1, "unreachable-fails-v1")


@pytest.mark.parametrize(
    ("distances", "actions", "expected"),
    [
        ([math.inf, 1.0], [STOP], "unreachable"),  # whatever else happened
        ([9.0, 2.9], [STOP], "success"),
        ([9.0, 2.9, 3.0], [FORWARD, STOP], "passed_goal"),
        ([9.0, 2.9, 9.0], [FORWARD, FORWARD], "passed_goal"),
        ([9.0, 2.9], [FORWARD], "passed_goal"),  # near at the end, but no STOP
        ([9.0, 3.0, 3.0], [FORWARD, STOP], "stopped_early"),
        ([9.0, 3.0, math.inf], [FORWARD, STOP], "stopped_early"),
        ([9.0, 3.0], [FORWARD], "never_stopped"),
    ],
)
def test_how_short_episodes_ended(distances: list[float], actions: list[Action], expected: str) -> None:
    points = [(float(i), 0.0, 0.0) for i in range(len(distances))]
    assert failure_kind(trajectory(points, actions, distances), 3.0) == expected


@pytest.mark.parametrize(
    ("xs", "actions", "expected"),
    [
        ([0.0] * 26, [FORWARD] * 25, "stuck"),
        ([0.0] * 25, [FORWARD] * 24, "never_stopped"),  # one action too few
        ([0.0] * 26, [LEFT] * 25, "never_stopped"),  # looked around and did not try to move
        ([0.0] * 26, [FORWARD] + [LEFT] * 24, "stuck"),  # tried in the first of the last 25
        ([0.0] * 27, [FORWARD] + [LEFT] * 25, "never_stopped"),  # tried before them
        ([0.05] + [0.0] * 25, [FORWARD] * 25, "stuck"),  # 5 cm is within the radius
        ([0.06] + [0.0] * 25, [FORWARD] * 25, "never_stopped"),
        ([0.0] * 25 + [0.06], [FORWARD] * 25, "never_stopped"),  # came free with the last action
        ([0.0, 0.06] + [0.0] * 24, [FORWARD] * 25, "never_stopped"),  # went away and came back
        ([9.0] + [0.0] * 26, [FORWARD] * 26, "stuck"),  # what was before does not count
        # From where it ended, and not from the origin, its start or the pose before: 4 cm to either side of it.
        ([5.0, 5.04] + [4.96] * 23 + [5.0], [FORWARD] * 25, "stuck"),
        ([5.0] + [4.96] * 23 + [5.04, 5.0], [FORWARD] * 25, "stuck"),
        ([5.0, 5.04, 5.0] + [4.96] * 23, [FORWARD] * 25, "never_stopped"),  # 8 cm
        ([0.0] * 26, [FORWARD] * 24 + [STOP], "stopped_early"),  # STOP is a decision
    ],
)
def test_when_an_agent_is_stuck(xs: list[float], actions: list[Action], expected: str) -> None:
    assert failure_kind(blocked(xs, actions), 3.0) == expected


def test_what_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="episode 1 has no goals"):
        score(DETOUR, replace(episode(), goals=()))
    for distances in (DETOUR.goal_distances[:-1], (*DETOUR.goal_distances, 1.0), ()):
        with pytest.raises(ValueError, match="one value per pose"):
            score(replace(DETOUR, goal_distances=distances), episode())
