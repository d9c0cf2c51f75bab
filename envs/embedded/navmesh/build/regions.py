"""Watershed partition of the walkable surface.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.build.compact import Surface
from envs.embedded.navmesh.build.kinds import Flag, Int

MAX_REGIONS = 0x7FFF
"""Most regions a build can number; a larger watershed is refused."""

_STACKS = 8
_EXPAND_STEPS = 8
_FAR = 0xFFFF


@inner_kernel
def _sort_by_level(
    surface: Surface,
    distance: NDArray[Any],
    region: NDArray[Any],
    level: Int,
    stacks: NDArray[Any],
    sizes: NDArray[Any],
) -> None:
    """Put the unassigned floors of the next eight levels on one stack each, higher ones on the first."""
    for slot in range(_STACKS):
        sizes[slot] = 0
    top = level >> 1
    for i in range(len(region)):
        if surface.area[i] == 0 or region[i] != 0:
            continue
        slot = max(top - (distance[i] >> 1), 0)
        if slot < _STACKS:
            stacks[slot, sizes[slot]] = i
            sizes[slot] += 1


@kernel
def _expand(
    surface: Surface, region: NDArray[Any], steps: NDArray[Any], stack: NDArray[Any], size: Int, max_rounds: Int
) -> Int:
    """Grow regions into the floors on the stack, one ring a round; the number of floors left on it.

    max_rounds: 0 for as many rounds as there is growth.
    """
    left = 0
    for k in range(size):
        if region[stack[k]] == 0:
            stack[left] = stack[k]
            left += 1
    size = left
    grown = np.empty(size, np.int32)
    grown_region = np.empty(size, np.uint16)
    grown_steps = np.empty(size, np.int32)
    rounds = 0
    while size > 0:
        n_grown = 0
        left = 0
        for k in range(size):
            i = stack[k]
            best = _FAR
            owner = 0
            for direction in range(4):
                a = surface.neighbor[i, direction]
                if a == -1 or surface.area[a] != surface.area[i]:
                    continue
                if region[a] != 0 and steps[a] + 2 < best:
                    owner = region[a]
                    best = steps[a] + 2
            if owner != 0:
                grown[n_grown] = i
                grown_region[n_grown] = owner
                grown_steps[n_grown] = best
                n_grown += 1
            else:
                stack[left] = i
                left += 1
        for k in range(n_grown):
            region[grown[k]] = grown_region[k]
            steps[grown[k]] = grown_steps[k]
        size = left
        rounds += 1
        if n_grown == 0 or rounds == max_rounds:
            break
    return size


@inner_kernel
def _touches_other(surface: Surface, region: NDArray[Any], i: Int, own: Int) -> Flag:
    """Whether one of the eight neighbors of floor `i` belongs to another region."""
    area = surface.area[i]
    for direction in range(4):
        a = surface.neighbor[i, direction]
        if a == -1 or surface.area[a] != area:
            continue
        if region[a] != 0 and region[a] != own:
            return True
        b = surface.neighbor[a, (direction + 1) & 3]
        if b != -1 and surface.area[b] == area and region[b] != 0 and region[b] != own:
            return True
    return False


@inner_kernel
def _flood(
    surface: Surface,
    distance: NDArray[Any],
    region: NDArray[Any],
    seed: Int,
    level: Int,
    new: Int,
    stack: NDArray[Any],
) -> Flag:
    """Start region `new` at floor `seed` and fill it down to two levels below; whether it kept any floor."""
    area = surface.area[seed]
    floor_level = max(level - 2, 0)
    region[seed] = new
    stack[0] = seed
    size = 1
    kept = False
    while size > 0:
        size -= 1
        i = stack[size]
        if _touches_other(surface, region, i, new):
            region[i] = 0
            continue
        kept = True
        for direction in range(4):
            a = surface.neighbor[i, direction]
            if a != -1 and surface.area[a] == area and region[a] == 0 and distance[a] >= floor_level:
                region[a] = new
                stack[size] = a
                size += 1
    return kept


@kernel
def watershed(surface: Surface, distance: NDArray[Any], largest: Int) -> tuple[NDArray[np.uint16], Int]:
    """Region of every floor (0 none) and the number of the next region; MAX_REGIONS + 1 where they ran out."""
    n = len(distance)
    region = np.zeros(n, np.uint16)
    steps = np.zeros(n, np.int32)
    stacks = np.empty((_STACKS, n), np.int32)
    sizes = np.zeros(_STACKS, np.int64)
    work = np.empty(n, np.int32)
    following = np.int64(1)
    level = (largest + 1) & ~1
    slot = -1
    while level > 0:
        level = max(level - 2, 0)
        slot = (slot + 1) & (_STACKS - 1)
        if slot == 0:
            _sort_by_level(surface, distance, region, level, stacks, sizes)
        else:
            for k in range(sizes[slot - 1]):
                i = stacks[slot - 1, k]
                if region[i] == 0:
                    stacks[slot, sizes[slot]] = i
                    sizes[slot] += 1
        rounds = np.int64(_EXPAND_STEPS if level > 0 else 0)
        sizes[slot] = _expand(surface, region, steps, stacks[slot], sizes[slot], rounds)
        for k in range(sizes[slot]):
            i = stacks[slot, k]
            if region[i] == 0 and _flood(surface, distance, region, i, level, following, work):
                following += 1
                if following > MAX_REGIONS:
                    return region, following
    left = np.int64(0)
    for i in range(n):
        if region[i] == 0 and surface.area[i] != 0:
            work[left] = i
            left += 1
    _expand(surface, region, steps, work, left, np.int64(0))
    return region, following
