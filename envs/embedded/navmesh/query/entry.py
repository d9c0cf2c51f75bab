"""What Python calls: one compiled function per question.

Numbers travel through `io`, a (16,) float32 array that is reused, because an array argument costs far less than
many scalars: first point in 0-2, second in 3-5, result point in 6-8, one number in 9, position and normal of a hit
in 10-15.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.query.nearest import height_on, nearest
from envs.embedded.navmesh.query.obstacles import closest_wall
from envs.embedded.navmesh.query.path import shortest
from envs.embedded.navmesh.query.step import step
from envs.embedded.navmesh.query.surface import F32, Table
from envs.embedded.navmesh.query.topdown import navigable

Float32s = NDArray[np.float32]

_NAN: Any = np.float32(np.nan)


@kernel
def snap(table: Table, io: Float32s, island: int) -> int:
    """Nearest polygon of the first point; the nearest point or NaN goes to the result."""
    poly, x, y, z = nearest(table, io[0], io[1], io[2], island)
    if poly < 0:
        x = y = z = _NAN
    io[6], io[7], io[8] = x, y, z
    return poly


@kernel
def stands(table: Table, io: Float32s) -> bool:
    """Whether the first point is on the navmesh, give or take the number in height."""
    return navigable(table, io[0], io[1], io[2], io[9]) >= 0


@kernel
def settle(table: Table, io: Float32s, poly: int) -> None:
    """Put the first point, which lies over a polygon, on its surface."""
    over, height = height_on(table, poly, io[0], io[2])
    io[6], io[7], io[8] = io[0], height if over else io[1], io[2]


@kernel
def move(table: Table, io: Float32s, sliding: bool) -> None:
    """A step from the first to the second point."""
    io[6], io[7], io[8] = step(table, io[0:3], io[3:6], sliding)


@kernel
def wall(table: Table, io: Float32s) -> F32:
    """Distance of the first point to the nearest wall within the number; the hit is filled in."""
    return closest_wall(table, io[0:3], io[9], io[10:16])


@kernel
def route(table: Table, starts: Float32s, goals: Float32s, line: Float32s, lengths: Float32s) -> tuple[int, int]:
    """Shortest paths from every start to the nearest of `goals`: (points in `line`, goal) of the last one."""
    size, goal = 0, -1
    for k in range(len(starts)):
        size, lengths[k], goal = shortest(table, starts[k], goals, line)
    return size, goal
