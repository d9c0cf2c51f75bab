"""Contours to convex polygons with shared vertices and adjacency.

Follows the algorithm of Recast 1.6.0 (Mikko Mononen, zlib license).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.navmesh.build.contours import Contours
from envs.embedded.navmesh.build.kinds import Flag, Int
from envs.embedded.navmesh.build.planar import crosses, in_cone, in_cone_loose, touches
from envs.embedded.navmesh.tiles.polymesh import NO_INDEX

MAX_VERTICES = 0xFFFD
"""Most contour vertices a mesh can have: indices are 16-bit."""

_BUCKETS = 1 << 12
_MAX_STEP = 2


class Polygons(NamedTuple):
    """verts: (n, 3) uint16 in cells. polys: (p, 2 nvp) uint16 as in PolyMesh. region: (p,) region of each."""

    verts: NDArray[np.uint16]
    polys: NDArray[np.uint16]
    region: NDArray[np.int32]


@inner_kernel
def _sees(ring: NDArray[Any], n: Int, i: Int, j: Int, loose: Int) -> Flag:
    """Whether i-j is an inner diagonal of the polygon `ring`: rows (x, z, index, ear)."""
    x, z, qx, qz = ring[i, 0], ring[i, 1], ring[j, 0], ring[j, 1]
    before = i - 1 if i > 0 else n - 1
    after = i + 1 if i + 1 < n else 0
    px, pz, nx, nz = ring[before, 0], ring[before, 1], ring[after, 0], ring[after, 1]
    if loose == 0 and not in_cone(px, pz, x, z, nx, nz, qx, qz):
        return False
    if loose == 1 and not in_cone_loose(px, pz, x, z, nx, nz, qx, qz):
        return False
    k = n - 1
    for following in range(n):
        ax, az, bx, bz = ring[k, 0], ring[k, 1], ring[following, 0], ring[following, 1]
        shared = k in (i, j) or following in (i, j)
        k = following
        if shared or (x == ax and z == az) or (qx == ax and qz == az):
            continue
        if (x == bx and z == bz) or (qx == bx and qz == bz):
            continue
        if loose == 1:
            if crosses(x, z, qx, qz, ax, az, bx, bz):
                return False
        elif touches(x, z, qx, qz, ax, az, bx, bz):
            return False
    return True


@inner_kernel
def _next_ear(ring: NDArray[Any], n: Int) -> Int:
    """Vertex before the ear with the shortest diagonal, by relaxed rules if there is none; -1 for none."""
    for loose in range(2):
        best = -1
        shortest = 0
        for i in range(n):
            i1 = (i + 1) % n
            i2 = (i + 2) % n
            if loose == 0 and ring[i1, 3] == 0:
                continue
            if loose == 1 and not _sees(ring, n, i, i2, loose):
                continue
            end = i2 if loose == 0 else (i + 3) % n
            dx = ring[end, 0] - ring[i, 0]
            dz = ring[end, 1] - ring[i, 1]
            length = dx * dx + dz * dz
            if best == -1 or length < shortest:
                shortest = length
                best = i
        if best != -1:
            return best
    return -1


@inner_kernel
def triangulate(ring: NDArray[Any], triangles: NDArray[Any]) -> Int:
    """Ear clipping of a polygon (rows (x, z, index, 0), used up) into `triangles`; how many were found."""
    n = len(ring)
    strict = np.int64(0)
    for i in range(n):
        ring[(i + 1) % n, 3] = _sees(ring, n, i, (i + 2) % n, strict)
    count = 0
    while n > 3:
        i = _next_ear(ring, n)
        if i == -1:
            return count
        i1 = (i + 1) % n
        triangles[count, 0] = ring[i, 2]
        triangles[count, 1] = ring[i1, 2]
        triangles[count, 2] = ring[(i + 2) % n, 2]
        count += 1
        n -= 1
        for k in range(i1, n):
            for c in range(4):
                ring[k, c] = ring[k + 1, c]
        if i1 >= n:
            i1 = 0
        i = i1 - 1 if i1 > 0 else n - 1
        ring[i, 3] = _sees(ring, n, i - 1 if i > 0 else n - 1, i1, strict)
        ring[i1, 3] = _sees(ring, n, i, i1 + 1 if i1 + 1 < n else 0, strict)
    for c in range(3):
        triangles[count, c] = ring[c, 2]
    return count + 1


@inner_kernel
def _convex_at(verts: NDArray[Any], a: Int, b: Int, c: Int) -> Flag:
    """Whether vertex c is strictly left of a -> b."""
    ax, az = np.int64(verts[a, 0]), np.int64(verts[a, 2])
    bx, bz = np.int64(verts[b, 0]) - ax, np.int64(verts[b, 2]) - az
    return bx * (np.int64(verts[c, 2]) - az) - (np.int64(verts[c, 0]) - ax) * bz < 0


@inner_kernel
def _shared_edge(a: NDArray[Any], na: Int, b: NDArray[Any], nb: Int) -> tuple[Int, Int]:
    """Edges (of a, of b) that two polygons share, the last of a and the first of b; (-1, -1) if none."""
    ea, eb = -1, -1
    for i in range(na):
        a0 = a[i]
        a1 = a[i + 1] if i + 1 < na else a[0]
        for j in range(nb):
            b0 = b[j]
            b1 = b[j + 1] if j + 1 < nb else b[0]
            if (a0 == b1 and a1 == b0) or (a0 == b0 and a1 == b1):
                ea, eb = i, j
                break
    return ea, eb


@inner_kernel
def _merge_value(polys: NDArray[Any], sizes: NDArray[Any], p: Int, q: Int, verts: NDArray[Any], nvp: Int) -> Int:
    """Squared length of the edge that merging two polygons would remove; -1 where they can't be merged."""
    na, nb = sizes[p], sizes[q]
    if na + nb - 2 > nvp:
        return -1
    a, b = polys[p], polys[q]
    ea, eb = _shared_edge(a, na, b, nb)
    if ea == -1:
        return -1
    if not _convex_at(verts, a[(ea + na - 1) % na], a[ea], b[(eb + 2) % nb]):
        return -1
    if not _convex_at(verts, b[(eb + nb - 1) % nb], b[eb], a[(ea + 2) % na]):
        return -1
    v, w = a[ea], a[(ea + 1) % na]
    dx = np.int64(verts[v, 0]) - np.int64(verts[w, 0])
    dz = np.int64(verts[v, 2]) - np.int64(verts[w, 2])
    return dx * dx + dz * dz


