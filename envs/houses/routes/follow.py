"""Ground-truth actions: walk a shortest path with 15 degree turns and 0.25 m steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envs.embedded.navmesh.motion import advance
from envs.embedded.navmesh.pathfinder import PathFinder
from vlnbench.interfaces import Action, Quaternion

FORWARD_M = 0.25
TURN_DEG = 15.0
STOP_M = 0.35
_NEAR_CORNER_M = 0.12
_DRIFT_DEG = 11.0
"""How far the next corner may be off the heading of a walking body before it corrects: fewer zigzags."""
_MAX_ACTIONS = 300


@dataclass(frozen=True)
class FollowedPath:
    """Actions ending with STOP, and the position at the start and after each MOVE_FORWARD.

    `goal_distance` is what is left to the goal, geodesic meters.
    """

    actions: tuple[int, ...]
    locations: tuple[tuple[float, float, float], ...]
    goal_distance: float

    @property
    def length(self) -> float:
        """Meters walked."""
        return sum(math.dist(a, b) for a, b in pairwise(self.locations))


def rotation_of(yaw_deg: float) -> Quaternion:
    """Quaternion (x, y, z, w) of a heading; positive yaw turns left."""
    half = math.radians(yaw_deg) / 2
    return 0.0, math.sin(half), 0.0, math.cos(half)


def follow(pathfinder: PathFinder, start: ArrayLike, yaw_deg: float, goal: ArrayLike) -> FollowedPath | None:
    """Walk to within STOP_M of the goal (geodesic); None if the walk gets stuck or takes too long."""
    position = np.asarray(start, dtype=np.float32)
    rotation = np.asarray(rotation_of(yaw_deg), dtype=np.float32)
    actions: list[int] = []
    locations = [_point(position)]
    for _ in range(_MAX_ACTIONS):
        path = pathfinder.find_path(position, goal)
        if path.geodesic_distance <= STOP_M:
            return FollowedPath((*actions, int(Action.STOP)), tuple(locations), path.geodesic_distance)
        if math.isinf(path.geodesic_distance):
            return None
        walking = bool(actions) and actions[-1] == Action.MOVE_FORWARD
        limit = _DRIFT_DEG if walking else TURN_DEG / 2 + 0.1
        action = _towards(path.points, position, rotation, limit)
        moved, rotation, _ = advance(
            pathfinder, position, rotation, int(action), FORWARD_M, TURN_DEG, sliding=True
        )
        actions.append(int(action))
        if action == Action.MOVE_FORWARD:
            if np.linalg.norm(moved - position) < 0.02:
                return None
            locations.append(_point(moved))
        position = moved
    return None


def _towards(
    points: NDArray[np.float32], position: NDArray[np.float32], rotation: NDArray[np.float32], limit: float
) -> Action:
    """Forward if the next corner lies within `limit` degrees of the heading, else a turn towards it."""
    corner = next((p for p in points[1:-1] if _plan_distance(p, position) > _NEAR_CORNER_M), points[-1])
    wanted = math.atan2(-(float(corner[0]) - float(position[0])), -(float(corner[2]) - float(position[2])))
    yaw = 2.0 * math.atan2(float(rotation[1]), float(rotation[3]))
    turn = math.remainder(wanted - yaw, 2.0 * math.pi)
    if abs(turn) <= math.radians(limit):
        return Action.MOVE_FORWARD
    return Action.TURN_LEFT if turn > 0 else Action.TURN_RIGHT


def _plan_distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return math.hypot(float(a[0]) - float(b[0]), float(a[2]) - float(b[2]))


def _point(position: NDArray[np.float32]) -> tuple[float, float, float]:
    return float(position[0]), float(position[1]), float(position[2])
