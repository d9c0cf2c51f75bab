"""How a house is finished and lit: what all houses share, and what is drawn for each.

All houses of an edition share theirs, or every house has materials, paints and light of its own, drawn from its
name: in its own look, or in the look `materials`. Train and unseen houses leave out some patterns each, so that
unseen ones show some for the first time; the look `textures` has patterns that nothing else shows, and `evening`
the house's materials in dark, warm light.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.houses.model.colors import CARPETS, SCHEMES, STONES, WOODS, near, paints, pastel
from envs.houses.options import HousesConfig
from envs.houses.plan.house import House
from envs.houses.shapes import patterns
from envs.houses.shapes.meshes import Part, Triangles, normals
from envs.houses.shapes.patterns import Color
from envs.houses.shapes.textures import COLORS, floor_png, pale, palette_png, palette_uv, wall_png

Tint = tuple[float, float, float]
_CLOTH_TILE_M, _WOOD_TILE_M = 0.6, 1.0
_WET_ROOMS = ("bathroom", "kitchen", "laundry room", "gym", "workshop")
_WOODS = ("brown", "pine")
_SAME_FLOOR = 0.6
"""Chance that a room has the floor of the hallway."""
_KEPT_BACK = {"wood": 2, "hard": 2, "wall": 3, "cloth": 1}
"""Patterns of every kind that only the look `textures` has."""
_LEFT_OUT = {"wood": 1, "hard": 1, "wall": 2, "cloth": 0}
"""Of the others, those that a group of houses leaves out."""
_PLAIN_WALLS = 2
"""How often plain walls and plaster are among the patterns of all houses: they are the most usual."""
_KINDS = {
    "wood": tuple(patterns.WOODEN_FLOORS),
    "hard": tuple(patterns.HARD_FLOORS),
    "wall": tuple(name for name in patterns.WALLS if name not in ("plain", "plaster")),
    "cloth": tuple(patterns.CLOTHS),
}


@dataclass(frozen=True)
class Lighting:
    """How a house is lit.

    Powers are shares of full brightness one meter away; tints are factors for red, green and blue. `lamps`: the
    least power of a room's lamps, and how much more it may be.
    """

    ambient: float = 0.4
    ambient_tint: Tint = (1.0, 1.0, 1.0)
    darkest: float = 0.3
    lamps: tuple[float, float] = (0.55, 0.3)
    warm: Tint = (1.0, 0.97, 0.9)
    cold: Tint = (0.95, 0.98, 1.0)
    window: float = 0.75
    daylight: Tint = (0.93, 0.97, 1.0)


DAY = Lighting()
_EVENING: dict[str, Any] = {
    "ambient_tint": (1.0, 0.84, 0.62),
    "darkest": 0.1,
    "lamps": (0.4, 0.2),
    "warm": (1.0, 0.74, 0.44),
    "cold": (1.0, 0.8, 0.54),
    "window": 0.06,
    "daylight": (0.45, 0.55, 0.9),
}


@dataclass(frozen=True, eq=False)
class Paint:
    """What covers a solid: an image, and which part of it. at: the one place (u, v) that is seen; None: the image
    repeats every `tile_m` meters along the two axes that a face lies along."""

    name: str
    png: bytes
    at: tuple[float, float] | None
    tile_m: float = 1.0

    def uv(self, triangles: Triangles) -> NDArray[np.float64]:
        """(3 n, 2) texture coordinates of the corners of n triangles."""
        corners = 3 * len(triangles)
        if self.at is not None:
            return np.repeat([self.at], corners, axis=0)
        facing = np.repeat(np.abs(np.round(normals(triangles), 4)).argmax(axis=1), 3)
        points = triangles.reshape(-1, 3) / self.tile_m
        across = np.where(facing == 0, points[:, 2], points[:, 0])
        return np.stack((np.where(facing == 1, points[:, 2], -points[:, 1]), across), axis=1)


def shared_paint(part: Part) -> Paint:
    """The flat color of a solid in houses that share all."""
    return Paint("palette", palette_png(), palette_uv(part.color))


class Style(ABC):
    """Images of the surfaces of a house, paints of its solids, and its light."""

    lighting: Lighting = DAY

    @abstractmethod
    def floor(self, room: int) -> bytes: ...

    @abstractmethod
    def wall(self, room: int) -> bytes: ...

    @abstractmethod
    def tread(self) -> bytes:
        """Of ramps."""

    @abstractmethod
    def paint(self, part: Part) -> Paint: ...


class SharedStyle(Style):
    """Materials and light by the kinds of rooms: the same in all houses."""

    def __init__(self, house: House) -> None:
        self._looks = house.looks

    def floor(self, room: int) -> bytes:
        return floor_png(*self._looks[room].kind.floor)

    def wall(self, room: int) -> bytes:
        look = self._looks[room]
        return wall_png(look.kind.wall, pale(look.wall_color, look.kind.paleness))

    def tread(self) -> bytes:
        return floor_png("planks", (170, 132, 92))

    def paint(self, part: Part) -> Paint:
        return shared_paint(part)


@dataclass(frozen=True)
class _Finish:
    """A pattern, the seed of its details, and its two colors."""

    pattern: str
    seed: int
    color: Color
    second: Color

    def png(self) -> bytes:
        return patterns.tile_png(self.pattern, self.seed, self.color, self.second)


class DrawnStyle(Style):
    """Materials, paints and light drawn for one house in one look."""

    def __init__(self, house: House, pools: dict[str, Sequence[str]], about: str, look: str) -> None:
        self._pools = pools
        self._rng = rng = random.Random(f"{about}{' textures' * (look == 'textures')}")
        self._paints = paints(random.Random(f"{about} paints"))
        self._wood = self._finish("wood", (self._paints["pine"],))
        main = self._floor("hallway")
        names = [look.kind.name for look in house.looks]
        self._floors = [main if self._as_main(name) else self._floor(name) for name in names]
        scheme = rng.choice(SCHEMES)
        self._walls = [self._wall(look.wall_color, look.title, scheme) for look in house.looks]
        self._cloths = {color: self._cloth(color) for color in COLORS}
        self.lighting = _drawn_light(random.Random(f"{about} light"))
        if look == "evening":
            self._paints["glass"] = (30, 36, 60)
            self.lighting = replace(self.lighting, ambient=0.5 * self.lighting.ambient, **_EVENING)
        cells = np.arange(len(COLORS)).repeat(4)[:, None].repeat(4, axis=1)
        self._palette = patterns.indexed_png(cells, list(self._paints.values()))

    def floor(self, room: int) -> bytes:
        return self._floors[room].png()

    def wall(self, room: int) -> bytes:
        wall = self._walls[room]
        return patterns.wall_png(wall.pattern, wall.seed, wall.color, wall.second, self._paints["trim"])

    def tread(self) -> bytes:
        return replace(self._wood, pattern="planks").png()

    def paint(self, part: Part) -> Paint:
        if part.cloth:
            return Paint(f"cloth {part.color}", self._cloths[part.color].png(), None, _CLOTH_TILE_M)
        if part.color in _WOODS:
            wood = replace(self._wood, color=self._paints[part.color])
            return Paint(f"wood {part.color}", wood.png(), None, _WOOD_TILE_M)
        return Paint("palette", self._palette, palette_uv(part.color))

    def _finish(self, pattern: str, colors: Sequence[Color]) -> _Finish:
        color = near(self._rng.choice(colors), self._rng, 8)
        by = self._rng.choice((-46, -34, 30, 40))
        second = near(pastel(color, by), self._rng, 8)
        return _Finish(pattern, self._rng.randrange(10_000), color, second)

    def _as_main(self, name: str) -> bool:
        return name == "hallway" or (name not in _WET_ROOMS and self._rng.random() < _SAME_FLOOR)

    def _floor(self, name: str) -> _Finish:
        pattern = self._rng.choice(self._pools["hard" if name in _WET_ROOMS else "wood"])
        if "carpet" in pattern:
            return self._finish(pattern, CARPETS)
        return self._finish(pattern, STONES if name in _WET_ROOMS else WOODS)

    def _wall(self, color: str, title: str, scheme: Sequence[Color]) -> _Finish:
        """A wall in a color of the house, or in the room's own where that is part of its name."""
        pattern = self._rng.choice(self._pools["wall"])
        if title.startswith(color):
            own = self._finish(pattern, (pale(color, 0.3 + 0.25 * self._rng.random()),))
            return replace(own, second=pastel(own.color, self._rng.choice((-24, 18))))
        return self._finish(pattern, scheme)

    def _cloth(self, color: str) -> _Finish:
        pattern = self._rng.choice(self._pools["cloth"])
        return _Finish(pattern, self._rng.randrange(10_000), self._paints[color], self._paints[color])


