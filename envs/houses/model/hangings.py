"""Windows and pictures: where they hang, and flat panels for them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from envs.houses.plan.house import House, Wall, openings, walls_of
from envs.houses.plan.layout import Rect
from envs.houses.shapes.meshes import Part, box, colored

_COLORS = ("red", "blue", "green", "yellow", "purple", "orange", "turquoise")


@dataclass(frozen=True)
class Hanging:
    """A window (on an outer wall) or a picture on a wall of a room.

    `middle` is its place along the wall, `foot` the height of its lower edge above the floor.
    """

    room: int
    wall: Wall
    middle: float
    foot: float
    size: tuple[float, float]
    color: str

    @property
    def center(self) -> tuple[float, float]:
        """Plan position (x, z)."""
        return (self.middle, self.wall.line) if self.wall.along == "x" else (self.wall.line, self.middle)

    @property
    def facing(self) -> tuple[int, int]:
        """Unit (x, z) direction into the room."""
        return (0, self.wall.facing) if self.wall.along == "x" else (self.wall.facing, 0)

    def parts(self) -> list[Part]:
        """Solids with the lower edge at y = 0 and the back at z = 0, looking along +z."""
        return window(*self.size, self.color) if self.wall.outer else painting(self.color, *self.size)


def hang(house: House, rng: random.Random) -> list[Hanging]:
    """Windows on outer walls and pictures on inner ones, where nothing tall stands before them."""
    found = []
    for room in range(len(house.plan.rooms)):
        for wall in walls_of(house.plan, room):
            length = wall.high - wall.low
            for share in (0.25, 0.75) if wall.outer and length > 4.5 else (rng.choice((0.35, 0.5, 0.65)),):
                hanging = _draw(room, wall, round(wall.low + length * share, 2), rng)
                if rng.random() < (0.85 if wall.outer else 0.5) and _fits(house, hanging):
                    found.append(hanging)
    return found


def _draw(room: int, wall: Wall, middle: float, rng: random.Random) -> Hanging:
    size = (rng.choice((1.0, 1.4)), 1.2) if wall.outer else rng.choice(((0.8, 0.6), (0.6, 0.8), (1.1, 0.6)))
    return Hanging(room, wall, middle, 0.95 if wall.outer else 1.3, size, rng.choice(_COLORS))


def _fits(house: House, hanging: Hanging) -> bool:
    wall, room, plan = hanging.wall, hanging.room, house.plan
    low, high = hanging.middle - hanging.size[0] / 2 - 0.3, hanging.middle + hanging.size[0] / 2 + 0.3
    if low < wall.low or high > wall.high:
        return False
    if any(a - 0.1 < high and low < b + 0.1 for a, b in openings(plan, room, wall)):
        return False
    near, far = wall.line - 0.7, wall.line + 0.7
    strip = Rect(low, near, high, far) if wall.along == "x" else Rect(near, low, far, high)
    tall = [i.footprint for i in house.items if i.room == room and i.height > hanging.foot]
    tall += [ramp.rect for ramp in plan.ramps_of(room) if ramp.rooms[0] == room]
    return not any(strip.overlaps(rect) for rect in tall)


def painting(color: str, width: float, height: float) -> list[Part]:
    """A framed picture: two fields, one of the color, on cream."""
    x, y = width / 2, height
    return [
        *colored("brown", box((-x, 0, 0), (x, y, 0.03))),
        *colored("cream", box((-x + 0.05, 0.05, 0.03), (x - 0.05, y - 0.05, 0.036))),
        *colored(color, box((-x * 0.65, y * 0.2, 0.036), (x * 0.2, y * 0.8, 0.042))),
        *colored("screen", box((x * 0.35, y * 0.2, 0.036), (x * 0.65, y * 0.5, 0.042))),
    ]


def window(width: float, height: float, color: str) -> list[Part]:
    """A window with a sill and curtains."""
    x, bar = width / 2, 0.04
    curtains = [box((s * x - 0.13, -0.12, 0.03), (s * x + 0.13, height + 0.08, 0.08)) for s in (-1, 1)]
    return [
        *colored(
            "white", box((-x, 0, 0), (x, height, 0.02)), box((-0.02, bar, 0.02), (0.02, height - bar, 0.045))
        ),
        *colored("white", box((-x + bar, height * 0.62, 0.02), (x - bar, height * 0.62 + bar, 0.04))),
        *colored("white", box((-x - 0.05, -0.04, 0), (x + 0.05, 0.0, 0.12))),
        *colored("glass", box((-x + bar, bar, 0.02), (x - bar, height - bar, 0.026))),
        *colored(color, *curtains),
        *colored("brown", box((-x - 0.2, height + 0.06, 0.02), (x + 0.2, height + 0.1, 0.1))),
    ]
