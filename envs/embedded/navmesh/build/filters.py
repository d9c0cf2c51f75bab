"""Which spans an agent can stand on: low obstacles, ledges and low ceilings.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.build.grid import Grid
from envs.embedded.navmesh.build.kinds import Int
from envs.embedded.navmesh.build.rasterize import AREA, HIGH, LOW, NEXT, at

SKY = 0xFFFF
"""Ceiling of a topmost span, in cell heights."""


@inner_kernel
def step_x(direction: Int) -> Int:
    """Cells that a step in one of the four directions (-x, +z, +x, -z) leads along x."""
    return (direction - 1) * (1 - (direction & 1))


@inner_kernel
def step_z(direction: Int) -> Int:
    """Cells that a step in one of the four directions (-x, +z, +x, -z) leads along z."""
    return (2 - direction) * (direction & 1)


class Spans(NamedTuple):
    """Spans of all columns, column after column, each from the bottom up.

    start: (columns + 1,) first span of each column. bottom, top, ceiling: (n,) heights in cells, the ceiling being
    the bottom of the next span. area: (n,) area codes, 0 for ground that cannot be walked on.
    """

    start: NDArray[np.int32]
    bottom: NDArray[np.int32]
    top: NDArray[np.int32]
    ceiling: NDArray[np.int32]
    area: NDArray[np.uint8]


@kernel
def flatten(head: NDArray[Any], table: NDArray[Any]) -> Spans:
    """Linked columns as contiguous arrays."""
    start = np.empty(len(head) + 1, np.int32)
    count = 0
    for column in range(len(head)):
        start[column] = count
        span = head[column]
        while span != 0:
            count += 1
            span = table[span, NEXT]
    start[len(head)] = count
    bottom = np.empty(count, np.int32)
    top = np.empty(count, np.int32)
    ceiling = np.empty(count, np.int32)
    area = np.empty(count, np.uint8)
    i = 0
    for column in range(len(head)):
        span = head[column]
        while span != 0:
            bottom[i] = table[span, LOW]
            top[i] = table[span, HIGH]
            area[i] = table[span, AREA]
            span = table[span, NEXT]
            ceiling[i] = SKY if span == 0 else table[span, LOW]
            i += 1
    return Spans(start, bottom, top, ceiling, area)


@kernel
def filter_low_obstacles(spans: Spans, climb: Int) -> None:
    """Make the top of an obstacle walkable where one step up from walkable ground reaches it."""
    for column in range(len(spans.start) - 1):
        was_walkable = False
        for i in range(spans.start[column], spans.start[column + 1]):
            walkable = spans.area[i] != 0
            if not walkable and was_walkable and abs(spans.top[i] - spans.top[i - 1]) <= climb:
                spans.area[i] = spans.area[i - 1]
            was_walkable = walkable


@inner_kernel
def _clear_row(spans: Spans, z: Int, grid: Grid) -> None:
    """Clear spans of a row where a neighboring column drops too far or those in reach differ too much in height.

    One function for a whole row: passing the arrays on for each span would take longer than the test.
    """
    start, bottom, top, ceilings, area = spans
    for x in range(grid.width):
        column = x + z * grid.width
        # Beyond the grid everything drops.
        rim = x == 0 or z == 0 or x == grid.width - 1 or z == grid.depth - 1
        for i in range(start[at(column)], start[at(column + 1)]):
            if area[at(i)] == 0:
                continue
            floor, ceiling = top[at(i)], ceilings[at(i)]
            lowest = highest = floor
            drops = rim
            for direction in range(4):
                if drops:
                    break
                other = column + step_x(direction) + step_z(direction) * grid.width
                first, end = start[at(other)], start[at(other + 1)]
                gap_top = bottom[at(first)] if first < end else SKY
                drops = min(ceiling, gap_top) - floor > grid.walkable_height
                for k in range(first, end):
                    neighbor = top[at(k)]
                    if min(ceiling, ceilings[at(k)]) - max(floor, neighbor) > grid.walkable_height:
                        lowest = min(lowest, neighbor)
                        if neighbor - floor <= grid.walkable_climb:
                            highest = max(highest, neighbor)
            if drops or highest - lowest > grid.walkable_climb:
                area[at(i)] = 0


@kernel
def filter_ledges(spans: Spans, grid: Grid) -> None:
    """Clear walkable spans beside a drop or on a steep flight."""
    for z in range(grid.depth):
        _clear_row(spans, z, grid)


@kernel
def filter_low_ceilings(spans: Spans, walkable_height: Int) -> None:
    """Clear walkable spans without room for the agent above them."""
    for i in range(len(spans.area)):
        if spans.ceiling[i] - spans.top[i] < walkable_height:
            spans.area[i] = 0
