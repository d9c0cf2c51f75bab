"""The solid of a ramp, its railings, and the edge of the opening above it.

Everything is built in a frame where the ramp climbs along +x from (0, 0, 0) and its open side looks to +z.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from envs.houses.model.shell import CELL_M, Surface
from envs.houses.model.style import Style
from envs.houses.plan.house import House
from envs.houses.plan.layout import CEILING_M, RAMP_LENGTH_M, RAMP_WIDTH_M, STOREY_M, Ramp
from envs.houses.shapes.meshes import Part, Triangles, areas, beam, block, box, breaks, colored, quads
from envs.houses.shapes.textures import FLOOR_TILE_M

_RAIL_M = 0.95
_POST_M = 0.05
_LIP_M = 0.01
"""The edge of an opening overlaps what it meets: no gaps of a pixel between them."""
_HALF = RAMP_WIDTH_M / 2


def ramp_surface(house: House, ramp: Ramp, style: Style) -> Surface:
    """What one walks on."""
    stations = breaks(0.0, RAMP_LENGTH_M, CELL_M)
    faces = [
        [(a, _rise(a), z1), (b, _rise(b), z1), (b, _rise(b), z0), (a, _rise(a), z0)]
        for a, b in pairwise(stations)
        for z0, z1 in ((-_HALF, 0.0), (0.0, _HALF))
    ]
    placed = _to_world(quads(faces), house, ramp)
    uv = placed[..., (2, 0) if ramp.uphill[0] else (0, 2)] / FLOOR_TILE_M
    return Surface("ramp", ramp.rooms[0], placed, uv, style.tread())


def wedge_parts(house: House, ramp: Ramp) -> list[Part]:
    """Side and back of the wedge and the handrail along it: what the lower room sees."""
    stations = breaks(0.0, RAMP_LENGTH_M, CELL_M)
    sides = [
        [(a, 0.0, _HALF), (b, 0.0, _HALF), (b, _rise(b), _HALF), (a, _rise(a), _HALF)]
        for a, b in pairwise(stations)
    ]
    end = RAMP_LENGTH_M
    sides.append([(end, 0.0, _HALF), (end, 0.0, -_HALF), (end, STOREY_M, -_HALF), (end, STOREY_M, _HALF)])
    side = quads(sides)
    z = _HALF - _POST_M / 2
    rails = [beam((0.0, y, z), (end, STOREY_M + y, z), _POST_M) for y in (0.3, 0.6, _RAIL_M - 0.03)]
    posts = [
        block((x, _rise(x) - (0.05 if x > 0.2 else 0.0), z), (_POST_M, _RAIL_M, _POST_M))
        for x in np.linspace(0.03, end - 0.03, 7)
    ]
    return _placed([*colored("trim", side[areas(side) > 1e-9]), *colored("pine", *rails, *posts)], house, ramp)


def opening_parts(house: House, ramp: Ramp) -> list[Part]:
    """The edge of the floor around the opening, and railings where one could fall: what the upper room sees."""
    low, high, end = CEILING_M - _LIP_M, STOREY_M, RAMP_LENGTH_M
    strip = box((0.0, low, -_HALF - _LIP_M), (end, high + _LIP_M, -_HALF + _LIP_M))
    edge = quads(
        [
            [(end, low, _HALF), (0.0, low, _HALF), (0.0, high, _HALF), (end, high, _HALF)],
            [(0.0, low, _HALF), (0.0, low, -_HALF), (0.0, high, -_HALF), (0.0, high, _HALF)],
        ]
    )
    out = _POST_M / 2
    z, x = _HALF + out, -out
    long, short = end + _POST_M, RAMP_WIDTH_M + _POST_M
    rails: list[Triangles] = []
    for y in (0.3, 0.6, _RAIL_M - 0.05):
        rails.append(block((end / 2 - out, high + y, z), (long, 0.05, _POST_M)))
        rails.append(block((x, high + y, out), (_POST_M, 0.05, short)))
    posts = [block((px, high, z), (_POST_M, _RAIL_M, _POST_M)) for px in np.linspace(x, end - out, 7)]
    posts.append(block((x, high, -_HALF + out), (_POST_M, _RAIL_M, _POST_M)))
    return _placed([*colored("trim", edge, strip), *colored("pine", *rails, *posts)], house, ramp)


def _rise(x: float) -> float:
    return STOREY_M * x / RAMP_LENGTH_M


def _placed(parts: Sequence[Part], house: House, ramp: Ramp) -> list[Part]:
    return [Part(_to_world(part.triangles, house, ramp), part.color) for part in parts]


def _to_world(local: Triangles, house: House, ramp: Ramp) -> Triangles:
    """Mirrored, if need be, so that the open side looks away from the wall."""
    (bx, by, bz), (ux, uz) = ramp.bottom, ramp.uphill
    cx, cz = house.plan.rooms[ramp.rooms[0]].center
    sx, sz = -uz, ux  # to the right of the way up
    middle = ramp.rect.center
    side = 1 if (cx - middle[0]) * sx + (cz - middle[1]) * sz > 0 else -1
    out = np.empty_like(local)
    out[..., 0] = bx + local[..., 0] * ux + local[..., 2] * side * sx
    out[..., 1] = by + local[..., 1]
    out[..., 2] = bz + local[..., 0] * uz + local[..., 2] * side * sz
    return out if side > 0 else out[:, ::-1]
