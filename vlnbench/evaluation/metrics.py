"""VLN metrics as pure functions of a recorded trajectory.

Definitions follow VLN-CE (Krantz et al. 2020); nDTW and SDTW Ilharco et al. 2019; CLS Jain et al. 2019. Distances
are in meters, rates in [0, 1]. Nothing here is NaN: where a value does not exist it is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vlnbench.interfaces import Action, Episode, Trajectory

METRICS_VERSION = 1
"""Raised with every change that can change a score. Rows of another version are scored anew by `rescore`."""

UNREACHABLE_POLICY = "unreachable-fails-v1"
"""Episodes whose goal cannot be reached from the start: success 0, SPL 0, left out of the NE means, counted."""

Failure = Literal[
    "success", "passed_goal", "stopped_early", "stuck", "never_stopped", "unreachable", "error", "unknown"
]
"""How an episode ended. Every episode has exactly one kind; the first that applies, in this order:

error: the episode broke before it could be scored (its row says why).
unreachable: there is no path from the start to a goal.
success: as in `Scores`.
passed_goal: some pose was within the success distance, and yet the episode did not succeed.
stopped_early: STOP was called, and no pose was within the success distance.
stuck: no STOP; during the last `STUCK_ACTIONS` actions the agent tried MOVE_FORWARD at least once and stayed
    within `STUCK_RADIUS_M` of where it ended.
