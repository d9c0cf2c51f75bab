"""Plane geometry of navmesh queries in float32, in the order of operations of Detour.

Follows the algorithms of Recast and Detour (Mikko Mononen, zlib license). Plane means x and z; y is height.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.navmesh.query.surface import F32

Float32s = NDArray[np.float32]

ZERO: Any = np.float32(0.0)
ONE: Any = np.float32(1.0)
TWO: Any = np.float32(2.0)
HALF: Any = np.float32(0.5)
LARGEST: Any = np.finfo(np.float32).max
_PARALLEL: Any = np.float32(1e-6)
_SAME_POINT: Any = np.float32(1.0 / 16384.0) * np.float32(1.0 / 16384.0)
_FUZZ: Any = np.float32(1e-5)


@kernel
def segment_distance_sqr(x: F32, z: F32, px: F32, pz: F32, qx: F32, qz: F32) -> tuple[F32, F32]:
    """Squared plane distance of a point to the segment p-q, and where on the segment (0 to 1)."""
    along_x = qx - px
    along_z = qz - pz
    dx = x - px
    dz = z - pz
    length = along_x * along_x + along_z * along_z
    t = along_x * dx + along_z * dz
    if length > ZERO:
        t /= length
    if t < ZERO:
        t = ZERO
    elif t > ONE:
        t = ONE
    dx = px + t * along_x - x
    dz = pz + t * along_z - z
    return dx * dx + dz * dz, t


@kernel
def inside(corner: Float32s, count: int, x: F32, z: F32) -> bool:
    """Whether a plane point lies in a polygon with `count` of the rows of `corner`."""
    crossed = False
    j = count - 1
    for i in range(count):
        if (corner[i, 2] > z) != (corner[j, 2] > z) and x < (corner[j, 0] - corner[i, 0]) * (z - corner[i, 2]) / (
            corner[j, 2] - corner[i, 2]
        ) + corner[i, 0]:
            crossed = not crossed
        j = i
    return crossed


@kernel
def triangle_height(x: F32, z: F32, v: Float32s) -> tuple[bool, F32]:
    """Whether a plane point lies in a triangle (nine numbers), and the height there."""
    ax, ay, az = v[0], v[1], v[2]
    v0x, v0y, v0z = v[6] - ax, v[7] - ay, v[8] - az
    v1x, v1y, v1z = v[3] - ax, v[4] - ay, v[5] - az
    v2x, v2z = x - ax, z - az
    scale = v0x * v1z - v0z * v1x
    if abs(scale) < _PARALLEL:
        return False, ZERO
    u = v1z * v2x - v1x * v2z
    w = v0x * v2z - v0z * v2x
    if scale < ZERO:
        scale = -scale
        u = -u
        w = -w
    if u >= ZERO and w >= ZERO and (u + w) <= scale:
        return True, ay + (v0y * u + v1y * w) / scale
    return False, ZERO


@kernel
def put_point(out: Float32s, p: Float32s) -> None:
    """Copy a point. (A slice assignment does the same and takes a second to compile.)"""
    out[0], out[1], out[2] = p[0], p[1], p[2]


@kernel
def area2(ax: F32, az: F32, bx: F32, bz: F32, cx: F32, cz: F32) -> F32:
    """Twice the signed plane area of a triangle."""
    return (cx - ax) * (bz - az) - (bx - ax) * (cz - az)


@kernel
def distance_sqr(ax: F32, ay: F32, az: F32, bx: F32, by: F32, bz: F32) -> F32:
    """Squared distance of two points."""
    dx = bx - ax
    dy = by - ay
    dz = bz - az
    return dx * dx + dy * dy + dz * dz


@kernel
def distance(ax: F32, ay: F32, az: F32, bx: F32, by: F32, bz: F32) -> F32:
    """Distance of two points."""
    return math.sqrt(distance_sqr(ax, ay, az, bx, by, bz))


@kernel
def same_point(ax: F32, ay: F32, az: F32, bx: F32, by: F32, bz: F32) -> bool:
    """Whether two path corners count as one (closer than 1/16384 m)."""
    return bool(distance_sqr(ax, ay, az, bx, by, bz) < _SAME_POINT)


@kernel
def nearly_equal(a: F32, b: F32) -> bool:
    """Fuzzy equality of the vector library that habitat-sim compares positions with (Magnum)."""
    if a == b:
        return True
    difference = abs(a - b)
    if a == ZERO or b == ZERO or difference < _FUZZ:
        return bool(difference < _FUZZ)
    return bool(difference / (abs(a) + abs(b)) < _FUZZ)


@kernel
def crossing(a: Float32s, b: Float32s, px: F32, pz: F32, qx: F32, qz: F32) -> tuple[bool, F32, F32]:
    """Where the plane lines a-b and p-q cross: (not parallel, place on a-b, place on p-q)."""
    ux, uz = b[0] - a[0], b[2] - a[2]
    vx, vz = qx - px, qz - pz
    wx, wz = a[0] - px, a[2] - pz
    scale = ux * vz - uz * vx
    if abs(scale) < _PARALLEL:
        return False, ZERO, ZERO
    return True, (vx * wz - vz * wx) / scale, (ux * wz - uz * wx) / scale
