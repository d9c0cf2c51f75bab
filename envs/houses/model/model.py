"""A house as lit, textured triangles."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.houses.model.hangings import Hanging, hang
from envs.houses.model.lighting import Colors, Light, lights_of, obstacles_of, shade
from envs.houses.model.ramps import opening_parts, ramp_surface, wedge_parts
from envs.houses.model.shell import outside, room_parts, room_surfaces
from envs.houses.model.style import DAY, Lighting, Paint, SharedStyle, Style, shared_paint
from envs.houses.plan.catalog import CLOTH
from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House
from envs.houses.plan.visibility import Boxes
from envs.houses.shapes.glb_writer import Primitive
from envs.houses.shapes.meshes import Part, Triangles, normals, place, shifted
from envs.houses.shapes.textures import LUMINOUS

_NO_BOXES: Boxes = np.empty((0, 6))
_OUTSIDE_LIGHT = 0.8


def house_primitives(house: House, rng: random.Random, style: Style | None = None) -> list[Primitive]:
    """Textured triangles of a house, lit in their vertex colors. `rng` chooses pictures, windows and lamps; style:
    materials and light, those that all houses share where none are given."""
    style = style or SharedStyle(house)
    hangings = hang(house, rng)
    lights = lights_of(house, hangings, rng, style.lighting)
    soup = _Soup(style.paint, style.lighting)
    for room in range(len(house.plan.rooms)):
        obstacles = obstacles_of(house, room)
        for surface in room_surfaces(house, room, style):
            colors = _lit(surface.triangles, lights[room], obstacles, style.lighting)
            soup.add(surface.name, surface.png, surface.triangles, surface.uv, colors)
        fixed = room_parts(house, room)
        for ramp in house.plan.ramps_of(room):
            fixed += wedge_parts(house, ramp) if room == ramp.rooms[0] else opening_parts(house, ramp)
        movable = [part for item in house.items if item.room == room for part in _item_parts(item)]
        movable += [
            part for hanging in hangings if hanging.room == room for part in _hanging_parts(house, hanging)
        ]
        soup.add_parts(fixed + movable, lights[room])
    for ramp in house.plan.ramps:
        surface = ramp_surface(house, ramp, style)
        both = lights[ramp.rooms[0]] + lights[ramp.rooms[1]]
        colors = _lit(surface.triangles, both, _NO_BOXES, style.lighting)
        soup.add(surface.name, surface.png, surface.triangles, surface.uv, colors)
    soup.add_parts(outside(house), None)
    return soup.primitives()


def parts_primitive(parts: Sequence[Part], lights: Sequence[Light]) -> Primitive:
    """Solids of flat colors, lit."""
    soup = _Soup(shared_paint, DAY)
    soup.add_parts(parts, lights)
    return soup.primitives()[0]


def _item_parts(item: Item) -> list[Part]:
    parts = item.furnishing.build(item.color)
    if item.noun in CLOTH:
        parts = [replace(part, cloth=part.color == item.color) for part in parts]
    return _moved(parts, item.facing, (item.x, item.y, item.z))


def _hanging_parts(house: House, hanging: Hanging) -> list[Part]:
    x, z = hanging.center
    return _moved(hanging.parts(), hanging.facing, (x, house.plan.floor_m(hanging.room) + hanging.foot, z))


def _moved(parts: list[Part], facing: tuple[int, int], to: tuple[float, float, float]) -> list[Part]:
    x, y, z = to
    return [replace(part, triangles=shifted(place(part.triangles, facing, x, z), 0.0, y, 0.0)) for part in parts]


def _lit(triangles: Triangles, lights: Sequence[Light], obstacles: Boxes, lighting: Lighting = DAY) -> Colors:
    """(3 n, 3) light in the corners of n triangles."""
    corners, repeated = triangles.reshape(-1, 3), np.repeat(normals(triangles), 3, axis=0)
    both = np.round(np.concatenate((corners, repeated), axis=1), 5)
    first, inverse = _distinct(both)
    colors: Colors = shade(both[first, :3], both[first, 3:], lights, obstacles, lighting)[inverse]
    return colors


def _distinct(rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First occurrence of every different row, in order, and for each row the number of its equal among them."""
    rows = np.ascontiguousarray(rows + rows.dtype.type(0.0))  # -0.0 and 0.0 are equal
    packed = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse.reshape(-1)]


class _Soup:
    """Triangles gathered by texture."""

    def __init__(self, paint: Callable[[Part], Paint], lighting: Lighting) -> None:
        self._paint, self._lighting = paint, lighting
        self._pieces: dict[bytes, list[tuple[str, NDArray[np.float64]]]] = {}

    def add(self, name: str, png: bytes, triangles: Triangles, uv: NDArray[np.float64], colors: Colors) -> None:
        corners = (triangles.reshape(-1, 3), uv.reshape(-1, 2), colors)
        self._pieces.setdefault(png, []).append((name, np.concatenate(corners, axis=1)))

    def add_parts(self, parts: Sequence[Part], lights: Sequence[Light] | None) -> None:
        """Solids, each of one paint. Without lights they all have the same brightness."""
        by_png: dict[bytes, list[tuple[Paint, Part]]] = {}
        for part in parts:
            paint = self._paint(part)
            by_png.setdefault(paint.png, []).append((paint, part))
        for png, painted in by_png.items():
            triangles = np.concatenate([part.triangles for _, part in painted])
            counts = [3 * len(part.triangles) for _, part in painted]
            if lights is None:
                colors = np.full((3 * len(triangles), 3), _OUTSIDE_LIGHT)
            else:
                colors = _lit(triangles, lights, _NO_BOXES, self._lighting)
                colors[np.repeat([part.color in LUMINOUS for _, part in painted], counts)] = 1.0
            uv = np.concatenate([paint.uv(part.triangles) for paint, part in painted])
            self.add(painted[0][0].name, png, triangles, uv, colors)

    def primitives(self) -> list[Primitive]:
        return [
            _indexed(pieces[0][0], np.concatenate([corners for _, corners in pieces]), png)
            for png, pieces in self._pieces.items()
        ]


def _indexed(name: str, corners: NDArray[np.float64], png: bytes) -> Primitive:
    """Triangle corners (3 n, 8) -> indexed triangles; equal corners are shared in order of first appearance.

    Positions are rounded to 0.1 mm: the last bits of sines and cosines differ between machines.
    """
    corners = np.concatenate((np.round(corners[:, :5], 4), np.rint(corners[:, 5:] * 255)), axis=1)
    single: NDArray[np.float32] = corners.astype(np.float32)
    first, inverse = _distinct(single)
    kept, indices = single[first], inverse.astype(np.uint32).reshape(-1, 3)
    return Primitive(name, kept[:, :3], kept[:, 3:5], kept[:, 5:].astype(np.uint8), indices, png)