never_stopped: no STOP for any other reason: the step budget ran out.
unknown: imported; the file tells of no success, and not how the episode ended.
"""

FAILURES: tuple[Failure, ...] = get_args(Failure)

STUCK_ACTIONS = 25
STUCK_RADIUS_M = 0.05


@dataclass(frozen=True, slots=True)
class Scores:
    """Metrics of one episode.

    success: STOP was called strictly closer than the success distance (geodesic), and the goal could be reached
    from the start. oracle_success: some pose of the trajectory was that close. spl: success * d0 / max(d0,
    path_length), d0 being `geodesic_start`, the simulator's own distance at reset. distance_to_goal (NE),
    oracle_distance and geodesic_start: geodesic meters; None where there is no path. ndtw, sdtw, cls: against the
    ground-truth locations, None without ground truth. path_length: sum of 3-D step lengths. steps: actions, STOP
    included. failure: how the episode ended, see `Failure`.
    """

    success: float
    oracle_success: float
    spl: float
    distance_to_goal: float | None
    oracle_distance: float | None
    geodesic_start: float | None
    ndtw: float | None
    sdtw: float | None
    cls: float | None
    path_length: float
    steps: int
    collisions: int
    stopped: bool
    failure: Failure


def score(trajectory: Trajectory, episode: Episode, success_distance_m: float = 3.0) -> Scores:
    """Score one trajectory.

    `trajectory.goal_distances` must hold one geodesic distance per pose.
    """
    if not episode.goals:
        raise ValueError(f"episode {episode.episode_id} has no goals; it cannot be scored")
    distances = trajectory.goal_distances
    if len(distances) != len(trajectory.poses):
        raise ValueError("goal_distances must hold one value per pose")
    positions = trajectory.positions
    final, start, nearest = distances[-1], distances[0], min(distances)
    path_length = _length(positions)
    success = float(trajectory.stopped and final < success_distance_m and math.isfinite(start))
    ndtw = cls = None
    if episode.ground_truth is not None:
        reference = np.array(episode.ground_truth.locations)
        ndtw = normalized_dtw(positions, reference, success_distance_m)
        cls = coverage_weighted_by_length(positions, reference, success_distance_m)
    return Scores(
        success=success,
        oracle_success=float(nearest < success_distance_m),
        spl=success * _path_efficiency(start, path_length),
        distance_to_goal=_finite(final),
        oracle_distance=_finite(nearest),
        geodesic_start=_finite(start),
        ndtw=ndtw,
        sdtw=None if ndtw is None else success * ndtw,
        cls=cls,
        path_length=path_length,
        steps=len(trajectory.actions),
        collisions=sum(trajectory.collided),
        stopped=trajectory.stopped,
        failure=failure_kind(trajectory, success_distance_m),
    )


def failure_kind(trajectory: Trajectory, success_distance_m: float) -> Failure:
    """How a scored episode ended; never "error" or "unknown".

    `goal_distances` must hold one geodesic distance per pose.
    """
    distances = trajectory.goal_distances
    if not math.isfinite(distances[0]):
        return "unreachable"
    if trajectory.stopped and distances[-1] < success_distance_m:
        return "success"
    if min(distances) < success_distance_m:
        return "passed_goal"
    if trajectory.stopped:
        return "stopped_early"
    return "stuck" if _ends_stuck(trajectory) else "never_stopped"


def coverage_weighted_by_length(
    path: NDArray[np.float64], reference: NDArray[np.float64], threshold_m: float
) -> float:
    """CLS of Jain et al. 2019 (arXiv 1905.12255): path coverage times length score, in [0, 1].

    path: (n, 3) agent positions P; reference: (m, 3) ground-truth locations R; threshold_m: d_th. Distances
    between points are Euclidean; PL is the sum of 3-D step lengths.
    Coverage PC = mean over r in R of exp(-min over p in P of |r - p| / d_th).
    Length score LS = EPL / (EPL + |EPL - PL(P)|), where EPL = PC * PL(R) is the length expected at that coverage;
    1 where both lengths are 0.
    """
    nearest = np.linalg.norm(reference[:, None, :] - path[None, :, :], axis=2).min(axis=1)
    coverage = float(np.exp(-nearest / threshold_m).mean())
    expected, length = coverage * _length(reference), _length(path)
    longest = expected + abs(expected - length)
    return coverage if longest == 0.0 else coverage * expected / longest


def normalized_dtw(path: NDArray[np.float64], reference: NDArray[np.float64], success_distance_m: float) -> float:
    """exp(-DTW(path, reference) / (len(reference) * success_distance)), in (0, 1].

    Points of `path` equal to their predecessor are dropped first, as VLN-CE's measure does.
    """
    moved = np.ones(len(path), dtype=bool)
    moved[1:] = np.any(path[1:] != path[:-1], axis=1)
    cost = dynamic_time_warping(path[moved], reference)
    return math.exp(-cost / (len(reference) * success_distance_m))


def dynamic_time_warping(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Exact DTW cost between (n, 3) and (m, 3) with Euclidean point distance.

    Sweeps anti-diagonals: all cells of one depend only on the two before it.
    """
    if len(a) == 0 or len(b) == 0:
        raise ValueError("dynamic time warping needs at least one point on each side")
    n, m = len(a), len(b)
    distance = np.linalg.norm(a[:, None, :] - b[None, :, :], axis=2)
    flat, stride = distance.ravel(), max(1, m - 1)  # from a cell of an anti-diagonal to the next one
    # Row i of a diagonal array holds cell (i, k - i); index 0 is a border of infinities.
    before = np.full(n + 1, np.inf)
    previous = np.full(n + 1, np.inf)
    before[0] = 0.0  # lets cell (0, 0) start from zero
    for k in range(n + m - 1):
        low, end = max(0, k - m + 1), min(n, k + 1)
        best = np.minimum(previous[low:end], previous[low + 1 : end + 1])
        np.minimum(best, before[low:end], out=best)
        best += flat[low * (m - 1) + k :: stride][: end - low]
        current = np.full(n + 1, np.inf)
        current[low + 1 : end + 1] = best
        before, previous = previous, current
    return float(previous[n])


def _ends_stuck(trajectory: Trajectory) -> bool:
    if len(trajectory.actions) < STUCK_ACTIONS or Action.MOVE_FORWARD not in trajectory.actions[-STUCK_ACTIONS:]:
        return False
    last = trajectory.positions[-STUCK_ACTIONS - 1 :]
    return bool(np.linalg.norm(last - last[-1], axis=1).max() <= STUCK_RADIUS_M)


def _length(path: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum())


def _path_efficiency(start_distance: float, path_length: float) -> float:
    if not math.isfinite(start_distance):
        return 0.0
    longest = max(start_distance, path_length)
    return 1.0 if longest == 0.0 else start_distance / longest


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
