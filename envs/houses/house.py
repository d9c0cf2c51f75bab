"""One generated house: its plan, rooms and objects.

What describes a house:

- `House.plan` (layout.py): `rooms` as rectangles with a storey each, `doors`, `ramps`, `bounds`; `floor_m(room)`
  is the height of a floor, `room_at(x, z, y)` the room around a floor point. On a ramp that is the lower room up
  to half its height and the upper one above: a path over a ramp changes rooms there, without a door.
- `House.looks` (rooms.py): kind, wall colour and title of every room.
- `House.items` (furnish.py): noun, colour, room, storey, (x, y, z), facing, footprint, height, whether
  instructions may name it (`landmark`) and whether it is there to mislead (`distractor`).
- `visibility.visible(house, eye, item)`: whether an object is in sight.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlnbench.houses_config import HousesConfig

from .furnish import Item, furnish
from .furniture import FURNISHINGS
from .glb_writer import Primitive
from .hangings import painting, window
from .layout import CEILING_M, DOOR_HEIGHT_M, WALL_M, Plan, Rect
from .meshes import Part, Triangles, block, box, place, quads
from .planner import make_plan
from .rooms import RoomLook, choose_looks
from .textures import FLOOR_TILE_M, WALL_TILE_M, floor_png, pale, palette_png, palette_uv, shade_levels, wall_png

FOUNDATION_M = 0.18
"""The outer walls start this far below the floor. Navigation meshes have height steps of 0.2 m counted from the
lowest vertex: this puts the walkable surface 2 cm above the floor instead of 20 cm."""
_HALF_WALL = WALL_M / 2
_TRIM_M, _TRIM_OUT_M = 0.08, 0.02
_WALL_SHADES = {"x": 1.0, "z": 0.86}


@dataclass(frozen=True)
class House:
    """A house before it becomes triangles. `name` is also the name of its folder and scene."""

    name: str
    plan: Plan
    looks: tuple[RoomLook, ...]
    items: tuple[Item, ...]

    @property
    def scene_id(self) -> str:
        """Scene file below the scenes directory."""
        return f"houses/{self.name}/{self.name}.glb"

    def title(self, room: int) -> str:
        """What instructions call a room."""
        return self.looks[room].title


class Wall(NamedTuple):
    """One inner face of a room's wall: at `line`, from `low` to `high` on axis `along`, looking to `facing`."""

    along: str
    line: float
    low: float
    high: float
    facing: int
    outer: bool


def make_house(name: str, config: HousesConfig) -> House:
    """The house called `name` in the benchmark of this configuration."""
    rng = random.Random(f"vlnbench houses {config.seed} {name}")
    while True:
        plan = make_plan(rng, config)
        looks = choose_looks(plan, rng)
        items = furnish(plan, looks, config, rng)
        if items is not None:
            return House(name, plan, looks, items)


def walls_of(plan: Plan, room: int) -> list[Wall]:
    """The four inner wall faces of a room."""
    outer, bounds = plan.rooms[room], plan.bounds
    inner = outer.grown(-_HALF_WALL)
    return [
        Wall("x", inner.z0, inner.x0, inner.x1, 1, outer.z0 == bounds.z0),
        Wall("x", inner.z1, inner.x0, inner.x1, -1, outer.z1 == bounds.z1),
        Wall("z", inner.x0, inner.z0, inner.z1, 1, outer.x0 == bounds.x0),
        Wall("z", inner.x1, inner.z0, inner.z1, -1, outer.x1 == bounds.x1),
    ]


def house_primitives(house: House, rng: random.Random) -> list[Primitive]:
    """Textured triangles of the whole house. `rng` chooses pictures and windows."""
    primitives = []
    parts: list[Part] = []
    for room, look in enumerate(house.looks):
        rect = house.plan.rooms[room]
        style, color = look.kind.floor
        corners = [(rect.x0, rect.z0), (rect.x0, rect.z1), (rect.x1, rect.z1), (rect.x1, rect.z0)]
        floor = quads([[(x, 0.0, z) for x, z in corners]])
        primitives.append(
            _primitive(f"floor {room}", floor, floor[..., (0, 2)] / FLOOR_TILE_M, floor_png(style, color))
        )
        parts.append(Part(quads([[(x, CEILING_M, z) for x, z in reversed(corners)]]), "ceiling"))
        light = block((rect.center[0], CEILING_M - 0.05, rect.center[1]), (0.6, 0.05, 0.6))
        parts.append(Part(light, "light"))
        wall_color = pale(look.wall_color, 0.35 if look.kind.name == "library" else 0.55)
        for along, shade in _WALL_SHADES.items():
            faces = [
                _wall_triangles(house.plan, wall) for wall in walls_of(house.plan, room) if wall.along == along
            ]
            triangles = np.concatenate(faces)
            axis = 0 if along == "x" else 2
            uv = np.stack((triangles[..., axis] / WALL_TILE_M, 1.0 - triangles[..., 1] / CEILING_M), axis=-1)
            png = wall_png(look.kind.wall, wall_color, shade)
            primitives.append(_primitive(f"walls {room} {along}", triangles, uv, png))
        for wall in walls_of(house.plan, room):
            parts += _hangings(house, room, wall, rng)
    parts += _doors(house.plan) + _outside(house.plan.bounds)
    for item in house.items:
        parts += _moved(FURNISHINGS[item.noun].build(item.color), item.facing, item.x, item.z)
    return [_palette_primitive(parts), *primitives]


