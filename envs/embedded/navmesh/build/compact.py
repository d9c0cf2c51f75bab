"""The open space above walkable spans: neighbors, distance to walls, erosion by the agent radius.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license). Neighbors are stored as span indices instead
of layers within a cell, so that later steps walk the surface without looking cells up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.build.filters import Spans, step_x, step_z
from envs.embedded.navmesh.build.grid import Grid
from envs.embedded.navmesh.build.kinds import Int

MAX_LAYERS = 62
"""Highest layer within a column that a neighbor may lie on."""

_MAX_GAP = 255
_FAR = 0xFFFF


class Surface(NamedTuple):
    """Floors of the walkable spans, column after column, each from the bottom up.

    start: (columns + 1,) first floor of each column. height: (n,) in cells. neighbor: (n, 4) floor that a step in
    each direction leads to, -1 none. area: (n,) area codes, 0 where erosion removed the floor.
    """

    start: NDArray[np.int32]
    height: NDArray[np.int32]
    neighbor: NDArray[np.int32]
    area: NDArray[np.uint8]


@kernel
def build_surface(spans: Spans, grid: Grid) -> Surface:
    """Keep the walkable spans and link neighbors that an agent can step between."""
    count = 0
    for i in range(len(spans.area)):
        count += spans.area[i] != 0
    start = np.empty(len(spans.start), np.int32)
    height = np.empty(count, np.int32)
    roof = np.empty(count, np.int32)
    area = np.empty(count, np.uint8)
    neighbor = np.empty((count, 4), np.int32)
    n = 0
    for column in range(len(start) - 1):
        start[column] = n
        for i in range(spans.start[column], spans.start[column + 1]):
            if spans.area[i] != 0:
                height[n] = spans.top[i]
                roof[n] = spans.top[i] + min(max(spans.ceiling[i] - spans.top[i], 0), _MAX_GAP)
                area[n] = spans.area[i]
                n += 1
    start[len(start) - 1] = n
    surface = Surface(start, height, neighbor, area)
    for z in range(grid.depth):
        for x in range(grid.width):
            column = x + z * grid.width
            for i in range(start[column], start[column + 1]):
                for direction in range(4):
                    nx = x + step_x(direction)
                    nz = z + step_z(direction)
                    inside = nx >= 0 and nz >= 0 and nx < grid.width and nz < grid.depth
                    neighbor[i, direction] = _step(surface, roof, i, nx + nz * grid.width, grid) if inside else -1
    return surface


@inner_kernel
def _step(surface: Surface, roof: NDArray[Any], i: Int, column: Int, grid: Grid) -> Int:
    """Lowest floor of `column` that can be stepped onto from floor `i`, or -1."""
    first = surface.start[column]
    for k in range(first, surface.start[column + 1]):
        opening = min(roof[i], roof[k]) - max(surface.height[i], surface.height[k])
        rise = abs(surface.height[k] - surface.height[i])
        if opening >= grid.walkable_height and rise <= grid.walkable_climb and k - first <= MAX_LAYERS:
            return k
    return -1


@inner_kernel
def _sweep(surface: Surface, distance: NDArray[Any]) -> None:
    """Spread distances over the surface in two passes: 2 per straight step, 3 per diagonal one."""
    neighbor = surface.neighbor
    n = len(distance)
    for forward in range(2):
        for k in range(n):
            i = k if forward == 0 else n - 1 - k
            best = distance[i]
            for half in range(2):
                straight = (0 if half == 0 else 3) if forward == 0 else (2 if half == 0 else 1)
                corner = (3 if half == 0 else 2) if forward == 0 else (1 if half == 0 else 0)
                a = neighbor[i, straight]
                if a == -1:
                    continue
                best = min(best, distance[a] + 2)
                b = neighbor[a, corner]
                if b != -1:
                    best = min(best, distance[b] + 3)
            distance[i] = best


@kernel
def erode(surface: Surface, radius: Int) -> None:
    """Clear floors closer than `radius` cells to the edge of the walkable surface."""
    n = len(surface.area)
    distance = np.full(n, _FAR, np.int32)
    for i in range(n):
        if surface.area[i] == 0:
            distance[i] = 0
            continue
        for direction in range(4):
            a = surface.neighbor[i, direction]
            if a == -1 or surface.area[a] == 0:
                distance[i] = 0
    _sweep(surface, distance)
    for i in range(n):
        if distance[i] < 2 * radius:
            surface.area[i] = 0


@kernel
def distance_field(surface: Surface) -> tuple[NDArray[np.int32], Int]:
    """Distance of each floor to the border of its area (2 per cell), blurred, and the largest unblurred one."""
    n = len(surface.area)
    sharp = np.full(n, _FAR, np.int32)
    for i in range(n):
        for direction in range(4):
            a = surface.neighbor[i, direction]
            if a == -1 or surface.area[a] != surface.area[i]:
                sharp[i] = 0
    _sweep(surface, sharp)
    largest = 0
    for i in range(n):
        largest = max(largest, sharp[i])
    blurred = np.empty(n, np.int32)
    for i in range(n):
        own = sharp[i]
        if own <= 2:
            blurred[i] = own
            continue
        total = own
        for direction in range(4):
            a = surface.neighbor[i, direction]
            if a == -1:
                total += 2 * own
                continue
            b = surface.neighbor[a, (direction + 1) & 3]
            total += sharp[a] + (own if b == -1 else sharp[b])
        blurred[i] = (total + 5) // 9
    return blurred, largest
