"""Closed triangle solids in meters, y up, outward faces counter-clockwise (back faces are never drawn)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Triangles = NDArray[np.float64]
"""(n, 3, 3): n triangles, three corners, xyz."""


@dataclass(frozen=True, eq=False)
class Part:
    """Triangles of one color (a name in `textures.COLORS`); of cloth, where a house has patterns of it."""

    triangles: Triangles
    color: str
    cloth: bool = False


def colored(color: str, *solids: Triangles) -> list[Part]:
    """Solids of one color."""
    return [Part(solid, color) for solid in solids]


_BOX_QUADS = ((0, 4, 6, 2), (1, 3, 7, 5), (0, 1, 5, 4), (2, 6, 7, 3), (0, 2, 3, 1), (4, 5, 7, 6))


def quads(corners: Sequence[Sequence[Sequence[float]]]) -> Triangles:
    """Two triangles for each of n quads given counter-clockwise: (n, 4, 3) -> (2 n, 3, 3)."""
    points: Triangles = np.asarray(corners, dtype=np.float64)
    return points[:, (0, 1, 2, 0, 2, 3)].reshape(-1, 3, 3)


def box(low: Sequence[float], high: Sequence[float]) -> Triangles:
    """Axis-aligned box between two corners."""
    ends = (low, high)
    corners = [[ends[i >> 2 & 1][0], ends[i >> 1 & 1][1], ends[i & 1][2]] for i in range(8)]
    return quads([[corners[i] for i in reversed(quad)] for quad in _BOX_QUADS])


def block(center: Sequence[float], size: Sequence[float]) -> Triangles:
    """Box by the center of its base (x, y, z) and its size (width, height, depth)."""
    x, y, z = center
    width, height, depth = size
    return box((x - width / 2, y, z - depth / 2), (x + width / 2, y + height, z + depth / 2))


def lathe(
    profile: Sequence[tuple[float, float]], center: tuple[float, float] = (0.0, 0.0), segments: int = 14
) -> Triangles:
    """Solid of revolution about a vertical axis through `center` (x, z).

    `profile` lists (radius, y) from bottom to top; discs close both ends.
    """
    radii = np.array([0.0, *(radius for radius, _ in profile), 0.0])
    heights = np.array([profile[0][1], *(y for _, y in profile), profile[-1][1]])
    angles = np.arange(segments + 1) * (2.0 * math.pi / segments)
    cos, sin = np.cos(angles), np.sin(angles)
    cos[-1], sin[-1] = cos[0], sin[0]
    ring = np.empty((len(radii), segments + 1, 3))
    ring[:, :, 0] = center[0] + radii[:, None] * cos
    ring[:, :, 1] = heights[:, None]
    ring[:, :, 2] = center[1] + radii[:, None] * sin
    lower, upper = ring[:-1], ring[1:]
    first = np.stack((lower[:, :-1], upper[:, :-1], upper[:, 1:]), axis=2).reshape(-1, 3, 3)
    second = np.stack((lower[:, :-1], upper[:, 1:], lower[:, 1:]), axis=2).reshape(-1, 3, 3)
    triangles: Triangles = np.concatenate((first, second))
    return triangles[areas(triangles) > 1e-9]


def cylinder(
    radius: float, y0: float, y1: float, center: tuple[float, float] = (0.0, 0.0), segments: int = 14
) -> Triangles:
    """Upright cylinder."""
    return lathe(((radius, y0), (radius, y1)), center, segments)


def sphere(
    radius: float, y: float, center: tuple[float, float] = (0.0, 0.0), segments: int = 14, rings: int = 9
) -> Triangles:
    """Sphere with its center at height y."""
    angles = [math.pi * i / rings for i in range(rings + 1)]
    return lathe([(radius * math.sin(a), y - radius * math.cos(a)) for a in angles], center, segments)


def breaks(low: float, high: float, step: float, extra: Sequence[float] = ()) -> list[float]:
    """Positions from low to high at most `step` apart, the extra ones among them."""
    fixed = sorted({low, high, *(e for e in extra if low < e < high)})
    found = [low]
    for a, b in pairwise(fixed):
        count = max(1, math.ceil((b - a) / step - 1e-6))
        found += [a + (b - a) * i / count for i in range(1, count)] + [b]
    return found


def cells(
    us: Sequence[float], vs: Sequence[float], holes: Sequence[tuple[float, float, float, float]] = ()
) -> list[list[tuple[float, float]]]:
    """Corners (u, v) of the cells of a grid, counter-clockwise, without cells inside a hole (u0, v0, u1, v1)."""
    found = []
    for u0, u1 in pairwise(us):
        for v0, v1 in pairwise(vs):
            u, v = (u0 + u1) / 2, (v0 + v1) / 2
            if not any(h[0] < u < h[2] and h[1] < v < h[3] for h in holes):
                found.append([(u0, v0), (u1, v0), (u1, v1), (u0, v1)])
    return found


def beam(start: Sequence[float], end: Sequence[float], thick: float) -> Triangles:
    """Square bar between two points."""
    a, b = np.asarray(start, dtype=np.float64), np.asarray(end, dtype=np.float64)
    axis = b - a
    length = math.sqrt(float(axis @ axis))
    helper = np.array((0.0, 0.0, 1.0)) if abs(axis[1]) > 0.9 * length else np.array((0.0, 1.0, 0.0))
    side = np.cross(helper, axis)
    side /= math.sqrt(float(side @ side))
    frame = np.stack((side * thick, np.cross(axis / length, side) * thick, axis))
    bar: Triangles = box((-0.5, -0.5, 0.0), (0.5, 0.5, 1.0)) @ frame + a
    return bar


def prism(outline: Sequence[tuple[float, float]], z0: float, z1: float) -> Triangles:
    """Convex (x, y) outline, counter-clockwise seen from +z, drawn out from z0 to z1."""
    front = [(x, y, z1) for x, y in outline]
    back = [(x, y, z0) for x, y in outline]
    faces = [np.array([[front[0], front[i], front[i + 1]] for i in range(1, len(front) - 1)])]
    faces += [np.array([[back[0], back[i + 1], back[i]] for i in range(1, len(back) - 1)])]
    ring = [(i, (i + 1) % len(front)) for i in range(len(front))]
    return np.concatenate([*faces, quads([(back[i], back[j], front[j], front[i]) for i, j in ring])])


def lying(solid: Triangles) -> Triangles:
    """A solid about the y axis turned to lie along z: its top looks to the front."""
    turned: Triangles = solid[:, :, (0, 2, 1)][:, ::-1]
    return turned


def shifted(solid: Triangles, x: float, y: float, z: float) -> Triangles:
    """The solid moved by (x, y, z)."""
    moved: Triangles = solid + np.array((x, y, z))
    return moved


def stretched(solid: Triangles, x: float, y: float, z: float) -> Triangles:
    """The solid scaled about the origin."""
    scaled: Triangles = solid * np.array((x, y, z))
    return scaled


def areas(triangles: Triangles) -> NDArray[np.float64]:
    """(n,) areas in square meters."""
    cross = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    lengths: NDArray[np.float64] = np.linalg.norm(cross, axis=1) / 2.0
    return lengths


def normals(triangles: Triangles) -> NDArray[np.float64]:
    """(n, 3) unit normals."""
    cross = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    unit: NDArray[np.float64] = cross / np.linalg.norm(cross, axis=1, keepdims=True)
    return unit


def volume(triangles: Triangles) -> float:
    """Signed volume of a closed solid; positive when its faces point outwards."""
    a, b, c = triangles[:, 0], triangles[:, 1], triangles[:, 2]
    return float(np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6.0)


def place(triangles: Triangles, facing: tuple[int, int], x: float, z: float) -> Triangles:
    """Turn a local solid so that its local +z looks along `facing` (unit x, z), then move its origin to (x, z)."""
    sin, cos = facing
    out = np.empty_like(triangles)
    out[..., 0] = triangles[..., 0] * cos + triangles[..., 2] * sin + x
    out[..., 1] = triangles[..., 1]
    out[..., 2] = triangles[..., 2] * cos - triangles[..., 0] * sin + z
    return out
