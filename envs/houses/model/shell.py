"""Floors, walls, ceilings, door frames and the outside of a house.

Floors, walls and ceilings are cut into cells small enough to carry light in their corners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.houses.model.style import Style
from envs.houses.plan.house import House, Wall, openings, walls_of
from envs.houses.plan.layout import CEILING_M, DOOR_HEIGHT_M, STOREY_M, WALL_M, Door, Rect, around
from envs.houses.shapes.meshes import Part, Triangles, box, breaks, cells, colored, normals, place, quads
from envs.houses.shapes.textures import FLOOR_TILE_M, WALL_TILE_M

FOUNDATION_M = 0.18
"""The outer walls start this far below the floor. Navigation meshes have height steps of 0.2 m counted from the
lowest vertex: this puts the walkable surface 2 cm above the floor instead of 20 cm."""
CELL_M = 0.6
LAMP_SPACING_M = 4.0
_HALF_WALL = WALL_M / 2
_TRIM_M, _TRIM_OUT_M = 0.08, 0.02


@dataclass(frozen=True, eq=False)
class Surface:
    """Textured triangles (n, 3, 3) of one room with texture coordinates (n, 3, 2)."""

    name: str
    room: int
    triangles: Triangles
    uv: NDArray[np.float64]
    png: bytes


def room_surfaces(house: House, room: int, style: Style) -> list[Surface]:
    """Floor and walls of a room."""
    base = house.plan.floor_m(room)
    floor = quads([[(x, base, z) for x, z in reversed(cell)] for cell in _plates(house, room, below=True)])
    found = [Surface(f"floor {room}", room, floor, floor[..., (0, 2)] / FLOOR_TILE_M, style.floor(room))]
    png = style.wall(room)
    for wall in walls_of(house.plan, room):
        triangles = _wall_triangles(house, room, wall)
        along = triangles[..., 0 if wall.along == "x" else 2]
        uv = np.stack((along / WALL_TILE_M, 1.0 - (triangles[..., 1] - base) / CEILING_M), axis=-1)
        found.append(Surface(f"walls {room}", room, triangles, uv, png))
    return found


def room_parts(house: House, room: int) -> list[Part]:
    """Ceiling, lamps and the room's side of its door frames."""
    base = house.plan.floor_m(room)
    top = base + CEILING_M
    parts = [
        Part(quads([[(x, top, z) for x, z in cell] for cell in _plates(house, room, below=False)]), "ceiling")
    ]
    for x, z in lamps_of(house, room):
        parts += colored("light", box((x - 0.3, top - 0.05, z - 0.3), (x + 0.3, top, z + 0.3)))
        parts += colored("trim", box((x - 0.34, top - 0.03, z - 0.34), (x + 0.34, top, z + 0.34)))
    for door in house.plan.doors_of(room):
        parts += _frame(door, room)
    return parts


def lamps_of(house: House, room: int) -> list[tuple[float, float]]:
    """Plan positions of the ceiling lamps: one, or several along a long room, clear of an opening above."""
    rect = house.plan.rooms[room]
    for ramp in house.plan.ramps_of(room):
        strip = ramp.rect
        if ramp.uphill[0]:
            halves = Rect(rect.x0, rect.z0, rect.x1, strip.z0), Rect(rect.x0, strip.z1, rect.x1, rect.z1)
        else:
            halves = Rect(rect.x0, rect.z0, strip.x0, rect.z1), Rect(strip.x1, rect.z0, rect.x1, rect.z1)
        rect = max(halves, key=lambda half: half.width * half.depth)
    count = max(1, round(max(rect.width, rect.depth) / LAMP_SPACING_M))
    shares = [(2 * i + 1) / (2 * count) for i in range(count)]
    if rect.width >= rect.depth:
        return [(round(rect.x0 + share * rect.width, 2), rect.center[1]) for share in shares]
    return [(rect.center[0], round(rect.z0 + share * rect.depth, 2)) for share in shares]


def outside(house: House) -> list[Part]:
    """The outer walls of every storey, seen by nobody but closing the house."""
    parts = []
    for storey in range(house.plan.n_storeys):
        rects = [r for r, s in zip(house.plan.rooms, house.plan.storeys, strict=True) if s == storey]
        outer = around(rects).grown(_HALF_WALL)
        foot = storey * STOREY_M - (FOUNDATION_M if storey == 0 else STOREY_M - CEILING_M)
        shell = box((outer.x0, foot, outer.z0), (outer.x1, storey * STOREY_M + CEILING_M, outer.z1))
        parts.append(Part(shell[np.abs(normals(shell)[:, 1]) < 0.5], "facade"))
    return parts


def _plates(house: House, room: int, *, below: bool) -> list[list[tuple[float, float]]]:
    """Cells of the floor (`below`) or ceiling of a room, without the strips of its ramps.

    The floor ends at a ramp in both storeys: nobody walks inside the wedge.
    """
    rect, ramps = house.plan.rooms[room], house.plan.ramps_of(room)
    holes = [ramp.rect for ramp in ramps if below or ramp.rooms[0] == room]
    xs = breaks(rect.x0, rect.x1, CELL_M, [x for hole in holes for x in (hole.x0, hole.x1)])
    zs = breaks(rect.z0, rect.z1, CELL_M, [z for hole in holes for z in (hole.z0, hole.z1)])
    return cells(xs, zs, [(hole.x0, hole.z0, hole.x1, hole.z1) for hole in holes])


def _wall_triangles(house: House, room: int, wall: Wall) -> Triangles:
    doors, base = openings(house.plan, room, wall), house.plan.floor_m(room)
    us = breaks(wall.low, wall.high, CELL_M, [end for span in doors for end in span])
    vs = breaks(0.0, CEILING_M, 0.75, [DOOR_HEIGHT_M] if doors else [])
    faces = []
    for cell in cells(us, vs, [(low, 0.0, high, DOOR_HEIGHT_M) for low, high in doors]):
        if wall.along == "x":
            face = [(u, base + v, wall.line) for u, v in cell]
        else:
            face = [(wall.line, base + v, u) for u, v in cell]
        # Seen along -z, +x is to the right; seen along -x, +z is to the left.
        clockwise = (wall.along == "x") != (wall.facing > 0)
        faces.append(face[::-1] if clockwise else face)
    return quads(faces)


def _frame(door: Door, room: int) -> list[Part]:
    """Jambs, lintel and frame on one side of a door, built along x and turned into place."""
    half, top, depth = door.width / 2, DOOR_HEIGHT_M, _HALF_WALL + _TRIM_OUT_M
    solids = [
        box((-half - _TRIM_M, 0, 0), (-half, top, depth)),
        box((half, 0, 0), (half + _TRIM_M, top, depth)),
        box((-half - _TRIM_M, top, 0), (half + _TRIM_M, top + _TRIM_M, depth)),
    ]
    placed = place(np.concatenate(solids), door.normal(room), *door.center)
    return [Part(placed + np.array((0.0, door.y, 0.0)), "trim")]