@kernel
def _merge_pair(polys: NDArray[Any], sizes: NDArray[Any], p: Int, q: Int, last: Int) -> None:
    """Merge polygon q into p along their shared edge and move polygon `last` into the gap."""
    na, nb = sizes[p], sizes[q]
    a, b = polys[p].copy(), polys[q].copy()
    ea, eb = _shared_edge(a, na, b, nb)
    n = 0
    for i in range(na - 1):
        polys[p, n] = a[(ea + 1 + i) % na]
        n += 1
    for i in range(nb - 1):
        polys[p, n] = b[(eb + 1 + i) % nb]
        n += 1
    sizes[p] = n
    for c in range(polys.shape[1]):
        polys[q, c] = polys[last, c]
    sizes[q] = sizes[last]


@kernel
def _merge_convex(polys: NDArray[Any], sizes: NDArray[Any], count: Int, verts: NDArray[Any], nvp: Int) -> Int:
    """Merge polygons of one contour, longest shared edge first, while the result stays convex; how many are left.

    The best partner of every polygon is kept between rounds; only those a merge touched are looked for again.
    """
    value = np.full(count, -1, np.int64)
    partner = np.full(count, -1, np.int64)
    stale = np.ones(count, np.bool_)
    while True:
        best: Int = np.int64(-1)
        for j in range(count - 1):
            if stale[j]:
                value[j] = 0
                partner[j] = -1
                for k in range(j + 1, count):
                    v = _merge_value(polys, sizes, j, k, verts, nvp)
                    if v > value[j]:
                        value[j] = v
                        partner[j] = k
                stale[j] = False
            if partner[j] != -1 and (best == -1 or value[j] > value[best]):
                best = j
        if best == -1:
            return count
        p, q = best, partner[best]
        last = count - 1
        _merge_pair(polys, sizes, p, q, last)
        count -= 1
        for j in range(count):
            if partner[j] == p or partner[j] == q or partner[j] == last or j in (p, q):
                stale[j] = True
                continue
            for changed in (p, q):
                if changed <= j or changed >= count:
                    continue
                v = _merge_value(polys, sizes, j, changed, verts, nvp)
                if v > 0 and (v > value[j] or (v == value[j] and changed < partner[j])):
                    value[j] = v
                    partner[j] = changed


