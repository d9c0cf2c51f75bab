"""Floor plans: rectangular rooms around a hallway, and the doors between them.

Plan coordinates are world (x, z) in metres; room rectangles run along the middle of the walls.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

GRID_M = 0.5
WALL_M = 0.16
DOOR_WIDTH_M = 1.0
ARCH_WIDTH_M = 1.8
DOOR_HEIGHT_M = 2.1
CEILING_M = 2.6
_CORNER_M = 0.35
"""Wall kept between a door and the corner of a room."""


@dataclass(frozen=True)
class Rect:
    """Axis-aligned rectangle in plan coordinates."""

    x0: float
    z0: float
    x1: float
    z1: float

    @property
    def width(self) -> float:
        return self.x1 - self.x0

    @property
    def depth(self) -> float:
        return self.z1 - self.z0

    @property
    def center(self) -> tuple[float, float]:
        return (self.x0 + self.x1) / 2, (self.z0 + self.z1) / 2

    def grown(self, margin: float) -> Rect:
        """Each side moved outwards by `margin` (inwards if negative)."""
        return Rect(self.x0 - margin, self.z0 - margin, self.x1 + margin, self.z1 + margin)

    def overlaps(self, other: Rect) -> bool:
        """Whether the interiors meet."""
        return self.x0 < other.x1 and other.x0 < self.x1 and self.z0 < other.z1 and other.z0 < self.z1

    def contains(self, x: float, z: float) -> bool:
        """Whether the point lies inside or on the border."""
        return self.x0 <= x <= self.x1 and self.z0 <= z <= self.z1

    def distance(self, x: float, z: float) -> float:
        """Metres from the point to the rectangle, 0 inside."""
        dx = max(self.x0 - x, 0.0, x - self.x1)
        dz = max(self.z0 - z, 0.0, z - self.z1)
        return float((dx * dx + dz * dz) ** 0.5)


@dataclass(frozen=True)
class Door:
    """An opening in the wall between two rooms.

    `rooms` are room indices on the low and the high side. `along` is the axis of the wall: "x" walls are crossed
    in z direction and the other way round. `center` is the (x, z) middle of the opening.
    """

    rooms: tuple[int, int]
    along: str
    center: tuple[float, float]
    width: float

    def normal(self, into: int) -> tuple[int, int]:
        """Unit (x, z) direction in which one walks through the door into room `into`."""
        sign = 1 if into == self.rooms[1] else -1
        return (0, sign) if self.along == "x" else (sign, 0)

    def zone(self, reach: float, side: float = 0.1) -> Rect:
        """The opening, wider by `side` at both ends and reaching `reach` metres to both sides of the wall."""
        x, z = self.center
        half = self.width / 2 + side
        if self.along == "x":
            return Rect(x - half, z - reach, x + half, z + reach)
        return Rect(x - reach, z - half, x + reach, z + half)


@dataclass(frozen=True)
class Plan:
    """Rooms (the hallway first) and doors. All rooms are connected."""

    bounds: Rect
    rooms: tuple[Rect, ...]
    doors: tuple[Door, ...]

    def doors_of(self, room: int) -> list[Door]:
        """Doors in the walls of a room."""
        return [door for door in self.doors if room in door.rooms]

    def room_at(self, x: float, z: float) -> int:
        """Index of the room around a point; points outside the house belong to the nearest room."""
        return min(range(len(self.rooms)), key=lambda i: (self.rooms[i].distance(x, z), i))


def make_plan(rng: random.Random) -> Plan:
    """A random plan with 6 to 10 rooms, the hallway included, 10 to 18 m across."""
    while True:
        rooms = _split_house(rng)
        if rng.random() < 0.5:
            rooms = [Rect(r.z0, r.x0, r.z1, r.x1) for r in rooms]
        doors = _make_doors(rooms, rng)
        if 6 <= len(rooms) <= 10 and doors is not None:
            bounds = Rect(0.0, 0.0, max(r.x1 for r in rooms), max(r.z1 for r in rooms))
            return Plan(bounds, tuple(rooms), tuple(doors))


def _split_house(rng: random.Random) -> list[Rect]:
    width = rng.randrange(22, 35) * GRID_M
    depth = rng.randrange(20, 27) * GRID_M
    hall = rng.choice((2.0, 2.0, 2.5))
    z = rng.randrange(7, round((depth - hall) / GRID_M) - 6) * GRID_M
    left = rng.choice((0.0, 0.0, 3.5, 4.0))
    right = width - rng.choice((0.0, 3.5, 4.0, 4.5))
    if right - left < 6.0:
        left = 0.0
    blocks = [Rect(left, 0.0, right, z), Rect(left, z + hall, right, depth)]
    if left > 0.0:
        blocks.append(Rect(0.0, 0.0, left, depth))
    if right < width:
        blocks.append(Rect(right, 0.0, width, depth))
    rooms = [Rect(left, z, right, z + hall)]
    for block in blocks:
        rooms += _split(block, rng)
    return rooms


def _split(rect: Rect, rng: random.Random) -> list[Rect]:
    long = max(rect.width, rect.depth)
    roomy = rect.width * rect.depth > 22.0 and rng.random() < 0.35
    if long < 6.0 or (long <= 6.0 and not roomy):
        return [rect]
    steps = round(long / GRID_M)
    cut = rng.randrange(6, steps - 5) * GRID_M
    if rect.width >= rect.depth:
        x = rect.x0 + cut
        halves = Rect(rect.x0, rect.z0, x, rect.z1), Rect(x, rect.z0, rect.x1, rect.z1)
    else:
        z = rect.z0 + cut
        halves = Rect(rect.x0, rect.z0, rect.x1, z), Rect(rect.x0, z, rect.x1, rect.z1)
    return [room for half in halves for room in _split(half, rng)]


def _make_doors(rooms: list[Rect], rng: random.Random) -> list[Door] | None:
    """Every door of the hallway, a tree to the other rooms and some loops; None if a room stays out of reach."""
    walls = [(i, j) for i in range(len(rooms)) for j in range(i + 1, len(rooms)) if _shared(rooms[i], rooms[j])]
    chosen = [pair for pair in walls if pair[0] == 0]
    joined = {0, *(j for _, j in chosen)}
    others = [pair for pair in walls if pair[0] != 0]
    rng.shuffle(others)
    spare = []
    while others:
        pair = next((p for p in others if len(joined & set(p)) == 1), None)
        if pair is None:
            spare += others
            break
        others.remove(pair)
        chosen.append(pair)
        joined |= set(pair)
    if len(joined) < len(rooms):
        return None
    chosen += [pair for pair in spare if rng.random() < 0.3]
    return [_make_door(rooms, pair, rng) for pair in sorted(chosen)]


def _shared(a: Rect, b: Rect) -> tuple[str, float, float, float] | None:
    """Axis, position and range of the common wall, when it is long enough for a door."""
    need = DOOR_WIDTH_M + WALL_M + 2 * _CORNER_M
    for along, wall_a, wall_b, low, high in (
        ("x", (a.z0, a.z1), (b.z0, b.z1), max(a.x0, b.x0), min(a.x1, b.x1)),
        ("z", (a.x0, a.x1), (b.x0, b.x1), max(a.z0, b.z0), min(a.z1, b.z1)),
    ):
        for line in (wall_a[0], wall_a[1]):
            if line in wall_b and high - low >= need:
                return along, line, low, high
    return None


def _make_door(rooms: list[Rect], pair: tuple[int, int], rng: random.Random) -> Door:
    shared = _shared(rooms[pair[0]], rooms[pair[1]])
    assert shared is not None
    along, line, low, high = shared
    width = DOOR_WIDTH_M
    if high - low >= 3.5 and rng.random() < 0.3:
        width = ARCH_WIDTH_M
    margin = _CORNER_M + WALL_M / 2 + width / 2
    steps = int((high - low - 2 * margin) / 0.25)
    middle = round(low + margin + 0.25 * rng.randint(0, steps), 2)
    center = (middle, line) if along == "x" else (line, middle)
    first = rooms[pair[0]].center[1 if along == "x" else 0]
    ordered = pair if first < line else (pair[1], pair[0])
    return Door(ordered, along, center, width)
