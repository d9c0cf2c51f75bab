"""Where furniture and landmark objects stand: against walls, clear of doors, with room to walk between them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from .furniture import FURNISHINGS, LANDMARKS, Furnishing
from .layout import WALL_M, Door, Plan, Rect
from .rooms import RoomLook

CLEARANCE_M = 0.46
"""Half the width of the narrowest passage that has to stay free."""
_CELL_M = 0.1
_WALL_GAP_M = 0.03
_DOOR_REACH_M = 1.0
_TRIES = 14
_TRIES_ESSENTIAL = 80
_FACINGS = ((0, 1), (0, -1), (1, 0), (-1, 0))


@dataclass(frozen=True)
class Item:
    """One object of a house. `facing` is the (x, z) direction of its front, `footprint` its place in the plan."""

    noun: str
    color: str
    room: int
    x: float
    z: float
    facing: tuple[int, int]
    footprint: Rect

    @property
    def landmark(self) -> bool:
        """Whether the object has a colour and noun that no other object of the house shares."""
        return self.noun in LANDMARKS

    @property
    def name(self) -> str:
        """Colour and noun, as instructions say it."""
        return f"{self.color} {self.noun}"


class RoomFloor:
    """Free floor of one room on a grid of 0.1 m."""

    def __init__(self, inner: Rect, doors: Sequence[Door]) -> None:
        self.inner = inner
        self.doors = [door.zone(_DOOR_REACH_M) for door in doors]
        self._taken: list[Rect] = []
        shape = (round(inner.depth / _CELL_M) + 2, round(inner.width / _CELL_M) + 2)
        self._blocked = np.ones(shape, dtype=np.bool_)
        self._blocked[1:-1, 1:-1] = False
        self._access = [self._cell_before(door) for door in doors]

    def _cell_before(self, door: Door) -> tuple[int, int]:
        reach = WALL_M / 2 + CLEARANCE_M + _CELL_M
        x, z = door.center
        x = min(max(x, self.inner.x0 + reach), self.inner.x1 - reach)
        z = min(max(z, self.inner.z0 + reach), self.inner.z1 - reach)
        return round((z - self.inner.z0) / _CELL_M + 0.5), round((x - self.inner.x0) / _CELL_M + 0.5)

    def add(self, rect: Rect) -> bool:
        """Take a place if it is inside, free, clear of doors and leaves all walking paths open."""
        inner = self.inner
        if rect.x0 < inner.x0 or rect.x1 > inner.x1 or rect.z0 < inner.z0 or rect.z1 > inner.z1:
            return False
        if any(rect.overlaps(other) for other in (*self._taken, *self.doors)):
            return False
        rows = slice(
            1 + int((rect.z0 - inner.z0) / _CELL_M), 2 + int(np.ceil((rect.z1 - inner.z0) / _CELL_M - 1e-9))
        )
        columns = slice(
            1 + int((rect.x0 - inner.x0) / _CELL_M), 2 + int(np.ceil((rect.x1 - inner.x0) / _CELL_M - 1e-9))
        )
        blocked = self._blocked.copy()
        blocked[rows, columns] = True
        walkable = ndimage.distance_transform_edt(~blocked) * _CELL_M > CLEARANCE_M
        labels, parts = ndimage.label(walkable)
        if parts != 1 or any(labels[cell] != 1 for cell in self._access):
            return False
        self._blocked = blocked
        self._taken.append(rect)
        return True


def furnish(plan: Plan, looks: Sequence[RoomLook], rng: random.Random) -> tuple[Item, ...] | None:
    """Furniture and landmarks of all rooms; None if a piece that a room cannot do without finds no place.

    Colour and noun of a landmark occur once in a house, other nouns as often as the kind of room lists them.
    """
    pairs = [(noun, color) for noun in LANDMARKS for color in FURNISHINGS[noun].colors]
    rng.shuffle(pairs)
    items: list[Item] = []
    for room, look in enumerate(looks):
        floor = RoomFloor(plan.rooms[room].grown(-WALL_M / 2), plan.doors_of(room))
        for noun, chance in look.kind.furniture:
            if rng.random() < chance:
                color = rng.choice(FURNISHINGS[noun].colors)
                tries = _TRIES_ESSENTIAL if chance == 1.0 else _TRIES
                placed = _try_item(floor, (room, tries), FURNISHINGS[noun], color, rng)
                if chance == 1.0 and not placed:
                    return None
                items += placed
        nouns: set[str] = set()
        for _ in range(look.kind.landmarks):
            pair = next(pair for pair in pairs if pair[0] not in nouns)
            placed = _try_item(floor, (room, _TRIES), FURNISHINGS[pair[0]], pair[1], rng)
            if placed:
                pairs.remove(pair)
                nouns.add(pair[0])
                items += placed
    return tuple(items)


def _try_item(
    floor: RoomFloor, room_tries: tuple[int, int], what: Furnishing, color: str, rng: random.Random
) -> list[Item]:
    room, tries = room_tries
    open_floor = floor.inner.grown(-0.3)
    for _ in range(tries):
        draw = (rng.choice(_FACINGS), rng.random(), rng.random())
        item = _candidate(floor.inner, room, what, color, draw)
        place = item.footprint
        if what.place == "rug":
            if open_floor.contains(place.x0, place.z0) and open_floor.contains(place.x1, place.z1):
                return [item]
        elif floor.add(place):
            return [item]
    return []


def _candidate(
    inner: Rect, room: int, what: Furnishing, color: str, draw: tuple[tuple[int, int], float, float]
) -> Item:
    (fx, fz), along, across = draw
    width, depth = what.size if fz else (what.size[1], what.size[0])
    x = _snap(inner.x0 + width / 2 + along * (inner.width - width))
    z = _snap(inner.z0 + depth / 2 + (along if fx else across) * (inner.depth - depth))
    if what.place == "wall":
        if fz:
            z = inner.z0 + depth / 2 + _WALL_GAP_M if fz > 0 else inner.z1 - depth / 2 - _WALL_GAP_M
        else:
            x = inner.x0 + width / 2 + _WALL_GAP_M if fx > 0 else inner.x1 - width / 2 - _WALL_GAP_M
    elif what.place == "middle" or what.place == "rug":
        x = _snap(inner.center[0] + (along - 0.5) * max(0.0, inner.width - width - 2.0))
        z = _snap(inner.center[1] + (across - 0.5) * max(0.0, inner.depth - depth - 2.0))
    x, z = round(x, 3), round(z, 3)
    footprint = Rect(x - width / 2, z - depth / 2, x + width / 2, z + depth / 2)
    return Item(what.noun, color, room, x, z, (fx, fz), footprint)


def _snap(value: float) -> float:
    return round(value / 0.05) * 0.05
