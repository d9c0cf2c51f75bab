"""Floor plans: rectangular rooms on one or two storeys, doors between them, a ramp between the storeys.

Plan coordinates are world (x, z) in meters; room rectangles run along the middle of the walls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WALL_M = 0.16
DOOR_WIDTH_M = 1.0
ARCH_WIDTH_M = 1.8
DOOR_HEIGHT_M = 2.1
CEILING_M = 2.6
STOREY_M = 2.8
"""From floor to floor. A multiple of 0.2 m, the height steps of navigation meshes: they meet both floors alike."""
RAMP_WIDTH_M = 1.1
RAMP_LENGTH_M = 5.0
RAMP_LANDING_M = 1.0
"""Floor kept free before both ends of a ramp."""


@dataclass(frozen=True)
class Rect:
    """Axis-aligned rectangle in plan coordinates."""

    x0: float
    z0: float
    x1: float
    z1: float

    @property
    def width(self) -> float:
        """Extent along x in meters."""
        return self.x1 - self.x0

    @property
    def depth(self) -> float:
        """Extent along z in meters."""
        return self.z1 - self.z0

    @property
    def center(self) -> tuple[float, float]:
        """(x, z) in meters."""
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
        """Meters from the point to the rectangle, 0 inside."""
        dx = max(self.x0 - x, 0.0, x - self.x1)
        dz = max(self.z0 - z, 0.0, z - self.z1)
        return float((dx * dx + dz * dz) ** 0.5)


@dataclass(frozen=True)
class Door:
    """An opening in the wall between two rooms.

    `rooms` are room indices on the low and the high side. `along` is the axis of the wall: "x" walls are crossed
    in z direction and the other way round. `center` is the (x, z) middle of the opening, `y` its floor.
    """

    rooms: tuple[int, int]
    along: str
    center: tuple[float, float]
    width: float
    storey: int = 0

    @property
    def y(self) -> float:
        return self.storey * STOREY_M

    def normal(self, into: int) -> tuple[int, int]:
        """Unit (x, z) direction in which one walks through the door into room `into`."""
        sign = 1 if into == self.rooms[1] else -1
        return (0, sign) if self.along == "x" else (sign, 0)

    def zone(self, reach: float) -> Rect:
        """The opening, wider by 10 cm at both ends and reaching `reach` meters to both sides of the wall."""
        x, z = self.center
        half = self.width / 2 + 0.1
        if self.along == "x":
            return Rect(x - half, z - reach, x + half, z + reach)
        return Rect(x - reach, z - half, x + reach, z + half)


@dataclass(frozen=True)
class Ramp:
    """A straight ramp between the hallways of two storeys.

    `rooms` are the lower and the upper room. `rect` is the strip of plan that it covers: a solid wedge in the
    lower room, an opening with a railing in the floor of the upper one. `uphill` is the unit (x, z) direction of
    ascent.
    """

    rooms: tuple[int, int]
    rect: Rect
    uphill: tuple[int, int]
    storey: int = 0

    @property
    def bottom(self) -> tuple[float, float, float]:
        """Middle of the lower edge, (x, y, z)."""
        return self._end(-1, self.storey * STOREY_M)

    @property
    def top(self) -> tuple[float, float, float]:
        """Middle of the upper edge, (x, y, z)."""
        return self._end(1, (self.storey + 1) * STOREY_M)

    def _end(self, sign: int, y: float) -> tuple[float, float, float]:
        (x, z), (ux, uz) = self.rect.center, self.uphill
        return x + sign * ux * self.rect.width / 2, y, z + sign * uz * self.rect.depth / 2

    def height_at(self, x: float, z: float) -> float:
        """Height of the ramp's surface; its ends' heights beyond them."""
        (bx, by, bz), (ux, uz) = self.bottom, self.uphill
        length = self.rect.width if ux else self.rect.depth
        share = ((x - bx) * ux + (z - bz) * uz) / length
        return by + min(max(share, 0.0), 1.0) * STOREY_M

    def approach(self, room: int) -> Rect:
        """Floor of the room that has to stay free: the landing before the ramp's end there."""
        x, _, z = self.bottom if room == self.rooms[0] else self.top
        sign = -1 if room == self.rooms[0] else 1
        dx, dz = sign * self.uphill[0] * RAMP_LANDING_M, sign * self.uphill[1] * RAMP_LANDING_M
        half = RAMP_WIDTH_M / 2
        ends = (x, x + dx) if dx else (x - half, x + half)
        sides = (z, z + dz) if dz else (z - half, z + half)
        return Rect(min(ends), min(sides), max(ends), max(sides))


@dataclass(frozen=True)
class Plan:
    """Rooms of all storeys (the hallway first), doors and ramps. All rooms are connected.

    `storeys` holds the storey of every room, 0 at the ground.
    """

    bounds: Rect
    rooms: tuple[Rect, ...]
    doors: tuple[Door, ...]
    storeys: tuple[int, ...]
    ramps: tuple[Ramp, ...] = ()

    @property
    def n_storeys(self) -> int:
        """How many storeys there are."""
        return max(self.storeys) + 1

    def floor_m(self, room: int) -> float:
        """Height of a room's floor."""
        return self.storeys[room] * STOREY_M

    def doors_of(self, room: int) -> list[Door]:
        """Doors in the walls of a room."""
        return [door for door in self.doors if room in door.rooms]

    def ramps_of(self, room: int) -> list[Ramp]:
        """Ramps that begin or end in a room."""
        return [ramp for ramp in self.ramps if room in ramp.rooms]

    def room_at(self, x: float, z: float, y: float = 0.0) -> int:
        """Index of the room around a floor point; points outside the house belong to the nearest room.

        On a ramp this is the lower room up to half the height, the upper one above.
        """
        storey = min(max(round(y / STOREY_M), 0), self.n_storeys - 1)
        rooms = [i for i in range(len(self.rooms)) if self.storeys[i] == storey]
        return min(rooms, key=lambda i: (self.rooms[i].distance(x, z), i))


def cut_out(rect: Rect, holes: Sequence[Rect]) -> list[Rect]:
    """Rectangles that cover `rect` without the holes."""
    parts = [rect]
    for hole in holes:
        remaining = []
        for part in parts:
            if not part.overlaps(hole):
                remaining.append(part)
                continue
            z0, z1 = max(part.z0, hole.z0), min(part.z1, hole.z1)
            candidates = (
                Rect(part.x0, part.z0, part.x1, z0),
                Rect(part.x0, z1, part.x1, part.z1),
                Rect(part.x0, z0, max(part.x0, hole.x0), z1),
                Rect(min(part.x1, hole.x1), z0, part.x1, z1),
            )
            remaining += [c for c in candidates if c.width > 1e-9 and c.depth > 1e-9]
        parts = remaining
    return parts


def around(rects: Sequence[Rect]) -> Rect:
    """The smallest rectangle that holds them all."""
    return Rect(
        min(r.x0 for r in rects), min(r.z0 for r in rects), max(r.x1 for r in rects), max(r.z1 for r in rects)
    )
