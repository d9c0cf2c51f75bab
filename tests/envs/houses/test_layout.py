"""Floor plans, furniture and ramps over many seeds, without rendering."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.houses.options import HousesConfig
from envs.houses.plan.catalog import FURNISHINGS, LANDMARKS
from envs.houses.plan.house import House, make_house, openings, walls_of
from envs.houses.plan.layout import (
    RAMP_LENGTH_M,
    RAMP_WIDTH_M,
    STOREY_M,
    WALL_M,
    Plan,
    Rect,
    around,
    cut_out,
)
from envs.houses.plan.planner import make_plan
from envs.houses.plan.rooms import KINDS

configs = st.builds(
    HousesConfig,
    seed=st.integers(0, 2**31 - 1),
    storeys_share=st.sampled_from((0.0, 1.0)),
    distractors=st.integers(0, 2),
    landmark_repetition=st.sampled_from((0.0, 0.3, 1.0)),
)


def plan_of(config: HousesConfig) -> Plan:
    return make_plan(random.Random(config.seed), config)


@settings(max_examples=100, deadline=None)
@given(configs)
def test_rooms_fill_every_storey_without_overlap(config: HousesConfig) -> None:
    plan = plan_of(config)
    assert config.rooms_min <= len(plan.rooms) <= config.rooms_max
    assert plan.n_storeys == 1 + len(plan.ramps) == 1 + round(config.storeys_share)
    assert max(plan.bounds.width, plan.bounds.depth) <= 18.0
    for storey in range(plan.n_storeys):
        rooms = [room for room, s in zip(plan.rooms, plan.storeys, strict=True) if s == storey]
        assert not any(a.overlaps(b) for a, b in combinations(rooms, 2))
        bounds = around(rooms)
        assert sum(room.width * room.depth for room in rooms) == pytest.approx(bounds.width * bounds.depth)
        assert cut_out(plan.bounds, [bounds]) == [] or storey == 1
    halls = {0, *(room for ramp in plan.ramps for room in ramp.rooms)}
    for room in set(range(len(plan.rooms))) - halls:
        rect = plan.rooms[room]
        assert 3.0 <= min(rect.width, rect.depth) <= max(rect.width, rect.depth) <= 6.0


@settings(max_examples=100, deadline=None)
@given(configs)
def test_doors_lie_on_shared_walls_away_from_corners(config: HousesConfig) -> None:
    plan = plan_of(config)
    for door in plan.doors:
        low, high = (plan.rooms[i] for i in door.rooms)
        assert {plan.storeys[i] for i in door.rooms} == {door.storey}
        assert door.y == plan.floor_m(door.rooms[0])
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
        for room in door.rooms:
            spans = [span for wall in walls_of(plan, room) for span in openings(plan, room, wall)]
            assert (middle - door.width / 2, middle + door.width / 2) in spans
        assert not any(door.zone(0.6).overlaps(ramp.rect) for ramp in plan.ramps if {*door.rooms} & {*ramp.rooms})
    assert len({door.rooms for door in plan.doors}) == len(plan.doors)


@settings(max_examples=100, deadline=None)
@given(configs)
def test_every_room_is_reachable_through_doors_and_ramps(config: HousesConfig) -> None:
    plan = plan_of(config)
    seen, frontier = {0}, [0]
    while frontier:
        room = frontier.pop()
        ways = [way.rooms for way in (*plan.doors_of(room), *plan.ramps_of(room))]
        for other in {other for pair in ways for other in pair} - seen:
            seen.add(other)
            frontier.append(other)
    assert seen == set(range(len(plan.rooms)))


@settings(max_examples=60, deadline=None)
@given(configs.filter(lambda config: config.storeys_share == 1.0))
def test_a_ramp_climbs_along_a_wall_between_the_hallways(config: HousesConfig) -> None:
    plan = plan_of(config)
    (ramp,) = plan.ramps
    assert sorted((ramp.rect.width, ramp.rect.depth)) == pytest.approx([RAMP_WIDTH_M, RAMP_LENGTH_M])
    assert math.degrees(math.atan(STOREY_M / RAMP_LENGTH_M)) < 35.0
    (bx, by, bz), (tx, ty, tz) = ramp.bottom, ramp.top
    assert (by, ty) == (0.0, STOREY_M)
    assert math.hypot(tx - bx, tz - bz) == pytest.approx(RAMP_LENGTH_M)
    assert ramp.height_at((bx + tx) / 2, (bz + tz) / 2) == pytest.approx(STOREY_M / 2)
    for room in ramp.rooms:
        inner = plan.rooms[room].grown(1e-6 - WALL_M / 2)
        for rect in (ramp.rect, ramp.approach(room)):
            assert inner.contains(rect.x0, rect.z0)
            assert inner.contains(rect.x1, rect.z1)
        touching = [
            abs(ramp.rect.x0 - inner.x0),
            abs(ramp.rect.x1 - inner.x1),
            abs(ramp.rect.z0 - inner.z0),
            abs(ramp.rect.z1 - inner.z1),
        ]
        assert sorted(touching)[0] < 1e-5 < 1.0 < sorted(touching)[1]
    assert plan.room_at(bx, bz, by) == ramp.rooms[0] == plan.room_at((bx + tx) / 2, (bz + tz) / 2, 1.3)
    assert plan.room_at(tx, tz, ty) == ramp.rooms[1] == plan.room_at((bx + tx) / 2, (bz + tz) / 2, 1.5)


def test_the_share_of_houses_with_two_storeys_is_the_configured_one() -> None:
    storeys = [plan_of(HousesConfig(seed=seed, storeys_share=0.4)).n_storeys for seed in range(300)]
    assert 0.33 < storeys.count(2) / 300 < 0.47


@settings(max_examples=25, deadline=None)
@given(configs)
def test_furniture_stands_free_inside_its_room(config: HousesConfig) -> None:
    house = make_house("x", config)
    plan = house.plan
    standing = [item for item in house.items if item.noun != "rug"]
    for item in house.items:
        inner = plan.rooms[item.room].grown(1e-6 - WALL_M / 2)
        assert inner.contains(item.footprint.x0, item.footprint.z0)
        assert inner.contains(item.footprint.x1, item.footprint.z1)
        assert item.y == plan.floor_m(item.room)
        assert not any(item.footprint.overlaps(ramp.rect) for ramp in plan.ramps_of(item.room))
    for a, b in combinations(standing, 2):
        assert a.storey != b.storey or not a.footprint.overlaps(b.footprint)
    for item in standing:
        kept_free = [door.zone(0.9) for door in plan.doors_of(item.room)]
        kept_free += [ramp.approach(item.room) for ramp in plan.ramps_of(item.room)]
        assert not any(zone.overlaps(item.footprint) for zone in kept_free)


@settings(max_examples=25, deadline=None)
@given(configs)
def test_names_are_unambiguous(config: HousesConfig) -> None:
    house = make_house("x", config)
    titles = [look.title for look in house.looks]
    assert len(set(titles)) == len(titles)
    landmarks = [item for item in house.items if item.landmark]
    assert len(landmarks) >= len(house.plan.rooms)
    for name in {item.name for item in landmarks}:
        rooms = [item.room for item in landmarks if item.name == name]
        assert len(rooms) == len(set(rooms)) <= 2
        assert len(rooms) == 1 or config.landmark_repetition > 0
    distractors = [item for item in house.items if item.distractor]
    assert len({item.name for item in distractors} - {item.name for item in landmarks}) == len(distractors)
    for item in distractors:
        assert any((other.room, other.noun) == (item.room, item.noun) for other in landmarks)
    for room in range(len(house.plan.rooms)):
        assert sum(item.room == room for item in distractors) <= config.distractors


LARGE = HousesConfig(rooms_max=12, storeys_share=0.4)


def test_repetition_and_distractors_follow_the_configuration() -> None:
    def counts(repetition: float, distractors: int) -> tuple[float, float]:
        repeated = misleading = rooms = landmarks = 0
        for seed in range(12):
            config = replace(LARGE, seed=seed, landmark_repetition=repetition, distractors=distractors)
            house = make_house("x", config)
            names = [item.name for item in house.items if item.landmark]
            repeated += len(names) - len(set(names))
            landmarks += len(names)
            misleading += sum(item.distractor for item in house.items)
            rooms += len(house.plan.rooms)
        return repeated / landmarks, misleading / rooms

    assert counts(0.0, 0) == (0.0, 0.0)
    few, many = counts(0.2, 1), counts(1.0, 2)
    assert 0.1 < few[0] < 0.3 < many[0] <= 0.5
    assert 0.7 < few[1] < 1.0 < many[1] < 2.0


@settings(max_examples=25, deadline=None)
@given(configs)
def test_rooms_hold_what_makes_them_recognizable(config: HousesConfig) -> None:
    house = make_house("x", config)
    for room, look in enumerate(house.looks):
        needed = sorted(noun for noun, chance in look.kind.furniture if chance == 1.0)
        present = sorted(item.noun for item in house.items if item.room == room)
        assert all(present.count(noun) >= needed.count(noun) for noun in needed)
    upper = [ramp.rooms[1] for ramp in house.plan.ramps]
    assert [room for room, look in enumerate(house.looks) if look.kind.name == "landing"] == upper


def test_room_kinds_only_ask_for_known_furniture() -> None:
    assert {noun for kind in KINDS.values() for noun, _ in kind.furniture} | set(LANDMARKS) == set(FURNISHINGS)


def test_the_vocabulary_is_large() -> None:
    assert len(LANDMARKS) >= 25
    assert len({color for noun in LANDMARKS for color in FURNISHINGS[noun].colors}) >= 10
    assert len(KINDS) >= 10


@settings(max_examples=8, deadline=None)
@given(configs)
def test_all_doors_of_a_room_are_joined_by_wide_passages(config: HousesConfig) -> None:
    house = make_house("x", config)
    for room in range(len(house.plan.rooms)):
        free = free_points(house, room, 0.45)
        ends = [
            (d.center[0] + d.normal(room)[0], d.center[1] + d.normal(room)[1]) for d in house.plan.doors_of(room)
        ]
        ends += [ramp.approach(room).center for ramp in house.plan.ramps_of(room)]
        targets = [min(free, key=lambda p: math.dist(p, end)) for end in ends]
        assert all(math.dist(target, end) < 0.5 for target, end in zip(targets, ends, strict=True))
        assert flooded(free, targets[0]) >= set(targets)


def free_points(house: House, room: int, clearance: float) -> set[tuple[float, float]]:
    """Grid points of a room at least `clearance` from walls, furniture and ramps."""
    inner = house.plan.rooms[room].grown(-WALL_M / 2 - clearance)
    taken = [item.footprint for item in house.items if item.room == room and item.noun != "rug"]
    taken += [ramp.rect for ramp in house.plan.ramps_of(room)]
    xs = [round(inner.x0 + 0.1 * i, 3) for i in range(int(inner.width / 0.1) + 1)]
    zs = [round(inner.z0 + 0.1 * i, 3) for i in range(int(inner.depth / 0.1) + 1)]
    return {(x, z) for x in xs for z in zs if all(f.distance(x, z) >= clearance for f in taken)}


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


def test_cut_out_leaves_the_rest() -> None:
    rect = Rect(0.0, 0.0, 4.0, 3.0)
    holes = [Rect(1.0, 1.0, 2.0, 2.0), Rect(3.0, -1.0, 5.0, 1.0)]
    parts = cut_out(rect, holes)
    assert sum(part.width * part.depth for part in parts) == pytest.approx(12.0 - 1.0 - 1.0)
    assert not any(part.overlaps(hole) for part in parts for hole in holes)
    assert not any(a.overlaps(b) for a, b in combinations(parts, 2))
