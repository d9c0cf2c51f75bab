"""What paths are described as, and what is said of them."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.houses.language.grammar import Clause
from envs.houses.language.instructions import Noise, brief, noisy
from envs.houses.options import HousesConfig
from envs.houses.plan.house import House, make_house
from envs.houses.plan.layout import Door
from envs.houses.routes.routes import (
    STRAIGHT_DEG,
    Goal,
    Leg,
    Route,
    rooms_at,
    trace,
    turn_class,
    wrap_degrees,
    yaw_of,
)

angles = st.floats(-180.0, 180.0)


@pytest.fixture(scope="module")
def house() -> House:
    return make_house("routes", HousesConfig(storeys_share=0.0))


@pytest.fixture(scope="module")
def tall() -> House:
    return make_house("tall", HousesConfig(storeys_share=1.0))


@given(angles)
def test_turn_classes_follow_the_sign(angle: float) -> None:
    kind = turn_class(angle)
    assert ("left" in kind) == (STRAIGHT_DEG < angle < 150.0)
    assert ("right" in kind) == (-150.0 < angle < -STRAIGHT_DEG)


@given(angles, angles, st.floats(0.4, 8.0), st.integers(0, 10_000))
def test_only_true_sides_are_said(house: House, turn_in: float, turn_out: float, length: float, seed: int) -> None:
    door = house.plan.doors_of(0)[0]
    other = next(room for room in door.rooms if room != 0)
    leg = Leg(0, (0.0, 0.0, 0.0), 0.0, length, turn_in, turn_out, door)
    last = Leg(other, (0.0, 0.0, 0.0), 0.0, 0.5, 0.0, 0.0, None)
    goal = Goal(other, *house.plan.rooms[other].center)
    clauses = brief(house, Route((leg, last), goal, ()), random.Random(seed))
    for clause in clauses:
        angle = turn_out if clause.kind == "exit" else turn_in
        if clause.side in ("left", "right"):
            assert (clause.side == "left") == (angle > 0)
            assert abs(angle) >= STRAIGHT_DEG
    assert [clause.kind for clause in clauses][-2:] == ["exit", "stop middle"]


def test_dropout_leaves_what_is_needed(house: House) -> None:
    door = house.plan.doors_of(0)[0]
    other = next(room for room in door.rooms if room != 0)
    leg = Leg(0, (0.0, 0.0, 0.0), 0.0, 4.0, 90.0, 0.0, door)
    last = Leg(other, (0.0, 0.0, 0.0), 0.0, 2.5, -80.0, 0.0, None)
    route = Route((leg, last), Goal(other, *house.plan.rooms[other].center), ())
    kinds = [clause.kind for clause in brief(house, route, random.Random(0), dropout=1.0)]
    assert kinds == ["exit", "stop middle"]


def test_noise_changes_shares_of_clauses() -> None:
    clauses = [Clause("pass", side="left", object="red ball")] * 4000 + [Clause("stop door")]
    rng = random.Random(0)
    assert noisy(clauses, Noise(0.0, 0.0, 0.0), rng) == clauses
    told = noisy(clauses, Noise(dropped=0.1, wrong_side=0.2, wrong_object=0.3), rng)
    assert len(told) == pytest.approx(3600, abs=80)
    assert told[-1] == clauses[-1]
    assert sum(c.side == "right" for c in told) / len(told) == pytest.approx(0.2, abs=0.03)
    assert sum(c.object != "red ball" for c in told[:-1]) / len(told) == pytest.approx(0.3, abs=0.03)
    with pytest.raises(ValueError, match="wrong_side"):
        Noise(wrong_side=1.5)


def test_rooms_at_many_points_are_those_at_each(tall: House) -> None:
    rng = np.random.default_rng(0)
    bounds = tall.plan.bounds
    points = rng.uniform((bounds.x0 - 1, -0.2, bounds.z0 - 1), (bounds.x1 + 1, 3.0, bounds.z1 + 1), (300, 3))
    assert rooms_at(tall.plan, points) == [tall.plan.room_at(x, z, y) for x, y, z in points]


def test_trace_climbs_ramps(tall: House) -> None:
    (ramp,) = tall.plan.ramps
    (bx, by, bz), (tx, ty, tz) = ramp.bottom, ramp.top
    ux, uz = ramp.uphill
    corners = [(bx - 0.8 * ux, by, bz - 0.8 * uz), (tx + 0.8 * ux, ty, tz + 0.8 * uz)]
    goal = Goal(ramp.rooms[1], corners[1][0], corners[1][2])
    route = trace(tall, corners, yaw_of(ux, uz), goal)
    assert route is not None
    assert [leg.room for leg in route.legs] == list(ramp.rooms)
    assert [leg.climbs for leg in route.legs] == ["up", ""]
    assert wrap_degrees(route.legs[1].heading - yaw_of(ux, uz)) == pytest.approx(0.0, abs=1e-6)
    down = trace(tall, corners[::-1], yaw_of(-ux, -uz), Goal(ramp.rooms[0], corners[0][0], corners[0][2]))
    assert down is not None
    assert [leg.climbs for leg in down.legs] == ["down", ""]


def test_trace_refuses_paths_through_walls(house: House) -> None:
    x, z = house.plan.rooms[0].center
    room = next(i for i in range(1, len(house.plan.rooms)) if through_wall(house, (x, z), i))
    end = house.plan.rooms[room].center
    assert trace(house, [(x, 0.0, z), (end[0], 0.0, end[1])], 0.0, Goal(room, *end)) is None


def through_wall(house: House, start: tuple[float, float], room: int) -> bool:
    """Whether the straight line to a room's center misses every door."""
    end = house.plan.rooms[room].center
    points = [
        (start[0] + (end[0] - start[0]) * t / 200, start[1] + (end[1] - start[1]) * t / 200) for t in range(201)
    ]
    zones = [door.zone(0.5) for door in house.plan.doors]
    return not any(zone.contains(*point) for zone in zones for point in points)


def test_trace_measures_a_walk_through_a_door(house: House) -> None:
    door: Door = house.plan.doors_of(0)[0]
    other = next(room for room in door.rooms if room != 0)
    nx, nz = door.normal(other)
    x, z = door.center
    corners = [(x - 0.9 * nx, 0.0, z - 0.9 * nz), (x + 0.9 * nx, 0.0, z + 0.9 * nz)]
    start_yaw = wrap_degrees(yaw_of(nx, nz) - 90.0)
    route = trace(house, corners, start_yaw, Goal(other, corners[1][0], corners[1][2], door=door))
    assert route is not None
    assert [leg.room for leg in route.legs] == [0, other]
    assert route.legs[0].turn_in == pytest.approx(90.0)
    assert route.legs[0].turn_out == pytest.approx(0.0, abs=1e-6)
    assert sum(leg.length for leg in route.legs) == pytest.approx(1.8, abs=0.06)
    plan = [(cx, cz) for cx, _, cz in corners]
    for a, b in pairwise((plan[0], route.crossings[0], plan[1])):
        assert math.dist(a, b) == pytest.approx(0.9, abs=0.06)
