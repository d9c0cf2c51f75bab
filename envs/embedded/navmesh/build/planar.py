"""Exact predicates on grid points in the ground plane.

The predicates of O'Rourke's "Computational Geometry in C", as Recast uses them (Mikko Mononen, zlib license).
Points are integer (x, z) pairs passed as two arguments.
"""

from __future__ import annotations

from envs.embedded.kernels.jit import inner_kernel
from envs.embedded.navmesh.build.kinds import Flag, Int


@inner_kernel
def turn(ax: Int, az: Int, bx: Int, bz: Int, cx: Int, cz: Int) -> Int:
    """Twice the signed area of a triangle: negative where c is left of a -> b, 0 where it is on the line."""
    return (bx - ax) * (cz - az) - (cx - ax) * (bz - az)


@inner_kernel
def crosses(ax: Int, az: Int, bx: Int, bz: Int, cx: Int, cz: Int, dx: Int, dz: Int) -> Flag:
    """Whether the segments ab and cd share a point interior to both."""
    abc = turn(ax, az, bx, bz, cx, cz)
    abd = turn(ax, az, bx, bz, dx, dz)
    cda = turn(cx, cz, dx, dz, ax, az)
    cdb = turn(cx, cz, dx, dz, bx, bz)
    if abc == 0 or abd == 0 or cda == 0 or cdb == 0:
        return False
    return (abc < 0) != (abd < 0) and (cda < 0) != (cdb < 0)


@inner_kernel
def between(ax: Int, az: Int, bx: Int, bz: Int, cx: Int, cz: Int) -> Flag:
    """Whether c lies on the closed segment ab."""
    if turn(ax, az, bx, bz, cx, cz) != 0:
        return False
    if ax != bx:
        return (ax <= cx <= bx) or (ax >= cx >= bx)
    return (az <= cz <= bz) or (az >= cz >= bz)


@inner_kernel
def touches(ax: Int, az: Int, bx: Int, bz: Int, cx: Int, cz: Int, dx: Int, dz: Int) -> Flag:
    """Whether the closed segments ab and cd share a point."""
    return (
        crosses(ax, az, bx, bz, cx, cz, dx, dz)
        or between(ax, az, bx, bz, cx, cz)
        or between(ax, az, bx, bz, dx, dz)
        or between(cx, cz, dx, dz, ax, az)
        or between(cx, cz, dx, dz, bx, bz)
    )


@inner_kernel
def in_cone(px: Int, pz: Int, x: Int, z: Int, nx: Int, nz: Int, qx: Int, qz: Int) -> Flag:
    """Whether the segment from corner (x, z) to q starts inside the polygon.

    The corner's neighbors along the polygon are (px, pz) before and (nx, nz) after it.
    """
    if turn(px, pz, x, z, nx, nz) <= 0:
        return turn(x, z, qx, qz, px, pz) < 0 and turn(qx, qz, x, z, nx, nz) < 0
    return not (turn(x, z, qx, qz, nx, nz) <= 0 and turn(qx, qz, x, z, px, pz) <= 0)


@inner_kernel
def in_cone_loose(px: Int, pz: Int, x: Int, z: Int, nx: Int, nz: Int, qx: Int, qz: Int) -> Flag:
    """As `in_cone`, with directions along the polygon's edges at a convex corner counted as inside."""
    if turn(px, pz, x, z, nx, nz) <= 0:
        return turn(x, z, qx, qz, px, pz) <= 0 and turn(qx, qz, x, z, nx, nz) <= 0
    return not (turn(x, z, qx, qz, nx, nz) <= 0 and turn(qx, qz, x, z, px, pz) <= 0)