@inner_kernel
def _vertex_index(
    x: Int, height: Int, z: Int, verts: NDArray[Any], first: NDArray[Any], following: NDArray[Any], count: Int
) -> Int:
    """Index of the newest vertex at a grid point within two cell heights; `count` where there is none yet."""
    bucket = (x * 0x1F1F1F1F + z * 0x2545F491) & (_BUCKETS - 1)
    i = first[bucket]
    while i != -1:
        if verts[i, 0] == x and verts[i, 2] == z and abs(np.int64(verts[i, 1]) - height) <= _MAX_STEP:
            return i
        i = following[i]
    verts[count, 0] = x
    verts[count, 1] = height
    verts[count, 2] = z
    following[count] = first[bucket]
    first[bucket] = count
    return count


@kernel
def build_polygons(contours: Contours, nvp: Int) -> Polygons:
    """Triangulate each contour, share its vertices and merge the triangles into convex polygons."""
    longest = 3
    for c in range(len(contours.region)):
        longest = max(longest, contours.start[c + 1] - contours.start[c])
    total = len(contours.points)
    verts = np.zeros((total, 3), np.uint16)
    polys = np.full((total, 2 * nvp), NO_INDEX, np.uint16)
    region = np.zeros(total, np.int32)
    first = np.full(_BUCKETS, -1, np.int32)
    following = np.empty(total, np.int32)
    triangles = np.empty((longest, 3), np.int64)
    index = np.empty(longest, np.int64)
    n_verts = np.int64(0)
    n_polys = 0
    for c in range(len(contours.region)):
        points = contours.points[contours.start[c] : contours.start[c + 1]]
        n = len(points)
        if n < 3:
            continue
        ring = np.zeros((n, 4), np.int64)
        for i in range(n):
            ring[i, 0] = points[i, 0]
            ring[i, 1] = points[i, 2]
            ring[i, 2] = i
        found = triangulate(ring, triangles)
        for i in range(n):
            index[i] = _vertex_index(points[i, 0], points[i, 1], points[i, 2], verts, first, following, n_verts)
            n_verts = max(n_verts, index[i] + 1)
        own = np.full((found, nvp), NO_INDEX, np.uint16)
        sizes = np.full(found, 3, np.int64)
        for t in range(found):
            for k in range(3):
                own[t, k] = index[triangles[t, k]]
        left = _merge_convex(own, sizes, found, verts, nvp) if nvp > 3 else found
        for j in range(left):
            for k in range(sizes[j]):
                polys[n_polys, k] = own[j, k]
            region[n_polys] = contours.region[c]
            n_polys += 1
    return Polygons(verts[:n_verts].copy(), polys[:n_polys].copy(), region[:n_polys].copy())


@kernel
def link_polygons(mesh: Polygons) -> None:
    """Fill the second half of each polygon's row with the neighbors across its edges."""
    nvp = mesh.polys.shape[1] // 2
    total = len(mesh.polys)
    first = np.full(len(mesh.verts), -1, np.int64)
    edges = np.empty((total * nvp, 4), np.int64)
    following = np.empty(total * nvp, np.int64)
    count = 0
    for rising in range(2):
        for p in range(total):
            for j in range(nvp):
                v = mesh.polys[p, j]
                if v == NO_INDEX:
                    break
                w = mesh.polys[p, j + 1] if j + 1 < nvp else NO_INDEX
                if w == NO_INDEX:
                    w = mesh.polys[p, 0]
                if rising == 0 and v < w:
                    edges[count, 0] = w
                    edges[count, 1] = p
                    edges[count, 2] = j
                    edges[count, 3] = -1
                    following[count] = first[v]
                    first[v] = count
                    count += 1
                elif rising == 1 and v > w:
                    e = first[w]
                    while e != -1:
                        if edges[e, 0] == v and (edges[e, 3] == -1 or edges[e, 3] // nvp == edges[e, 1]):
                            edges[e, 3] = p * nvp + j
                            break
                        e = following[e]
    for e in range(count):
        if edges[e, 3] == -1:
            continue
        other = edges[e, 3] // nvp
        if other != edges[e, 1]:
            mesh.polys[edges[e, 1], nvp + edges[e, 2]] = other
            mesh.polys[other, nvp + edges[e, 3] % nvp] = edges[e, 1]
