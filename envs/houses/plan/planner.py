"""Draws floor plans: a hallway, blocks of rooms around it, doors, and a ramp where a house has two storeys."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from envs.houses.options import HousesConfig
from envs.houses.plan.layout import (
    ARCH_WIDTH_M,
    DOOR_WIDTH_M,
    RAMP_LANDING_M,
    RAMP_LENGTH_M,
    RAMP_WIDTH_M,
    WALL_M,
    Door,
    Plan,
    Ramp,
    Rect,
    around,
)

GRID_M = 0.5
_RAMP_DOOR_M = 0.6
"""Floor between the landings of a ramp and the ends of the hallway."""
_FEWEST_IN_TWO_STOREYS = 6
_CORNER_M = 0.35
"""Wall kept between a door and the corner of a room."""


def make_plan(rng: random.Random, config: HousesConfig) -> Plan:
    """A random plan of one or two storeys with a number of rooms in the configured range, hallways included."""
    two = rng.random() < config.storeys_share and config.rooms_max >= _FEWEST_IN_TWO_STOREYS
    fewest = max(config.rooms_min, _FEWEST_IN_TWO_STOREYS if two else 0)
    wanted = rng.randint(fewest, config.rooms_max)
    while True:
        hall, *blocks = _split_tall_house(rng) if two else _split_house(rng)
        storeys = [[hall, *(room for block in blocks for room in _split(block, rng))]]
        if two:
            above = blocks[: rng.choice((1, 2, 2))]
            storeys.append([hall, *(room for block in above for room in _split(block, rng))])
        if sum(map(len, storeys)) != wanted:
            continue
        strip, uphill = _place_ramp(hall, rng) if two else (None, (0, 0))
        if rng.random() < 0.5:
            storeys = [[_transposed(room) for room in rooms] for rooms in storeys]
            strip, uphill = strip and _transposed(strip), (uphill[1], uphill[0])
        plan = _joined(storeys, strip, uphill, rng)
        if plan is not None:
            return plan


def _joined(
    storeys: list[list[Rect]], strip: Rect | None, uphill: tuple[int, int], rng: random.Random
) -> Plan | None:
    """Doors for the rooms of every storey, and a ramp on the strip; None if a room stays out of reach."""
    doors: list[Door] = []
    first = 0
    for storey, rooms in enumerate(storeys):
        found = _make_doors(rooms, storey, (strip,) if strip else (), rng)
        if found is None:
            return None
        doors += [replace(door, rooms=(door.rooms[0] + first, door.rooms[1] + first)) for door in found]
        first += len(rooms)
    everything = tuple(room for rooms in storeys for room in rooms)
    numbers = tuple(storey for storey, rooms in enumerate(storeys) for _ in rooms)
    ramps = (Ramp((0, len(storeys[0])), strip, uphill),) if strip else ()
    return Plan(around(everything), everything, tuple(doors), numbers, ramps)


def _place_ramp(hall: Rect, rng: random.Random) -> tuple[Rect, tuple[int, int]]:
    """A strip along a long wall of a hallway that runs along x, and the direction of ascent."""
    landing = WALL_M / 2 + RAMP_LANDING_M + _RAMP_DOOR_M
    x0 = round(hall.x0 + landing + rng.random() * (hall.width - RAMP_LENGTH_M - 2 * landing), 1)
    inner = hall.grown(-WALL_M / 2)
    z0 = rng.choice((inner.z0, inner.z1 - RAMP_WIDTH_M))
    return Rect(x0, z0, x0 + RAMP_LENGTH_M, z0 + RAMP_WIDTH_M), rng.choice(((1, 0), (-1, 0)))


def _transposed(rect: Rect) -> Rect:
    return Rect(rect.z0, rect.x0, rect.z1, rect.x1)


def _split_house(rng: random.Random) -> list[Rect]:
    """The hallway of a one-storey house and the blocks around it."""
    small = rng.random() < 0.3
    width = (rng.randrange(14, 25) if small else rng.randrange(22, 35)) * GRID_M
    depth = rng.randrange(20, 27) * GRID_M
    hall = rng.choice((2.0, 2.0, 2.5))
    z = rng.randrange(7, round((depth - hall) / GRID_M) - 6) * GRID_M
    left = 0.0 if small else rng.choice((0.0, 0.0, 3.5, 4.0))
    right = width - rng.choice((0.0, 3.5, 4.0, 4.5))
    if right - left < 6.0:
        left, right = 0.0, width if small else right
    if small and rng.random() < 0.6:  # rooms on one side of the hallway only
        depth = z + hall
    parts = [Rect(left, z, right, z + hall), Rect(left, 0.0, right, z)]
    if depth > z + hall:
        parts.append(Rect(left, z + hall, right, depth))
    if left > 0.0:
        parts.append(Rect(0.0, 0.0, left, depth))
    if right < width:
        parts.append(Rect(right, 0.0, width, depth))
    return parts


def _split_tall_house(rng: random.Random) -> list[Rect]:
    """The hallway that both storeys have, wide and long enough for a ramp, and the blocks beside it."""
    width, hall = rng.randrange(18, 25) * GRID_M, rng.choice((3.0, 3.0, 3.5))
    z = rng.randrange(7, 11) * GRID_M
    parts = [Rect(0.0, z, width, z + hall), Rect(0.0, 0.0, width, z)]
    if rng.random() < 0.6:
        parts.append(Rect(0.0, z + hall, width, z + hall + rng.randrange(7, 10) * GRID_M))
    return parts


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


def _make_doors(rooms: list[Rect], storey: int, taken: Sequence[Rect], rng: random.Random) -> list[Door] | None:
    """Every door of the hallway, a tree to the other rooms and some loops; None if a room stays out of reach.

    No door opens onto the rectangles in `taken`.
    """
    walls = {
        (i, j): wall
        for i in range(len(rooms))
        for j in range(i + 1, len(rooms))
        if (wall := _shared(rooms[i], rooms[j], taken)) is not None
    }
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
    return [_make_door(rooms, pair, walls[pair], storey, rng) for pair in sorted(chosen)]


class _Shared(NamedTuple):
    """A wall between two rooms: its axis and position, whether it is long, and where doors can be in it."""

    along: str
    line: float
    places: tuple[float, ...]
    wide_places: tuple[float, ...]


def _shared(a: Rect, b: Rect, taken: Sequence[Rect]) -> _Shared | None:
    """The common wall, when there is a place for a door in it."""
    for along, wall_a, wall_b, low, high in (
        ("x", (a.z0, a.z1), (b.z0, b.z1), max(a.x0, b.x0), min(a.x1, b.x1)),
        ("z", (a.x0, a.x1), (b.x0, b.x1), max(a.z0, b.z0), min(a.z1, b.z1)),
    ):
        for line in (wall_a[0], wall_a[1]):
            if line not in wall_b:
                continue
            places = _places((along, line, low, high), DOOR_WIDTH_M, taken)
            if places:
                wide = _places((along, line, low, high), ARCH_WIDTH_M, taken) if high - low >= 3.5 else ()
                return _Shared(along, line, places, wide)
    return None


def _places(wall: tuple[str, float, float, float], width: float, taken: Sequence[Rect]) -> tuple[float, ...]:
    """Middles of possible doors along a wall, 0.25 m apart."""
    along, line, low, high = wall
    margin = _CORNER_M + WALL_M / 2 + width / 2
    middles = [round(low + margin + 0.25 * i, 2) for i in range(int((high - low - 2 * margin) / 0.25 + 1e-9) + 1)]
    if high - low < 2 * margin - 1e-9:
        return ()
    zones = ((m, Door((0, 0), along, (m, line) if along == "x" else (line, m), width).zone(0.6)) for m in middles)
    return tuple(m for m, zone in zones if not any(zone.overlaps(rect) for rect in taken))


def _make_door(rooms: list[Rect], pair: tuple[int, int], wall: _Shared, storey: int, rng: random.Random) -> Door:
    wide = bool(wall.wide_places) and rng.random() < 0.3
    middle = rng.choice(wall.wide_places if wide else wall.places)
    center = (middle, wall.line) if wall.along == "x" else (wall.line, middle)
    first = rooms[pair[0]].center[1 if wall.along == "x" else 0]
    ordered = pair if first < wall.line else (pair[1], pair[0])
    return Door(ordered, wall.along, center, ARCH_WIDTH_M if wide else DOOR_WIDTH_M, storey)
