"""The greedy choice of the shortest-path follower, in one call: hundreds of queries decide about one action.

Rules and float32 arithmetic of habitat-sim's GreedyGeodesicFollower (MIT license).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.motion import act
from envs.embedded.navmesh.query.obstacles import closest_wall
from envs.embedded.navmesh.query.path import shortest
from envs.embedded.navmesh.query.surface import Table

Float32s = NDArray[np.float32]

_TURN_COST: Any = np.float32(0.0125)
_COLLISION_COST: Any = np.float32(0.25)
_CLOSE_COST: Any = np.float32(0.05)
_CLOSE_M: Any = np.float32(0.2)
_CLOSE_SEARCH_M: Any = np.float32(1.1) * _CLOSE_M
_GOOD_ENOUGH: Any = np.float32(0.99)  # of the largest possible reward, 1
_INFINITE: Any = np.float32(np.inf)


@kernel
def best_primitive(
    table: Table,
    state: Float32s,
    goals: Float32s,
    line: Float32s,
    body: NDArray[np.float64],
    headings: int,
    sliding: bool,
) -> int:
    """The best of the primitives "k turns to one side, then forward": 2 k to the left, 2 k + 1 to the right.

    -1 says to stop: the goal is near, out of reach, or nothing leads on. state (7,): position and rotation; goals
    (m, 3); line: room for a path; body (4,): meters forward, sine and cosine of half a turn to the left, radius of
    the goal in meters; headings: how many k are tried.
    """
    distance = shortest(table, state[:3], goals, line)[1]
    forward, sine, cosine, radius = body[0], body[1], body[2], np.float32(body[3])
    if distance < radius or distance == _INFINITE:
        return -1
    best_reward, best = -_COLLISION_COST, -1
    poses, end, hit = np.empty((2, 7), np.float32), np.empty(7, np.float32), np.empty(6, np.float32)
    poses[0], poses[1] = state, state
    for turns in range(headings):
        for side in range(2 if turns else 1):
            end[:] = poses[side]
            collided = act(table, end, forward, 0.0, 1.0, sliding)
            progress = (distance - shortest(table, end[:3], goals, line)[1]) / np.float32(forward)
            costs = _TURN_COST * np.float32(turns)
            if collided:
                costs += _COLLISION_COST
            if closest_wall(table, end[:3], _CLOSE_SEARCH_M, hit) < _CLOSE_M:
                costs += _CLOSE_COST
            if progress - costs > best_reward:
                best_reward, best = progress - costs, 2 * turns + side
        if best_reward > _GOOD_ENOUGH:
            break
        act(table, poses[0], 0.0, sine, cosine, sliding)
        act(table, poses[1], 0.0, -sine, cosine, sliding)
    return best
