"""Joining the holes of a region to its outline.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license), including its choice of which vertex of the
outline is ignored in the intersection test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.build.contours import Contours
from envs.embedded.navmesh.build.kinds import Flag, Int
from envs.embedded.navmesh.build.planar import in_cone, touches


@inner_kernel
def _is_hole(points: NDArray[Any]) -> Flag:
    """Whether an outline is wound backwards."""
    area = 0
    j = len(points) - 1
    for i in range(len(points)):
        area += points[i, 0] * points[j, 2] - points[j, 0] * points[i, 2]
        j = i
    return area < -2


@inner_kernel
def _leftmost(points: NDArray[Any]) -> Int:
    """Vertex with the smallest x, then z."""
    best = 0
    for i in range(1, len(points)):
        x, z = points[i, 0], points[i, 2]
        if x < points[best, 0] or (x == points[best, 0] and z < points[best, 2]):
            best = i
    return best


@inner_kernel
def _blocked(points: NDArray[Any], skip: Int, a: NDArray[Any], b: NDArray[Any]) -> Flag:
    """Whether the segment a-b meets an edge of an outline, edges at `skip` and those sharing an end left out."""
    ax, az, bx, bz = a[0], a[2], b[0], b[2]
    j = len(points) - 1
    for k in range(len(points)):
        px, pz, qx, qz = points[j, 0], points[j, 2], points[k, 0], points[k, 2]
        own = skip in (j, k)
        j = k
        if own or (ax == px and az == pz) or (bx == px and bz == pz):
            continue
        if (ax == qx and az == qz) or (bx == qx and bz == qz):
            continue
        if touches(ax, az, bx, bz, px, pz, qx, qz):
            return True
    return False


@inner_kernel
def _diagonals(outline: NDArray[Any], corner: NDArray[Any], found: NDArray[Any]) -> Int:
    """Outline vertices that see `corner`, nearest first, as rows (vertex, squared distance) of `found`."""
    n = len(outline)
    qx, qz = corner[0], corner[2]
    count = 0
    for j in range(n):
        before, after = (j - 1 if j > 0 else n - 1), (j + 1 if j + 1 < n else 0)
        x, z = outline[j, 0], outline[j, 2]
        px, pz = outline[before, 0], outline[before, 2]
        nx, nz = outline[after, 0], outline[after, 2]
        if not in_cone(px, pz, x, z, nx, nz, qx, qz):
            continue
        distance = (x - qx) * (x - qx) + (z - qz) * (z - qz)
        k = count
        while k > 0 and found[k - 1, 1] > distance:
            found[k, 0] = found[k - 1, 0]
            found[k, 1] = found[k - 1, 1]
            k -= 1
        found[k, 0] = j
        found[k, 1] = distance
        count += 1
    return count


@inner_kernel
def _link(
    outline: NDArray[Any], contours: Contours, holes: NDArray[Any], h: Int, best: Int, found: NDArray[Any]
) -> tuple[Int, Int]:
    """Vertices (of outline, of hole `h`) to join, starting the search at hole vertex `best`; (-1, -1) if none."""
    hole = contours.points[contours.start[holes[h]] : contours.start[holes[h] + 1]]
    nothing = np.int64(-1)
    for _ in range(len(hole)):
        corner = hole[best]
        count = _diagonals(outline, corner, found)
        for j in range(count):
            end = outline[found[j, 0]]
            blocked = _blocked(outline, found[h, 0], end, corner)
            for k in range(h, len(holes)):
                if blocked:
                    break
                other = contours.points[contours.start[holes[k]] : contours.start[holes[k] + 1]]
                blocked = _blocked(other, nothing, end, corner)
            if not blocked:
                return found[j, 0], best
        best = (best + 1) % len(hole)
    return -1, -1


@kernel
def _sort_holes(contours: Contours, holes: NDArray[Any]) -> NDArray[np.int64]:
    """Order holes by their leftmost vertex, and return those vertices."""
    leftmost = np.empty(len(holes), np.int64)
    for h in range(len(holes)):
        leftmost[h] = _leftmost(contours.points[contours.start[holes[h]] : contours.start[holes[h] + 1]])
    for h in range(1, len(holes)):
        hole, corner = holes[h], leftmost[h]
        at = contours.start[hole] + corner
        k = h
        while k > 0:
            other = contours.start[holes[k - 1]] + leftmost[k - 1]
            dx = contours.points[other, 0] - contours.points[at, 0]
            if dx < 0 or (dx == 0 and contours.points[other, 2] <= contours.points[at, 2]):
                break
            holes[k] = holes[k - 1]
            leftmost[k] = leftmost[k - 1]
            k -= 1
        holes[k] = hole
        leftmost[k] = corner
    return leftmost


@kernel
def _join_region(
    contours: Contours, outline: Int, holes: NDArray[Any], spliced: NDArray[Any]
) -> NDArray[np.int64]:
    """The outline with its holes cut open and spliced in, from left to right; marks those in `spliced`."""
    total = contours.start[outline + 1] - contours.start[outline]
    for h in range(len(holes)):
        total += contours.start[holes[h] + 1] - contours.start[holes[h]] + 2
    leftmost = _sort_holes(contours, holes)
    found = np.zeros((total + len(holes), 2), np.int64)
    merged = contours.points[contours.start[outline] : contours.start[outline + 1]].copy()
    for h in range(len(holes)):
        at, corner = _link(merged, contours, holes, h, leftmost[h], found)
        if at == -1:
            continue
        spliced[holes[h]] = True
        hole = contours.points[contours.start[holes[h]] : contours.start[holes[h] + 1]]
        n = len(merged)
        joined = np.empty((n + len(hole) + 2, 3), np.int64)
        for k in range(n + 1):
            for c in range(3):
                joined[k, c] = merged[(at + k) % n, c]
        for k in range(len(hole) + 1):
            for c in range(3):
                joined[n + 1 + k, c] = hole[(corner + k) % len(hole), c]
        merged = joined
    return merged


@inner_kernel
def _copy_points(source: NDArray[Any], target: NDArray[Any], at: Int) -> None:
    """Copy rows (x, height, z) into the rows of `target` from `at` on."""
    for k in range(len(source)):
        for c in range(3):
            target[at + k, c] = source[k, c]


@kernel
def join_holes(contours: Contours, regions: Int) -> Contours:
    """Contours with every hole joined to the outline of its region; `regions` is the number of regions.

    A hole that cannot be joined stays a contour of its own.
    """
    total = len(contours.region)
    outline = np.full(regions + 1, -1, np.int64)
    hole = np.zeros(total, np.bool_)
    n_holes = 0
    for c in range(total):
        hole[c] = _is_hole(contours.points[contours.start[c] : contours.start[c + 1]])
        n_holes += hole[c]
        if not hole[c]:
            outline[contours.region[c]] = c
    if n_holes == 0:
        return contours
    spliced = np.zeros(total, np.bool_)
    first = np.empty(total, np.int64)
    count = np.empty(total, np.int64)
    for c in range(total):
        first[c] = contours.start[c]
        count[c] = contours.start[c + 1] - contours.start[c]
    used = len(contours.points)
    points = np.empty((2 * used + 2 * total, 3), np.int64)
    _copy_points(contours.points, points, np.int64(0))
    own = np.empty(n_holes, np.int64)
    for region in range(1, regions + 1):
        if outline[region] == -1:
            continue
        n_own = 0
        for c in range(total):
            if hole[c] and contours.region[c] == region:
                own[n_own] = c
                n_own += 1
        if n_own > 0:
            joined = _join_region(contours, outline[region], own[:n_own], spliced)
            _copy_points(joined, points, used)
            first[outline[region]] = used
            count[outline[region]] = len(joined)
            used += len(joined)
    start = np.zeros(total + 1, np.int32)
    for c in range(total):
        start[c + 1] = start[c] + (0 if spliced[c] else count[c])
    packed = np.empty((start[total], 3), np.int64)
    for c in range(total):
        _copy_points(points[first[c] : first[c] + start[c + 1] - start[c]], packed, np.int64(start[c]))
    return Contours(packed, start, contours.region)
