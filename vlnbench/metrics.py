"""VLN metrics as pure functions of a recorded trajectory.

Definitions follow VLN-CE (Krantz et al. 2020) and, for nDTW and SDTW, Ilharco et al. 2019. Distances are in
metres, rates in [0, 1]. Nothing here is NaN: where a value does not exist it is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlnbench.interfaces import Episode, Trajectory

UNREACHABLE_POLICY = "unreachable-fails-v1"
"""Episodes whose goal cannot be reached from the start: success 0, SPL 0, left out of the NE means, counted."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Metrics of one episode.

    success: STOP was called strictly closer than the success distance (geodesic). oracle_success: some pose of
    the trajectory was that close. spl: success * d0 / max(d0, path_length), d0 being `geodesic_start`, the
    simulator's own distance at reset. distance_to_goal (NE), oracle_distance and geodesic_start: geodesic
    metres; None where there is no path. ndtw, sdtw: against the ground-truth locations, None without ground
    truth. path_length: sum of 3-D step lengths. steps: actions, STOP included.
    """

    success: float
    oracle_success: float
    spl: float
    distance_to_goal: float | None
    oracle_distance: float | None
    geodesic_start: float | None
    ndtw: float | None
    sdtw: float | None
    path_length: float
    steps: int
    collisions: int
    stopped: bool


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
    path_length = float(np.linalg.norm(np.diff(positions, axis=0), axis=1).sum())
    success = float(trajectory.stopped and final < success_distance_m)
    ndtw = None
    if episode.ground_truth is not None:
        ndtw = normalized_dtw(positions, np.array(episode.ground_truth.locations), success_distance_m)
    return Scores(
        success=success,
        oracle_success=float(nearest < success_distance_m),
        spl=success * _path_efficiency(start, path_length),
        distance_to_goal=_finite(final),
        oracle_distance=_finite(nearest),
        geodesic_start=_finite(start),
        ndtw=ndtw,
        sdtw=None if ndtw is None else success * ndtw,
        path_length=path_length,
        steps=len(trajectory.actions),
        collisions=sum(trajectory.collided),
        stopped=trajectory.stopped,
    )


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
    # Row i of a diagonal array holds cell (i, k - i); index 0 is a border of infinities.
    before = np.full(n + 1, np.inf)
    previous = np.full(n + 1, np.inf)
    before[0] = 0.0  # lets cell (0, 0) start from zero
    for k in range(n + m - 1):
        low, high = max(0, k - m + 1), min(n - 1, k)
        rows = np.arange(low, high + 1)
        best = np.minimum(np.minimum(previous[rows], previous[rows + 1]), before[rows])
        current = np.full(n + 1, np.inf)
        current[rows + 1] = best + distance[rows, k - rows]
        before, previous = previous, current
    return float(previous[n])


def _path_efficiency(start_distance: float, path_length: float) -> float:
    if not math.isfinite(start_distance):
        return 0.0
    longest = max(start_distance, path_length)
    return 1.0 if longest == 0.0 else start_distance / longest


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
