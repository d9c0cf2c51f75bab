"""Kinds of rooms: how they look and what stands in them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from envs.houses.plan.layout import Plan


@dataclass(frozen=True)
class RoomKind:
    """Look and contents of a kind of room.

    floor: (style, rgb). walls: styles; wall_colors: color words. furniture: (noun, probability) in order of
    placement. landmarks: how many landmark objects are tried. paleness: share of white in the walls.
    """

    name: str
    floor: tuple[str, tuple[int, int, int]]
    wall: str
    wall_colors: tuple[str, ...]
    furniture: tuple[tuple[str, float], ...]
    landmarks: int = 3
    paleness: float = 0.5


@dataclass(frozen=True)
class RoomLook:
    """The kind and wall color drawn for one room of a house, and what instructions call it."""

    kind: RoomKind
    wall_color: str
    title: str


HALLWAY = RoomKind(
    "hallway",
    ("planks", (150, 98, 58)),
    "panels",
    ("white",),
    (("bench", 0.8), ("clock", 0.7)),
    landmarks=5,
)
LANDING = RoomKind(
    "landing",
    ("carpet", (150, 60, 58)),
    "panels",
    ("green",),
    (("bench", 0.6), ("bookshelf", 0.5)),
)
_OTHERS = (
    RoomKind(
        "living room",
        ("planks", (196, 150, 100)),
        "stripes",
        ("orange", "green", "brown"),
        (
            ("sofa", 1.0),
            ("television", 0.9),
            ("fireplace", 0.6),
            ("armchair", 0.8),
            ("coffee table", 0.8),
            ("bookshelf", 0.4),
            ("piano", 0.3),
            ("rug", 0.9),
        ),
    ),
    RoomKind(
        "bathroom",
        ("tiles", (150, 190, 215)),
        "tiles",
        ("blue", "white"),
        (("bathtub", 0.9), ("toilet", 1.0), ("sink", 1.0)),
        landmarks=2,
    ),
    RoomKind(
        "kitchen",
        ("checker", (232, 230, 222)),
        "tiles",
        ("yellow", "orange"),
        (("kitchen counter", 1.0), ("stove", 1.0), ("refrigerator", 1.0)),
        landmarks=2,
    ),
    RoomKind(
        "bedroom",
        ("carpet", (190, 176, 150)),
        "plain",
        ("blue", "pink", "green", "purple", "yellow"),
        (("bed", 1.0), ("nightstand", 0.8), ("wardrobe", 0.9), ("rug", 0.3)),
    ),
    RoomKind(
        "dining room",
        ("planks", (116, 66, 38)),
        "panels",
        ("red",),
        (("dining table", 1.0), ("bench", 0.4), ("rug", 0.2)),
    ),
    RoomKind(
        "office",
        ("carpet", (92, 104, 128)),
        "plain",
        ("gray",),
        (("desk", 1.0), ("bookshelf", 0.9), ("armchair", 0.5)),
    ),
    RoomKind(
        "library",
        ("carpet", (120, 36, 44)),
        "brick",
        ("brown",),
        (("bookshelf", 1.0), ("bookshelf", 1.0), ("armchair", 1.0), ("desk", 0.3)),
        paleness=0.3,
    ),
    RoomKind(
        "playroom",
        ("carpet", (112, 170, 96)),
        "dots",
        ("pink", "yellow", "purple"),
        (("chest", 1.0), ("rug", 0.95)),
        landmarks=5,
    ),
    RoomKind(
        "laundry room",
        ("stone", (170, 170, 165)),
        "brick",
        ("white", "gray"),
        (("washing machine", 1.0), ("sink", 0.6), ("wardrobe", 0.4)),
    ),
    RoomKind(
        "gym",
        ("checker", (116, 120, 128)),
        "stripes",
        ("turquoise",),
        (("treadmill", 1.0), ("weight bench", 1.0), ("bench", 0.3)),
    ),
    RoomKind(
        "workshop",
        ("stone", (150, 138, 120)),
        "brick",
        ("orange",),
        (("workbench", 1.0), ("tool cabinet", 0.9), ("bookshelf", 0.3)),
    ),
    RoomKind(
        "music room",
        ("planks", (88, 60, 92)),
        "dots",
        ("turquoise", "purple"),
        (("piano", 1.0), ("drum kit", 0.9), ("armchair", 0.4)),
    ),
)
KINDS = {kind.name: kind for kind in (HALLWAY, LANDING, *_OTHERS)}


def choose_looks(plan: Plan, rng: random.Random) -> tuple[RoomLook, ...]:
    """A kind and wall color for each room; only bedrooms repeat, each with another wall color."""
    areas = {i: room.width * room.depth for i, room in enumerate(plan.rooms)}
    kinds: dict[int, str] = {0: "hallway", **{ramp.rooms[1]: "landing" for ramp in plan.ramps}}
    rooms = [i for i in sorted(areas, key=lambda i: (areas[i], i)) if i not in kinds]
    kinds[rooms.pop()] = "living room"
    bathroom = next((i for i in rooms if len(plan.doors_of(i)) == 1), rooms[0])
    kinds[bathroom] = "bathroom"
    rooms.remove(bathroom)
    names = ["kitchen", "bedroom", *_extra_kinds(rng)][: len(rooms)]
    rng.shuffle(names)
    kinds.update(zip(rooms, names, strict=True))
    bedroom_colors = list(KINDS["bedroom"].wall_colors)
    rng.shuffle(bedroom_colors)
    bedrooms = sum(name == "bedroom" for name in kinds.values())
    looks = []
    for room in range(len(plan.rooms)):
        kind = KINDS[kinds[room]]
        if kind.name == "bedroom":
            color = bedroom_colors.pop()
            looks.append(RoomLook(kind, color, f"{color} bedroom" if bedrooms > 1 else "bedroom"))
        else:
            looks.append(RoomLook(kind, rng.choice(kind.wall_colors), kind.name))
    return tuple(looks)


def recolored(looks: Sequence[RoomLook], rng: random.Random) -> tuple[RoomLook, ...]:
    """The same rooms with other wall colors; a room that is called by its color is called by the new one."""
    bedrooms = list(KINDS["bedroom"].wall_colors)
    rng.shuffle(bedrooms)
    found = []
    for look in looks:
        color = bedrooms.pop() if look.kind.name == "bedroom" else rng.choice(look.kind.wall_colors)
        named = look.title != look.kind.name
        found.append(RoomLook(look.kind, color, f"{color} {look.kind.name}" if named else look.title))
    return tuple(found)


def _extra_kinds(rng: random.Random) -> list[str]:
    first = ["dining room", "bedroom", "office"]
    more = ["bedroom", "library", "playroom", "laundry room", "gym", "workshop", "music room"]
    rng.shuffle(first)
    rng.shuffle(more)
    return [*first, *more]
