"""One generated house: its plan, rooms and objects.

What describes a house:

- `House.plan` (layout.py): `rooms` as rectangles with a storey each, `doors`, `ramps`, `bounds`; `floor_m(room)`
  is the height of a floor, `room_at(x, z, y)` the room around a floor point. On a ramp that is the lower room up
  to half its height and the upper one above: a path over a ramp changes rooms there, without a door.
- `House.looks` (rooms.py): kind, wall color and title of every room.
- `House.items` (furnish.py): noun, color, room, storey, (x, y, z), facing, footprint, height, whether
  instructions may name it (`landmark`) and whether it is there to mislead (`distractor`).
- `visibility.visible(house, eye, item)`: whether an object is in sight.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from envs.houses.options import HousesConfig
from envs.houses.plan.furnish import Item, furnish
from envs.houses.plan.layout import WALL_M, Plan, around
from envs.houses.plan.planner import make_plan
from envs.houses.plan.rooms import RoomLook, choose_looks, recolored

_DROPPED = "_drop"


@dataclass(frozen=True)
class House:
    """A house before it becomes triangles. `name` is also the name of its folder and scene."""

    name: str
    plan: Plan
    looks: tuple[RoomLook, ...]
    items: tuple[Item, ...]
    folder: str = "houses"
    """Where the scenes of its edition lie."""

    @property
    def scene_id(self) -> str:
        """Scene file below the scenes directory, of the house's own look."""
        return f"{self.folder}/{self.name}/{self.name}.glb"

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


def dropped_name(name: str, number: int) -> str:
    """What a house is called that has the plan of another one, recolored and refurnished."""
    return f"{name}{_DROPPED}{number}"


def make_house(name: str, config: HousesConfig) -> House:
    """The house called `name` in the benchmark of this configuration."""
    base, dropped, _ = name.partition(_DROPPED)
    if dropped:
        return _refurnished(make_house(base, config), name, config)
    folder = config.edition.name
    rng = random.Random(f"vlnbench {folder} {config.seed} {name}")
    while True:
        plan = make_plan(rng, config)
        looks = choose_looks(plan, rng)
        items = furnish(plan, looks, config, rng)
        if items is not None:
            return House(name, plan, looks, items, folder)


def _refurnished(house: House, name: str, config: HousesConfig) -> House:
    rng = random.Random(f"vlnbench {house.folder} {config.seed} {name}")
    looks = recolored(house.looks, rng)
    while True:
        items = furnish(house.plan, looks, config, rng)
        if items is not None:
            return House(name, house.plan, looks, items, house.folder)


def walls_of(plan: Plan, room: int) -> list[Wall]:
    """The four inner wall faces of a room."""
    outer = plan.rooms[room]
    bounds = around(
        [r for r, storey in zip(plan.rooms, plan.storeys, strict=True) if storey == plan.storeys[room]]
    )
    inner = outer.grown(-WALL_M / 2)
    return [
        Wall("x", inner.z0, inner.x0, inner.x1, 1, outer.z0 == bounds.z0),
        Wall("x", inner.z1, inner.x0, inner.x1, -1, outer.z1 == bounds.z1),
        Wall("z", inner.x0, inner.z0, inner.z1, 1, outer.x0 == bounds.x0),
        Wall("z", inner.x1, inner.z0, inner.z1, -1, outer.x1 == bounds.x1),
    ]


def openings(plan: Plan, room: int, wall: Wall) -> list[tuple[float, float]]:
    """(from, to) of the doorways along a wall."""
    found = []
    for door in plan.doors_of(room):
        across, middle = (door.center[1], door.center[0]) if door.along == "x" else door.center
        if door.along == wall.along and abs(across - wall.line) <= WALL_M and wall.low < middle < wall.high:
            found.append((middle - door.width / 2, middle + door.width / 2))
    return sorted(found)
