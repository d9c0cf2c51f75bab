from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.houses.furniture import FURNISHINGS, LANDMARKS
from envs.houses.house import House, make_house
from envs.houses.layout import WALL_M, Plan, Rect, make_plan
from envs.houses.rooms import KINDS

seeds = st.integers(0, 2**31 - 1)


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_rooms_fill_the_house_without_overlap(seed: int) -> None:
    plan = make_plan(random.Random(seed))
    assert 6 <= len(plan.rooms) <= 10
    assert 10.0 <= max(plan.bounds.width, plan.bounds.depth) <= 18.0
    assert not any(a.overlaps(b) for a, b in combinations(plan.rooms, 2))
    area = sum(room.width * room.depth for room in plan.rooms)
    assert area == pytest.approx(plan.bounds.width * plan.bounds.depth)
    for room in plan.rooms[1:]:
        assert 3.0 <= min(room.width, room.depth) <= max(room.width, room.depth) <= 6.0


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_doors_lie_on_shared_walls_away_from_corners(seed: int) -> None:
    plan = make_plan(random.Random(seed))
    for door in plan.doors:
        low, high = (plan.rooms[i] for i in door.rooms)
        x, z = door.center
        if door.along == "x":
            assert low.z1 == high.z0 == z
            ends = max(low.x0, high.x0), min(low.x1, high.x1)
            middle = x
        else:
            assert low.x1 == high.x0 == x
            ends = max(low.z0, high.z0), min(low.z1, high.z1)
            middle = z
        assert door.width >= 0.9
        assert ends[0] + WALL_M / 2 + 0.3 < middle - door.width / 2
        assert middle + door.width / 2 < ends[1] - WALL_M / 2 - 0.3
    assert len({door.rooms for door in plan.doors}) == len(plan.doors)


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_every_room_is_reachable_through_doors(seed: int) -> None:
    plan = make_plan(random.Random(seed))
    assert reachable(plan) == set(range(len(plan.rooms)))


def reachable(plan: Plan) -> set[int]:
    seen, frontier = {0}, [0]
    while frontier:
        room = frontier.pop()
        for door in plan.doors_of(room):
            for other in set(door.rooms) - seen:
                seen.add(other)
                frontier.append(other)
    return seen


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_furniture_stands_free_inside_its_room(seed: int) -> None:
    house = make_house("x", seed)
    standing = [item for item in house.items if item.noun != "rug"]
    for item in house.items:
        inner = house.plan.rooms[item.room].grown(1e-6 - WALL_M / 2)
        assert inner.contains(item.footprint.x0, item.footprint.z0)
        assert inner.contains(item.footprint.x1, item.footprint.z1)
    assert not any(a.footprint.overlaps(b.footprint) for a, b in combinations(standing, 2))
    for door in house.plan.doors:
        assert not any(door.zone(0.9).overlaps(item.footprint) for item in standing)


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_names_are_unambiguous(seed: int) -> None:
    house = make_house("x", seed)
    titles = [look.title for look in house.looks]
    assert len(set(titles)) == len(titles)
    landmarks = [item.name for item in house.items if item.landmark]
    assert len(set(landmarks)) == len(landmarks) >= 6


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_rooms_hold_what_makes_them_recognisable(seed: int) -> None:
    house = make_house("x", seed)
    for room, look in enumerate(house.looks):
        needed = sorted(noun for noun, chance in look.kind.furniture if chance == 1.0)
        present = sorted(item.noun for item in house.items if item.room == room)
        assert all(present.count(noun) >= needed.count(noun) for noun in needed)


def test_room_kinds_only_ask_for_known_furniture() -> None:
    assert {noun for kind in KINDS.values() for noun, _ in kind.furniture} | set(LANDMARKS) == set(FURNISHINGS)


@settings(max_examples=8, deadline=None)
@given(seeds)
def test_all_doors_of_a_room_are_joined_by_wide_passages(seed: int) -> None:
    house = make_house("x", seed)
    for room in range(len(house.plan.rooms)):
        doors = house.plan.doors_of(room)
        free = free_points(house, room, 0.45)
        targets = []
        for door in doors:
            nx, nz = door.normal(room)
            targets.append(min(free, key=lambda p: math.dist(p, (door.center[0] + nx, door.center[1] + nz))))
        assert flooded(free, targets[0]) >= set(targets)


def free_points(house: House, room: int, clearance: float) -> set[tuple[float, float]]:
    """Grid points of a room at least `clearance` from walls and furniture."""
    inner = house.plan.rooms[room].grown(-WALL_M / 2 - clearance)
    footprints = [item.footprint for item in house.items if item.room == room and item.noun != "rug"]
    xs = [round(inner.x0 + 0.1 * i, 3) for i in range(int(inner.width / 0.1) + 1)]
    zs = [round(inner.z0 + 0.1 * i, 3) for i in range(int(inner.depth / 0.1) + 1)]
    return {(x, z) for x in xs for z in zs if all(f.distance(x, z) >= clearance for f in footprints)}


def flooded(free: set[tuple[float, float]], start: tuple[float, float]) -> set[tuple[float, float]]:
    seen, frontier = {start}, [start]
    while frontier:
        x, z = frontier.pop()
        for dx, dz in ((0.1, 0), (-0.1, 0), (0, 0.1), (0, -0.1)):
            near = round(x + dx, 3), round(z + dz, 3)
            if near in free and near not in seen:
                seen.add(near)
                frontier.append(near)
    return seen


def test_rect_distance() -> None:
    rect = Rect(0.0, 0.0, 2.0, 1.0)
    assert rect.distance(1.0, 0.5) == 0.0
    assert rect.distance(5.0, 5.0) == 5.0
