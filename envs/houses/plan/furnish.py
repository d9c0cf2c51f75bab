"""Where furniture and landmark objects stand: against walls, clear of doors, with room to walk between them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage

from envs.houses.options import HousesConfig
from envs.houses.plan.catalog import FURNISHINGS, LANDMARKS, MAKES, Furnishing
from envs.houses.plan.layout import STOREY_M, WALL_M, Plan, Rect
from envs.houses.plan.rooms import RoomLook

CLEARANCE_M = 0.46
"""Half the width of the narrowest passage that has to stay free."""
_CELL_M = 0.1
_WALL_GAP_M = 0.03
_DOOR_REACH_M = 1.0
_RAILING_M = 0.08
"""Floor beside a ramp that its railing takes."""
_GAP_M = 0.1
"""Between objects: side by side, seats could add up to an island large enough for the navigation mesh."""
_TRIES = 24
_TRIES_ESSENTIAL = 80
_FACINGS = ((0, 1), (0, -1), (1, 0), (-1, 0))


@dataclass(frozen=True)
class Item:
    """One object of a house. `facing` is the (x, z) direction of its front, `footprint` its place in the plan.

    `y` is the height of the floor that it stands on. A distractor shares its noun with a landmark of the room but
    is never mentioned.
    """

    noun: str
    color: str
    room: int
    x: float
    z: float
    facing: tuple[int, int]
    footprint: Rect
    storey: int = 0
    distractor: bool = False
    make: int = 0

    @property
    def furnishing(self) -> Furnishing:
        """What it is, of which make."""
        return MAKES[self.noun][self.make]

    @property
    def y(self) -> float:
        return self.storey * STOREY_M

    @property
    def height(self) -> float:
        """Meters from the floor to its top."""
        return self.furnishing.height

    @property
    def landmark(self) -> bool:
        """Whether instructions may name the object by its color and noun."""
        return self.noun in LANDMARKS and not self.distractor

    @property
    def name(self) -> str:
        """Color and noun, as instructions say it."""
        return f"{self.color} {self.noun}"


class RoomFloor:
    """Free floor of one room on a grid of 0.1 m."""

    def __init__(self, plan: Plan, room: int) -> None:
        self.room, self.storey = room, plan.storeys[room]
        self.inner = plan.rooms[room].grown(-WALL_M / 2)
        doors, ramps = plan.doors_of(room), plan.ramps_of(room)
        self.ramps = [ramp.rect.grown(_RAILING_M) for ramp in ramps]
        self._kept_free = [door.zone(_DOOR_REACH_M) for door in doors] + [ramp.approach(room) for ramp in ramps]
        self._taken = list(self.ramps)
        shape = (round(self.inner.depth / _CELL_M) + 2, round(self.inner.width / _CELL_M) + 2)
        self._blocked = np.ones(shape, dtype=np.bool_)
        self._blocked[1:-1, 1:-1] = False
        for strip in self.ramps:
            self._blocked[self._cells(strip)] = True
        self._access = [self._cell_before(door.center) for door in doors]
        for ramp in ramps:
            (x, z), (end_x, _, end_z) = (
                ramp.approach(room).center,
                ramp.bottom if room == ramp.rooms[0] else ramp.top,
            )
            self._access.append(self._cell_before((2 * x - end_x, 2 * z - end_z)))

    def _cells(self, rect: Rect) -> tuple[slice, slice]:
        low_x, low_z = (max(0.0, rect.x0 - self.inner.x0), max(0.0, rect.z0 - self.inner.z0))
        rows = slice(1 + int(low_z / _CELL_M), 2 + int(np.ceil((rect.z1 - self.inner.z0) / _CELL_M - 1e-9)))
        columns = slice(1 + int(low_x / _CELL_M), 2 + int(np.ceil((rect.x1 - self.inner.x0) / _CELL_M - 1e-9)))
        return rows, columns

    def _cell_before(self, point: tuple[float, float]) -> tuple[int, int]:
        """The cell nearest to a doorway or landing that keeps clear of the walls."""
        reach = WALL_M / 2 + CLEARANCE_M + _CELL_M
        x = min(max(point[0], self.inner.x0 + reach), self.inner.x1 - reach)
        z = min(max(point[1], self.inner.z0 + reach), self.inner.z1 - reach)
        return round((z - self.inner.z0) / _CELL_M + 0.5), round((x - self.inner.x0) / _CELL_M + 0.5)

    def add(self, rect: Rect) -> bool:
        """Take a place if it is inside, free, clear of doors and leaves all walking paths open."""
        inner = self.inner
        if rect.x0 < inner.x0 or rect.x1 > inner.x1 or rect.z0 < inner.z0 or rect.z1 > inner.z1:
            return False
        apart = rect.grown(_GAP_M)
        if any(apart.overlaps(other) for other in self._taken) or any(map(rect.overlaps, self._kept_free)):
            return False
        blocked = self._blocked.copy()
        blocked[self._cells(rect)] = True
        walkable = ndimage.distance_transform_edt(~blocked) * _CELL_M > CLEARANCE_M
        labels, parts = ndimage.label(walkable)
        if parts != 1 or any(labels[cell] != 1 for cell in self._access):
            return False
        self._blocked = blocked
        self._taken.append(rect)
        return True


def furnish(
    plan: Plan, looks: Sequence[RoomLook], config: HousesConfig, rng: random.Random
) -> tuple[Item, ...] | None:
    """Furniture and landmarks of all rooms; None if a piece that a room cannot do without finds no place.

    Color and noun of a landmark occur once in a house, or in two rooms as often as the configuration asks for.
    Other nouns occur as often as the kind of room lists them.
    """
    pairs = [(noun, color) for noun in LANDMARKS for color in FURNISHINGS[noun].colors]
    rng.shuffle(pairs)
    items: list[Item] = []
    for room, look in enumerate(looks):
        floor = RoomFloor(plan, room)
        for noun, chance in look.kind.furniture:
            if rng.random() < chance:
                color = rng.choice(FURNISHINGS[noun].colors)
                tries = _TRIES_ESSENTIAL if chance == 1.0 else _TRIES
                makes = MAKES[noun]
                what = rng.choice(makes) if config.edition.varied else makes[0]
                placed = _try_item(floor, what, color, tries, rng)
                if chance == 1.0 and placed is None:
                    return None
                items += [placed] if placed else []
        items += _landmarks(floor, look.kind.landmarks, [i for i in items if i.landmark], pairs, config, rng)
    return tuple(items)


def _landmarks(
    floor: RoomFloor,
    count: int,
    elsewhere: Sequence[Item],
    pairs: list[tuple[str, str]],
    config: HousesConfig,
    rng: random.Random,
) -> list[Item]:
    """Landmarks of different nouns for one room, then distractors. What is new in the house leaves `pairs`."""
    placed: list[Item] = []
    for _ in range(count):
        nouns = {item.noun for item in placed}
        known = Counter((item.noun, item.color) for item in elsewhere)
        repeated = [pair for pair, times in known.items() if times == 1 and pair[0] not in nouns]
        if repeated and rng.random() < config.landmark_repetition:
            pair = rng.choice(repeated)
        else:
            pair = next(pair for pair in pairs if pair[0] not in nouns)
        item = _try_item(floor, FURNISHINGS[pair[0]], pair[1], _TRIES, rng)
        if item is not None:
            placed.append(item)
            if pair in pairs:
                pairs.remove(pair)
    distractors: list[Item] = []
    for _ in range(config.distractors if placed else 0):
        noun = rng.choice(placed).noun
        color = next((color for other, color in pairs if other == noun), None)
        item = _try_item(floor, FURNISHINGS[noun], color, _TRIES, rng) if color else None
        if item is not None:
            pairs.remove((noun, item.color))
            distractors.append(replace(item, distractor=True))
    return placed + distractors


def _try_item(floor: RoomFloor, what: Furnishing, color: str, tries: int, rng: random.Random) -> Item | None:
    open_floor = floor.inner.grown(-0.3)
    for _ in range(tries):
        draw = (rng.choice(_FACINGS), rng.random(), rng.random())
        item = _candidate(floor, what, color, draw)
        place = item.footprint
        if what.place == "rug":
            inside = open_floor.contains(place.x0, place.z0) and open_floor.contains(place.x1, place.z1)
            if inside and not any(place.overlaps(strip) for strip in floor.ramps):
                return item
        elif floor.add(place):
            return item
    return None


def _candidate(floor: RoomFloor, what: Furnishing, color: str, draw: tuple[tuple[int, int], float, float]) -> Item:
    inner = floor.inner
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
    return Item(what.noun, color, floor.room, x, z, (fx, fz), footprint, floor.storey, make=what.make)


def _snap(value: float) -> float:
    return round(value / 0.05) * 0.05
