"""Triangulation of a polygon's outline and of the sample points inside it.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license). Points are rows (x, y, z) of a float32 array;
only x and z count. Triangles are rows of three point indices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel
from envs.embedded.navmesh.build.kinds import Flag, Int, Real

_OPEN = -1
_HULL = -2
_BIG = np.float32(3.4028234663852886e38)
_ZERO = np.float32(0.0)
_MIN_TURN = np.float32(1e-5)
_MIN_CROSS = np.float32(1e-6)
_OUTSIDE = np.float32(1.0) + np.float32(0.001)
_INSIDE = np.float32(1.0) - np.float32(0.001)
_TWO = np.float32(2.0)


@inner_kernel
def planar_distance(points: NDArray[Any], a: Int, b: Int) -> Real:
    """Distance of two points in the ground plane."""
    dx = points[b, 0] - points[a, 0]
    dz = points[b, 2] - points[a, 2]
    return np.sqrt(dx * dx + dz * dz)


@inner_kernel
def _cross(points: NDArray[Any], a: Int, b: Int, c: Int) -> Real:
    """Twice the signed area of a triangle, positive where c lies left of a -> b in Recast's sense."""
    ux = points[b, 0] - points[a, 0]
    uz = points[b, 2] - points[a, 2]
    vx = points[c, 0] - points[a, 0]
    vz = points[c, 2] - points[a, 2]
    return ux * vz - uz * vx


@inner_kernel
def triangulate_hull(points: NDArray[Any], hull: NDArray[Any], corners: Int, triangles: NDArray[Any]) -> Int:
    """Strip of triangles across an outline; points below `corners` are polygon corners. Number of triangles."""
    n = len(hull)
    start, left, right = 0, 1, n - 1
    shortest = _BIG
    for i in range(n):
        if hull[i] >= corners:
            continue
        before = hull[i - 1 if i > 0 else n - 1]
        after = hull[i + 1 if i + 1 < n else 0]
        d = planar_distance(points, before, hull[i]) + planar_distance(points, hull[i], after)
        d += planar_distance(points, after, before)
        if d < shortest:
            start = i
            left = i + 1 if i + 1 < n else 0
            right = i - 1 if i > 0 else n - 1
            shortest = d
    triangles[0, 0] = hull[start]
    triangles[0, 1] = hull[left]
    triangles[0, 2] = hull[right]
    count = 1
    while (left + 1 if left + 1 < n else 0) != right:
        next_left = left + 1 if left + 1 < n else 0
        next_right = right - 1 if right > 0 else n - 1
        d_left = planar_distance(points, hull[left], hull[next_left])
        d_left += planar_distance(points, hull[next_left], hull[right])
        d_right = planar_distance(points, hull[right], hull[next_right])
        d_right += planar_distance(points, hull[left], hull[next_right])
        triangles[count, 0] = hull[left]
        triangles[count, 1] = hull[next_left] if d_left < d_right else hull[next_right]
        triangles[count, 2] = hull[right]
        count += 1
        if d_left < d_right:
            left = next_left
        else:
            right = next_right
    return count


@inner_kernel
def _circle(points: NDArray[Any], a: Int, b: Int, c: Int) -> tuple[Real, Real, Real]:
    """Center (x, z) and radius of the circle through three points; radius 0 at a where they are in line."""
    bx = points[b, 0] - points[a, 0]
    bz = points[b, 2] - points[a, 2]
    cx = points[c, 0] - points[a, 0]
    cz = points[c, 2] - points[a, 2]
    cross = bx * cz - bz * cx
    if abs(cross) <= _MIN_CROSS:
        return points[a, 0], points[a, 2], _ZERO
    b_squared = bx * bx + bz * bz
    c_squared = cx * cx + cz * cz
    x = (b_squared * cz - c_squared * bz) / (_TWO * cross)
    z = (c_squared * bx - b_squared * cx) / (_TWO * cross)
    return x + points[a, 0], z + points[a, 2], np.sqrt(x * x + z * z)


@inner_kernel
def _edge_index(edges: NDArray[Any], count: Int, s: Int, t: Int) -> Int:
    """Edge between two points, either way round, or -1."""
    for e in range(count):
        if (edges[e, 0] == s and edges[e, 1] == t) or (edges[e, 0] == t and edges[e, 1] == s):
            return e
    return -1


@inner_kernel
def _set_left(edges: NDArray[Any], e: Int, s: Int, t: Int, face: Int) -> None:
    """Note `face` on the side of an edge that is left of s -> t, where that is open."""
    if edges[e, 0] == s and edges[e, 1] == t and edges[e, 2] == _OPEN:
        edges[e, 2] = face
    elif edges[e, 1] == s and edges[e, 0] == t and edges[e, 3] == _OPEN:
        edges[e, 3] = face