def _openings(plan: Plan, wall: Wall) -> list[tuple[float, float]]:
    found = []
    for door in plan.doors:
        across, middle = (door.center[1], door.center[0]) if door.along == "x" else door.center
        if door.along == wall.along and abs(across - wall.line) <= WALL_M and wall.low < middle < wall.high:
            found.append((middle - door.width / 2, middle + door.width / 2))
    return sorted(found)


def _wall_triangles(plan: Plan, wall: Wall) -> Triangles:
    spans, position = [], wall.low
    for low, high in _openings(plan, wall):
        spans += [(position, low, 0.0), (low, high, DOOR_HEIGHT_M)]
        position = high
    spans.append((position, wall.high, 0.0))
    faces = []
    for low, high, foot in spans:
        corners = [(low, foot), (high, foot), (high, CEILING_M), (low, CEILING_M)]
        if wall.along == "x":
            face = [(a, y, wall.line) for a, y in corners]
        else:
            face = [(wall.line, y, a) for a, y in corners]
        # Seen along -z, +x is to the right; seen along -x, +z is to the left.
        clockwise = (wall.along == "x") != (wall.facing > 0)
        faces.append(face[::-1] if clockwise else face)
    return quads(faces)


def _doors(plan: Plan) -> list[Part]:
    """Jambs, lintel and a frame on both sides of every door, built along x and turned into place."""
    parts = []
    for door in plan.doors:
        half, top = door.width / 2, DOOR_HEIGHT_M
        depth = _HALF_WALL + _TRIM_OUT_M
        solids = [
            box((-half - _TRIM_M, 0, -depth), (-half, top, depth)),
            box((half, 0, -depth), (half + _TRIM_M, top, depth)),
            box((-half - _TRIM_M, top, -depth), (half + _TRIM_M, top + _TRIM_M, depth)),
        ]
        facing = (0, 1) if door.along == "x" else (1, 0)
        parts += _moved([Part(np.concatenate(solids), "trim")], facing, *door.center)
    return parts


def _outside(bounds: Rect) -> list[Part]:
    outer = bounds.grown(_HALF_WALL)
    shell = box((outer.x0, -FOUNDATION_M, outer.z0), (outer.x1, CEILING_M, outer.z1))
    normals = np.cross(shell[:, 1] - shell[:, 0], shell[:, 2] - shell[:, 0])
    return [Part(shell[np.abs(normals[:, 1]) < 1e-9], "facade")]


def _hangings(house: House, room: int, wall: Wall, rng: random.Random) -> list[Part]:
    """Windows on outer walls and pictures on inner ones, where nothing tall stands before them."""
    length = wall.high - wall.low
    if length < 2.4 or rng.random() < (0.25 if wall.outer else 0.5):
        return []
    width, height, foot = (rng.choice((1.0, 1.4)), 1.1, 0.95) if wall.outer else (0.8, 0.6, 1.35)
    middle = round(wall.low + length * rng.choice((0.3, 0.5, 0.7)), 2)
    low, high = middle - width / 2 - 0.15, middle + width / 2 + 0.15
    near = (low, high, wall.line - 0.7, wall.line + 0.7)
    strip = (
        Rect(near[0], near[2], near[1], near[3]) if wall.along == "x" else Rect(near[2], near[0], near[3], near[1])
    )
    tall = (i for i in house.items if i.room == room and FURNISHINGS[i.noun].height > foot)
    if low < wall.low or high > wall.high or any(strip.overlaps(item.footprint) for item in tall):
        return []
    if any(a - 0.1 < high and low < b + 0.1 for a, b in _openings(house.plan, wall)):
        return []
    color = rng.choice(("red", "blue", "green", "yellow", "purple", "orange"))
    parts = window(width, height) if wall.outer else painting(color, width, height)
    parts = [Part(part.triangles + np.array((0.0, foot, 0.0)), part.color) for part in parts]
    if wall.along == "x":
        return _moved(parts, (0, wall.facing), middle, wall.line)
    return _moved(parts, (wall.facing, 0), wall.line, middle)


def _moved(parts: list[Part], facing: tuple[int, int], x: float, z: float) -> list[Part]:
    return [Part(place(part.triangles, facing, x, z), part.color) for part in parts]


def _palette_primitive(parts: list[Part]) -> Primitive:
    triangles = np.concatenate([part.triangles for part in parts])
    normals = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    levels = shade_levels(normals)
    uv, start = np.empty((len(triangles), 2)), 0
    for part in parts:
        end = start + len(part.triangles)
        uv[start:end] = palette_uv(part.color, levels[start:end])
        start = end
    return _primitive("palette", triangles, np.repeat(uv[:, None], 3, axis=1), palette_png())


def _primitive(name: str, triangles: Triangles, uv: NDArray[np.float64], png: bytes) -> Primitive:
    """Triangle soup -> indexed triangles; equal corners are shared in order of first appearance."""
    corners = np.concatenate((triangles.reshape(-1, 3), uv.reshape(-1, 2)), axis=1).astype(np.float32)
    corners += np.float32(0.0)  # -0.0 and 0.0 are one corner
    _, first, inverse = np.unique(corners, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    kept = corners[first[order]]
    indices = rank[inverse.reshape(-1)].astype(np.uint32).reshape(-1, 3)
    return Primitive(name, kept[:, :3], kept[:, 3:], indices, png)
