"""One action of the body: turn or move forward, then the navmesh decides where it ends up.

Follows habitat-sim's agent controls and the quaternion arithmetic of Magnum (both MIT license), in float32.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.query.geometry import ONE, TWO, ZERO, put_point
from envs.embedded.navmesh.query.step import step
from envs.embedded.navmesh.query.surface import F32, TARGET, Table, scratch
from vlnbench.interfaces import Action

Float32s = NDArray[np.float32]

_COLLISION_SLACK = 1e-5


def advance(
    pathfinder: PathFinder,
    position: ArrayLike,
    rotation: ArrayLike,
    action: int,
    forward_m: float,
    turn_deg: float,
    sliding: bool,
) -> tuple[Float32s, Float32s, bool]:
    """Do one action: (position (3,), rotation (4,) as x, y, z, w, whether the body was held back).

    position in meters, rotation a unit quaternion (x, y, z, w), world frame; action is MOVE_FORWARD, TURN_LEFT or
    TURN_RIGHT. The navmesh is asked after turns too, so a body that starts off the navmesh is put onto it by its
    first action. A move counts as a collision when its squared length falls short by more than 1e-5 m2.

    Raises ValueError for any other action.
    """
    state = np.empty(7, dtype=np.float32)
    state[:3] = position
    state[3:] = rotation
    if action == Action.MOVE_FORWARD:
        collided = act(pathfinder.surface.table, state, float(forward_m), 0.0, 1.0, sliding)
    elif action in (Action.TURN_LEFT, Action.TURN_RIGHT):
        sine, cosine = half_angle(turn_deg if action == Action.TURN_LEFT else -turn_deg)
        collided = act(pathfinder.surface.table, state, 0.0, sine, cosine, sliding)
    else:
        raise ValueError(f"action {action} does not move the body")
    return state[:3], state[3:], collided


@lru_cache(maxsize=64)
def half_angle(degrees: float) -> tuple[float, float]:
    """Sine and cosine of half an angle that was rounded to float32 radians."""
    half = float(np.float32(math.radians(degrees)) * np.float32(0.5))
    return math.sin(half), math.cos(half)


@kernel
def _forward(state: Float32s, amount: F32, end: Float32s) -> None:
    """Where a move along the local -z axis leads."""
    x, y, z, w = state[3], state[4], state[5], state[6]
    end[0] = state[0] + (TWO * x * z + TWO * y * w) * -amount
    end[1] = state[1] + (TWO * y * z - TWO * x * w) * -amount
    end[2] = state[2] + (ONE - TWO * (x * x) - TWO * (y * y)) * -amount


@kernel
def _turn(state: Float32s, s: F32, c: F32) -> None:
    """Turn about the local y axis by twice the angle with sine s and cosine c, and renormalize."""
    x, y, z, w = state[3], state[4], state[5], state[6]
    # The products with the zero parts of the turn keep their place: they decide the sign of a zero.
    qx = w * ZERO + c * x + (y * ZERO - z * s)
    qy = w * s + c * y + (z * ZERO - x * ZERO)
    qz = w * ZERO + c * z + (x * s - y * ZERO)
    qw = w * c - (x * ZERO + y * s + z * ZERO)
    length = math.sqrt(qx * qx + qy * qy + qz * qz + qw * qw)
    state[3], state[4], state[5], state[6] = qx / length, qy / length, qz / length, qw / length


@kernel
def act(table: Table, state: Float32s, amount: float, sine: float, cosine: float, sliding: bool) -> bool:
    """Move by `amount`, or turn where that is 0, and put the body on the navmesh; whether it fell short."""
    end = scratch(table)[TARGET]
    put_point(end, state)
    if amount != 0.0:
        _forward(state, np.float32(amount), end)
    else:
        _turn(state, np.float32(sine), np.float32(cosine))
    x, y, z = step(table, state[:3], end, sliding)
    dx, dy, dz = end[0] - state[0], end[1] - state[1], end[2] - state[2]
    wanted = dx * dx + dy * dy + dz * dz
    dx, dy, dz = x - state[0], y - state[1], z - state[2]
    moved = dx * dx + dy * dy + dz * dz
    state[0], state[1], state[2] = end[0] + (x - end[0]), end[1] + (y - end[1]), end[2] + (z - end[2])
    return bool(np.float64(moved) + _COLLISION_SLACK < np.float64(wanted))
