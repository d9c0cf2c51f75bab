"""What a page shows of a trajectory, in the form that its script reads; see `payload`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlnbench.interfaces import Trajectory

_FLAT_CM = 5


@dataclass(frozen=True, slots=True)
class Walk:
    """A trajectory as it is shown, a tenth of its size. height: where it begins, meters."""

    height: float
    shown: dict[str, Any]


def walk(trajectory: Trajectory) -> Walk:
    positions = trajectory.positions
    moved = np.any(positions[1:] != positions[:-1], axis=1)
    letters = ord("A") + np.array(trajectory.actions, dtype=np.uint8) + 6 * moved
    letters = (letters + 12 * np.array(trajectory.collided, dtype=np.uint8)).astype(np.uint8)
    kept = np.concatenate([[True], moved])
    result: dict[str, Any] = {
        "acts": letters.tobytes().decode("ascii"),
        "yaw": round(math.degrees(trajectory.poses[0].yaw)),
        "path": [np.array(part) for part in encode_path(positions[kept])],  # of many walks, smaller than lists
    }
    if trajectory.goal_distances:
        distances = np.array(trajectory.goal_distances)[kept]
        result["dist"] = np.where(np.isfinite(distances), np.round(100 * distances), -1).astype(np.int64)
    return Walk(trajectory.poses[0].position[1], result)


def encode_path(points: NDArray[np.float64]) -> list[list[int]]:
    """(n, 3) points in meters as [[x, z, dx, dz, ...]], with [y, dy, ...] unless they lie on one level."""
    whole = np.round(100 * points).astype(int)
    steps = np.diff(whole, axis=0, prepend=0)
    level = [int(whole[0, 1])] if np.ptp(whole[:, 1]) < _FLAT_CM else steps[:, 1].tolist()
    return [steps[:, [0, 2]].ravel().tolist(), level]


def cm(meters: float) -> int:
    """Whole centimeters."""
    return round(100 * meters)