@inner_kernel
def _overlaps(points: NDArray[Any], edges: NDArray[Any], count: Int, s: Int, t: Int) -> Flag:
    """Whether the segment s-t crosses an edge it shares no point with."""
    for e in range(count):
        a, b = edges[e, 0], edges[e, 1]
        if a in (s, t) or b in (s, t):
            continue
        a1 = _cross(points, a, b, t)
        a2 = _cross(points, a, b, s)
        if a1 * a2 < _ZERO:
            a3 = _cross(points, s, t, a)
            if a3 * (a3 + a2 - a1) < _ZERO:
                return True
    return False


@inner_kernel
def _best_point(points: NDArray[Any], n: Int, edges: NDArray[Any], count: Int, s: Int, t: Int) -> Int:
    """Point left of s -> t whose circle through s and t holds no other; n for none."""
    best = n
    x, z, radius = _ZERO, _ZERO, -np.float32(1.0)
    for u in range(n):
        if u in (s, t) or not _cross(points, s, t, u) > _MIN_TURN:
            continue
        if radius >= _ZERO:
            dx = points[u, 0] - x
            dz = points[u, 2] - z
            d = np.sqrt(dx * dx + dz * dz)
            if d > radius * _OUTSIDE:
                continue
            if not d < radius * _INSIDE and (
                _overlaps(points, edges, count, s, u) or _overlaps(points, edges, count, t, u)
            ):
                continue
        best = u
        x, z, radius = _circle(points, s, t, u)
    return best


@inner_kernel
def _complete(
    points: NDArray[Any], n: Int, edges: NDArray[Any], count: Int, faces: Int, e: Int
) -> tuple[Int, Int]:
    """Add the triangle on an open side of edge e; the numbers of edges and faces afterwards."""
    if edges[e, 2] == _OPEN:
        s, t = edges[e, 0], edges[e, 1]
    elif edges[e, 3] == _OPEN:
        s, t = edges[e, 1], edges[e, 0]
    else:
        return count, faces
    point = _best_point(points, n, edges, count, s, t)
    if point == n:
        _set_left(edges, e, s, t, np.int64(_HULL))
        return count, faces
    _set_left(edges, e, s, t, faces)
    for k in range(2):
        a, b = (point, s) if k == 0 else (t, point)
        other = _edge_index(edges, count, a, b)
        if other != -1:
            _set_left(edges, other, a, b, faces)
        elif count < len(edges):
            edges[count, 0] = a
            edges[count, 1] = b
            edges[count, 2] = faces
            edges[count, 3] = _OPEN
            count += 1
    return count, faces + 1


@inner_kernel
def _collect(edges: NDArray[Any], count: Int, faces: Int, triangles: NDArray[Any]) -> Int:
    """Triangles from the edges' faces, those left incomplete dropped; their number."""
    for f in range(faces):
        for c in range(3):
            triangles[f, c] = -1
    for e in range(count):
        for side in (3, 2):
            face = edges[e, side]
            if face < 0:
                continue
            a, b = (edges[e, 0], edges[e, 1]) if side == 3 else (edges[e, 1], edges[e, 0])
            if triangles[face, 0] == -1:
                triangles[face, 0] = a
                triangles[face, 1] = b
            elif triangles[face, 0] == b:
                triangles[face, 2] = a
            elif triangles[face, 1] == a:
                triangles[face, 2] = b
    f = 0
    while f < faces:
        if triangles[f, 0] == -1 or triangles[f, 1] == -1 or triangles[f, 2] == -1:
            faces -= 1
            for c in range(3):
                triangles[f, c] = triangles[faces, c]
        else:
            f += 1
    return faces


@inner_kernel
def delaunay(
    points: NDArray[Any], n: Int, hull: NDArray[Any], edges: NDArray[Any], triangles: NDArray[Any]
) -> Int:
    """Delaunay triangles of n points within an outline (point indices in order); their number.

    `edges` and `triangles` are scratch and result, with 10 rows per point each.
    """
    edges = edges[: 10 * n]
    count = np.int64(0)
    j = len(hull) - 1
    for i in range(len(hull)):
        if _edge_index(edges, count, hull[j], hull[i]) == -1:
            edges[count, 0] = hull[j]
            edges[count, 1] = hull[i]
            edges[count, 2] = _HULL
            edges[count, 3] = _OPEN
            count += 1
        j = i
    faces = np.int64(0)
    e = np.int64(0)
    while e < count:
        for side in (2, 3):
            if edges[e, side] == _OPEN and faces < len(triangles):
                count, faces = _complete(points, n, edges, count, faces, e)
        e += 1
    return _collect(edges, count, faces, triangles)
