"""Removal of small regions and merging of neighbors.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license). The regions around a region, in the order of
its contour, are a list; the lists of all regions share one growing pool. Which regions lie above or below a region
is a sorted table of pairs that never changes: merged regions are found through their members.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.build.compact import Surface
from envs.embedded.navmesh.build.kinds import Flag, Int

MAX_CONTOUR_STEPS = 40000
"""Steps after which walking round a region is given up."""

_HUGE = 0xFFFFFFF
_CACHE = 4096


class Regions(NamedTuple):
    """All regions of a build, by first number; row 0 stands for "no region".

    number: current number (0 removed). floors: number of floors, 0 once merged away. overlap: whether it lies
    above itself. first, size: its neighbors in the pool. stacked_start, stacked: regions above or below it, by
    first number. chain, tail: regions merged into it, as a linked list (-1 ends it) and the list's last member.
    """

    number: NDArray[np.int64]
    floors: NDArray[np.int64]
    overlap: NDArray[np.bool_]
    first: NDArray[np.int64]
    size: NDArray[np.int64]
    stacked_start: NDArray[np.int64]
    stacked: NDArray[np.int64]
    chain: NDArray[np.int64]
    tail: NDArray[np.int64]


@inner_kernel
def drop_repeats(ring: NDArray[Any], count: Int) -> Int:
    """Remove neighbors in a ring that repeat the one before; the new length, at least 1."""
    j = 0
    while j < count and count > 1:
        if ring[j] == ring[(j + 1) % count]:
            for k in range(j, count - 1):
                ring[k] = ring[k + 1]
            count -= 1
        else:
            j += 1
    return count


@inner_kernel
def _beyond(surface: Surface, region: NDArray[Any], i: Int, direction: Int) -> Int:
    """Region on the other side of an edge of floor `i`, 0 for none."""
    a = surface.neighbor[i, direction]
    return 0 if a == -1 else np.int64(region[a])


@inner_kernel
def _walk_ring(surface: Surface, region: NDArray[Any], i: Int, direction: Int, ring: NDArray[Any]) -> Int:
    """Regions met while walking round the region of floor `i`, from one of its border edges; their number."""
    start, start_direction = i, direction
    current = _beyond(surface, region, i, direction)
    ring[0] = current
    count = np.int64(1)
    for _ in range(MAX_CONTOUR_STEPS - 1):
        other = _beyond(surface, region, i, direction)
        if other != region[i]:
            if other != current:
                current = other
                ring[count] = other
                count += 1
            direction = (direction + 1) & 3
        else:
            i = surface.neighbor[i, direction]
            direction = (direction + 3) & 3
        if i == start and direction == start_direction:
            break
    return drop_repeats(ring, count)


@kernel
def stacked_pairs(surface: Surface, region: NDArray[Any]) -> NDArray[Any]:
    """Pairs (region << 32 | region above or below it); most repetitions are left out."""
    pairs = np.empty(1024, np.int64)
    seen = np.full(_CACHE, -1, np.int64)
    count = np.int64(0)
    for column in range(len(surface.start) - 1):
        first, end = surface.start[column], surface.start[column + 1]
        for i in range(first, end):
            for j in range(first, end):
                if i == j or region[i] == 0 or region[j] == 0:
                    continue
                pair = (np.int64(region[i]) << 32) | np.int64(region[j])
                slot = (np.int64(region[i]) * 31 + np.int64(region[j])) & (_CACHE - 1)
                if seen[slot] != pair:
                    seen[slot] = pair
                    pairs = _reserve(pairs, count, 1)
                    pairs[count] = pair
                    count += 1
    return pairs[:count].copy()


@kernel
def describe_regions(
    surface: Surface, region: NDArray[Any], pairs: NDArray[Any], total: Int
) -> tuple[Regions, NDArray[np.int64]]:
    """Size, overlap and neighbors of regions 0..total - 1, and the neighbor pool.

    pairs: those of `stacked_pairs`, sorted, without repetitions.
    """
    stacked_start = np.zeros(total + 1, np.int64)
    stacked = np.empty(len(pairs), np.int64)
    overlap = np.zeros(total, np.bool_)
    for k in range(len(pairs)):
        owner = pairs[k] >> 32
        stacked[k] = pairs[k] & 0xFFFFFFFF
        stacked_start[owner + 1] += 1
        if owner == stacked[k]:
            overlap[owner] = True
    for r in range(total):
        stacked_start[r + 1] += stacked_start[r]
    first = np.zeros(total, np.int64)
    count = np.zeros(total, np.int64)
    floors = np.zeros(total, np.int64)
    ring = np.empty(MAX_CONTOUR_STEPS, np.int64)
    pool = np.empty(1024, np.int64)
    used = np.int64(0)
    for i in range(len(region)):
        r = region[i]
        if r == 0:
            continue
        floors[r] += 1
        if count[r] > 0:
            continue
        for direction in range(4):
            if _beyond(surface, region, i, direction) != r:
                n = _walk_ring(surface, region, i, direction, ring)
                pool = _reserve(pool, used, n)
                for k in range(n):
                    pool[used + k] = ring[k]
                first[r] = used
                count[r] = n
                used += n
                break
    number = np.arange(total)
    chain = np.full(total, -1, np.int64)
    regions = Regions(number, floors, overlap, first, count, stacked_start, stacked, chain, number.copy())
    return regions, pool[:used].copy()


@kernel
def _reserve(pool: NDArray[Any], used: Int, extra: Int) -> NDArray[Any]:
    """The pool with room for `extra` more entries."""
    if used + extra <= len(pool):
        return pool
    larger = np.empty(2 * (used + extra), pool.dtype)
    for i in range(used):
        larger[i] = pool[i]
    return larger


@kernel
def remove_small(regions: Regions, pool: NDArray[Any], min_floors: Int) -> None:
    """Remove connected groups of regions with fewer than `min_floors` floors in all."""
    total = len(regions.number)
    visited = np.zeros(total, np.bool_)
    group = np.empty(total, np.int64)
    for seed in range(1, total):
        if regions.floors[seed] == 0 or visited[seed]:
            continue
        visited[seed] = True
        group[0] = seed
        size = 1
        done = 0
        floors = 0
        while done < size:
            r = group[done]
            done += 1
            floors += regions.floors[r]
            for k in range(regions.first[r], regions.first[r] + regions.size[r]):
                other = pool[k]
                if other != 0 and not visited[other]:
                    visited[other] = True
                    group[size] = other
                    size += 1
        if floors < min_floors:
            for k in range(size):
                regions.floors[group[k]] = 0
                regions.number[group[k]] = 0


@inner_kernel
def _may_merge(regions: Regions, pool: NDArray[Any], a: Int, b: Int) -> Flag:
    """Whether `a` meets `b` along one stretch only and nowhere lies above or below it."""
    meetings = 0
    for k in range(regions.first[a], regions.first[a] + regions.size[a]):
        meetings += pool[k] == b
    if meetings > 1:
        return False
    member = a
    while member != -1:
        for k in range(regions.stacked_start[member], regions.stacked_start[member + 1]):
            if regions.number[regions.stacked[k]] == b:
                return False
        member = regions.chain[member]
    return True


@inner_kernel
def _find(pool: NDArray[Any], first: Int, count: Int, value: Int) -> Int:
    """Position of `value` in a list of the pool, or -1."""
    for k in range(count):
        if pool[first + k] == value:
            return k
    return -1


@inner_kernel
def _merge(regions: Regions, pool: NDArray[Any], used: Int, target: Int, source: Int) -> Int:
    """Merge `source` into `target`: its list is written at the end of the pool. Pool entries used; -1 if apart."""
    first_a, n_a = regions.first[target], regions.size[target]
    first_b, n_b = regions.first[source], regions.size[source]
    at_a = _find(pool, first_a, n_a, source)
    at_b = _find(pool, first_b, n_b, target)
    if at_a == -1 or at_b == -1:
        return -1
    n = np.int64(0)
    for k in range(n_a - 1):
        pool[used + n] = pool[first_a + (at_a + 1 + k) % n_a]
        n += 1
    for k in range(n_b - 1):
        pool[used + n] = pool[first_b + (at_b + 1 + k) % n_b]
        n += 1
    regions.first[target] = used
    regions.size[target] = drop_repeats(pool[used : used + n], n)
    regions.size[source] = 0
    regions.floors[target] += regions.floors[source]
    regions.floors[source] = 0
    regions.chain[regions.tail[target]] = source
    regions.tail[target] = regions.tail[source]
    for r in range(len(regions.number)):
        if regions.number[r] == 0:
            continue
        if regions.number[r] == source:
            regions.number[r] = target
        first, count = regions.first[r], regions.size[r]
        changed = False
        for k in range(first, first + count):
            if pool[k] == source:
                pool[k] = target
                changed = True
        if changed:
            regions.size[r] = drop_repeats(pool[first : first + count], count)
    return used + n


@inner_kernel
def _smallest_partner(regions: Regions, pool: NDArray[Any], r: Int) -> Int:
    """Smallest neighbor that region `r` can be merged into, or `r`."""
    best = r
    smallest = _HUGE
    for k in range(regions.first[r], regions.first[r] + regions.size[r]):
        other = pool[k]
        if regions.number[other] == 0 or regions.overlap[other] or regions.floors[other] >= smallest:
            continue
        if _may_merge(regions, pool, r, other) and _may_merge(regions, pool, other, r):
            smallest = regions.floors[other]
            best = other
    return best


@kernel
def merge_regions(regions: Regions, pool: NDArray[Any], merge_floors: Int) -> None:
    """Merge regions that are small, or enclosed by others, into their smallest neighbor until nothing changes."""
    used = len(pool)
    merged = True
    while merged:
        merged = False
        for r in range(1, len(regions.number)):
            if regions.number[r] == 0 or regions.overlap[r] or regions.floors[r] == 0:
                continue
            at_border = _find(pool, regions.first[r], regions.size[r], np.int64(0)) != -1
            if regions.floors[r] > merge_floors and at_border:
                continue
            partner = _smallest_partner(regions, pool, r)
            if partner == r:
                continue
            pool = _reserve(pool, used, regions.size[r] + regions.size[partner])
            grown = _merge(regions, pool, used, partner, r)
            if grown != -1:
                used = grown
                merged = True


@kernel
def renumber(regions: Regions, region: NDArray[Any]) -> Int:
    """Number the surviving regions 1, 2, ... by first appearance and relabel the floors; how many there are."""
    total = len(regions.number)
    new = np.zeros(total, np.int32)
    count = 0
    for r in range(total):
        old = regions.number[r]
        if old != 0 and new[old] == 0:
            count += 1
            new[old] = count
    for i in range(len(region)):
        region[i] = new[regions.number[region[i]]]
    return count