def style_of(house: House, config: HousesConfig, look: str = "") -> Style:
    """How a house of a configuration is finished and lit in a look, "" being its own."""
    edition = config.edition
    if not (look or edition.varied):
        return SharedStyle(house)
    about = f"vlnbench {edition.name} style {config.seed}"
    pools = _pools(random.Random(f"{about} patterns"), "_unseen_" in house.name, look == "textures")
    return DrawnStyle(house, pools, f"{about} {house.name}", look)


def _pools(rng: random.Random, unseen: bool, other: bool) -> dict[str, Sequence[str]]:
    """Patterns by kind of a group of houses; other: those that only the look `textures` has."""
    pools: dict[str, Sequence[str]] = {}
    for kind, names in _KINDS.items():
        shuffled = list(names)
        rng.shuffle(shuffled)
        kept, left = _KEPT_BACK[kind], _LEFT_OUT[kind]
        first = kept + left if unseen else kept
        out = () if other else shuffled[first : first + left]
        pools[kind] = shuffled[:kept] if other else [name for name in shuffled[kept:] if name not in out]
    if not other:
        pools["wall"] = [*pools["wall"], *("plain", "plaster") * _PLAIN_WALLS]
    return pools


def _drawn_light(rng: random.Random) -> Lighting:
    warm, sky = rng.random(), rng.random()
    return Lighting(
        ambient=0.3 + 0.2 * rng.random(),
        ambient_tint=(1.0, 1.0 - 0.06 * warm, 1.0 - 0.14 * warm),
        darkest=0.22,
        lamps=(0.35 + 0.3 * rng.random(), 0.35),
        warm=(1.0, 0.97 - 0.09 * warm, 0.92 - 0.26 * warm),
        cold=(0.92 + 0.08 * warm, 0.98, 1.0 - 0.1 * warm),
        window=0.25 + 0.7 * rng.random(),
        daylight=(0.86 + 0.14 * sky, 0.95, 1.0 - 0.12 * sky),
    )
