"""Instructions tell the truth about their paths, and they are enough to find the goal."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.houses.furniture import FURNISHINGS, LANDMARKS
from envs.houses.house import House, make_house
from envs.houses.language import (
    EXIT_SIDE_DEG,
    MAX_TOKENS,
    describe,
    encode,
    tokenize,
    vocabulary,
)
from envs.houses.layout import Door
from envs.houses.routes import STRAIGHT_DEG, Goal, Leg, Route, trace, turn_class, wrap_degrees, yaw_of
from envs.houses.textures import COLORS
from tests.envs.houses.conftest import Generated

angles = st.floats(-180.0, 180.0)
Row = tuple[House, dict[str, Any], list[list[float]]]


@pytest.fixture(scope="module")
def rows(tiny: Generated) -> list[Row]:
    """House, episode and true locations of every episode."""
    found = []
    for split in ("train", "val_seen", "val_unseen"):
        truth = tiny.truth(split)
        for episode in tiny.split(split)["episodes"]:
            house = known_house(episode["scene_id"].split("/")[1], tiny.config.seed)
            found.append((house, episode, truth[str(episode["episode_id"])]["locations"]))
    return found


@cache
def known_house(name: str, seed: int) -> House:
    return make_house(name, seed)


def text_of(episode: dict[str, Any]) -> str:
    text: str = episode["instruction"]["instruction_text"]
    return text.lower()


def rooms_walked(house: House, locations: list[list[float]]) -> list[int]:
    rooms = [house.plan.room_at(x, z) for x, _, z in locations]
    return [room for i, room in enumerate(rooms) if i == 0 or room != rooms[i - 1]]


def rooms_said(house: House, text: str) -> list[int]:
    titles = {look.title: room for room, look in enumerate(house.looks)}
    pattern = "|".join(sorted(map(re.escape, titles), key=len, reverse=True))
    return [titles[match] for match in re.findall(rf"\b({pattern})\b", text)]


def test_rooms_are_named_in_the_order_of_the_path(rows: list[Row]) -> None:
    for house, episode, locations in rows:
        walked = rooms_walked(house, locations)
        said = rooms_said(house, text_of(episode))
        assert said, text_of(episode)
        order = [walked.index(room) for room in said]
        assert order == sorted(order), text_of(episode)
        assert set(walked[1:]) <= set(said), text_of(episode)


def test_landmarks_exist_beside_the_path(rows: list[Row]) -> None:
    mentioned = 0
    for house, episode, locations in rows:
        for color in COLORS:
            for noun in LANDMARKS:
                if re.search(rf"\b{color} {noun}\b", text_of(episode)):
                    (item,) = [i for i in house.items if (i.color, i.noun) == (color, noun)]
                    assert min(item.footprint.distance(x, z) for x, _, z in locations) < 1.8
                    mentioned += 1
    assert mentioned > len(rows) / 3


def test_passed_objects_lie_on_the_named_side(rows: list[Row]) -> None:
    checked = 0
    for house, episode, locations in rows:
        for noun, side in passings_said(text_of(episode)):
            near = [
                item
                for item in house.items
                if noun in (item.noun, item.name)
                and min(item.footprint.distance(x, z) for x, _, z in locations) < 1.8
            ]
            assert near, text_of(episode)
            assert any(side == side_of(item.x, item.z, locations) for item in near), text_of(episode)
            checked += 1
    assert checked > len(rows) / 3


def passings_said(text: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(r"(?:past|pass|keep) the ([a-z ]+?)(?: which is)? (?:on|to) your (left|right)", text)


def side_of(x: float, z: float, locations: list[list[float]]) -> str:
    """Side of an object at the point of a walk that is nearest to it."""
    nearest = min(range(len(locations)), key=lambda i: math.dist((x, z), (locations[i][0], locations[i][2])))
    a, b = locations[max(0, nearest - 2)], locations[min(len(locations) - 1, nearest + 2)]
    here = locations[nearest]
    angle = wrap_degrees(yaw_of(x - here[0], z - here[2]) - yaw_of(b[0] - a[0], b[2] - a[2]))
    return "left" if angle > 0 else "right"


def test_first_turn_agrees_with_the_walk(rows: list[Row]) -> None:
    checked = 0
    for house, episode, locations in rows:
        match = re.match(
            r"(?:turn|bear|face|make a|turn to your|turn slightly|turn a little to the)"
            r" (left|right|around|back|all the way around)",
            text_of(episode),
        )
        if match is None:
            continue
        _, y, _, w = episode["start_rotation"]
        room = rooms_walked(house, locations)[0]
        inside = [p for p in locations if house.plan.room_at(p[0], p[2]) == room]
        turns = [
            wrap_degrees(yaw_of(p[0] - inside[0][0], p[2] - inside[0][2]) - 2 * math.degrees(math.atan2(y, w)))
            for p in inside[1:]
        ]
        if match[1] in ("left", "right"):
            assert any((turn > 0) == (match[1] == "left") and abs(turn) > 20 for turn in turns)
        else:
            assert any(abs(turn) > 140 for turn in turns)
        checked += 1
    assert checked > len(rows) / 2


def test_instructions_are_enough_and_necessary(rows: list[Row]) -> None:
    """Reading the text on a plan of the house finds the goal; the text of another trajectory does not."""
    right, wrong = [], []
    for house, episode, _ in rows:
        for other_house, other, _ in rows:
            if other_house is house and other["start_position"] == episode["start_position"]:
                gap = math.dist(goal_said(house, text_of(other)), goal_of(episode))
                (right if other["trajectory_id"] == episode["trajectory_id"] else wrong).append(gap < 3.0)
    assert all(right)
    assert len(wrong) >= 30
    assert sum(wrong) / len(wrong) < 0.35


def goal_of(episode: dict[str, Any]) -> tuple[float, float]:
    x, _, z = episode["goals"][0]["position"]
    return x, z


def goal_said(house: House, text: str) -> tuple[float, float]:
    """Where an instruction ends, from its words and the plan of the house alone."""
    said = rooms_said(house, text)
    room = said[-1]
    nouns = sorted(FURNISHINGS, key=len, reverse=True)
    last = re.search(
        rf"(?:stop|wait|walk up to)[a-z ]*? the (?:({'|'.join(COLORS)}) )?({'|'.join(nouns)})(?: and stop)?\.$",
        text,
    )
    if last is not None:
        color, noun = last.groups()
        (item,) = [i for i in house.items if i.room == room and i.noun == noun and color in (None, "", i.color)]
        return item.x, item.z
    if re.search(r"(middle|center) of the [a-z ]+\.$", text):
        return house.plan.rooms[room].center
    before = next((r for r in reversed(said) if r != room), None)
    doors = [d for d in house.plan.doors_of(room) if before is None or before in d.rooms]
    assert re.search(r"(doorway|just inside|as soon as you are in)", text), text
    return doors[0].center


def test_sentences_are_written_properly(rows: list[Row]) -> None:
    for _, episode, _ in rows:
        text = episode["instruction"]["instruction_text"]
        for sentence in text.removesuffix(".").split(". "):
            assert re.fullmatch(r"[A-Z][a-z ,]*[a-z]", sentence), text
        assert "  " not in text
        assert 5 <= len(text.split()) <= 90


def test_tokens_are_the_words_and_padding(rows: list[Row]) -> None:
    words = vocabulary()
    for _, episode, _ in rows:
        tokens = episode["instruction"]["instruction_tokens"]
        assert len(tokens) == MAX_TOKENS == 200
        said = tokenize(text_of(episode))
        assert [words[token] for token in tokens[: len(said)]] == said
        assert set(tokens[len(said) :]) == {0}


def test_vocabulary_is_sorted_after_padding_and_unknown() -> None:
    words = vocabulary()
    assert words[:2] == ["<pad>", "<unk>"]
    assert words[2:] == sorted(set(words[2:]))
    with pytest.raises(KeyError):
        encode("Turn sideways.", {word: i for i, word in enumerate(words)})


@given(angles)
def test_turn_classes_follow_the_sign(angle: float) -> None:
    kind = turn_class(angle)
    assert ("left" in kind) == (STRAIGHT_DEG < angle < 150.0)
    assert ("right" in kind) == (-150.0 < angle < -STRAIGHT_DEG)


@given(angles, angles, st.floats(0.4, 8.0), st.integers(0, 10_000))
def test_only_true_sides_are_said(turn_in: float, turn_out: float, length: float, seed: int) -> None:
    house = known_house("language", 0)
    door = house.plan.doors_of(0)[0]
    other = next(room for room in door.rooms if room != 0)
    leg = Leg(0, length, turn_in, turn_out, door, None, ())
    goal = Goal(other, *house.plan.rooms[other].center)
    text = describe(house, Route((leg, Leg(other, 0.5, 0.0, 0.0, None, None, ())), goal, ()), random.Random(seed))
    said = set(re.findall(r"left|right", text.lower()))
    true = {
        ("left" if a > 0 else "right")
        for a, least in ((turn_in, STRAIGHT_DEG), (turn_out, EXIT_SIDE_DEG))
        if abs(a) >= least
    }
    assert said <= true
    if abs(turn_out) >= EXIT_SIDE_DEG:
        assert ("left" if turn_out > 0 else "right") in said


def test_trace_refuses_paths_through_walls() -> None:
    house = known_house("language", 0)
    bounds = house.plan.bounds
    x, z = house.plan.rooms[0].center
    corner = next(i for i in range(1, len(house.plan.rooms)) if through_wall(house, (x, z), i))
    goal = Goal(corner, *house.plan.rooms[corner].center)
    assert trace(house, [(x, z), house.plan.rooms[corner].center], 0.0, goal) is None
    assert bounds.contains(x, z)


def through_wall(house: House, start: tuple[float, float], room: int) -> bool:
    """Whether the straight line to a room's centre misses every door."""
    end = house.plan.rooms[room].center
    points = [
        (start[0] + (end[0] - start[0]) * t / 200, start[1] + (end[1] - start[1]) * t / 200) for t in range(201)
    ]
    zones = [door.zone(0.5) for door in house.plan.doors]
    return not any(zone.contains(*point) for zone in zones for point in points)


def test_trace_measures_a_walk_through_a_door() -> None:
    house = known_house("language", 0)
    door: Door = house.plan.doors_of(0)[0]
    other = next(room for room in door.rooms if room != 0)
    nx, nz = door.normal(other)
    x, z = door.center
    corners = [(x - 0.9 * nx, z - 0.9 * nz), (x + 0.9 * nx, z + 0.9 * nz)]
    start_yaw = wrap_degrees(yaw_of(nx, nz) - 90.0)
    route = trace(house, corners, start_yaw, Goal(other, *corners[1], door=door))
    assert route is not None
    assert [leg.room for leg in route.legs] == [0, other]
    assert route.legs[0].turn_in == pytest.approx(90.0)
    assert route.legs[0].turn_out == pytest.approx(0.0, abs=1e-6)
    assert sum(leg.length for leg in route.legs) == pytest.approx(1.8, abs=0.06)
    for a, b in pairwise((corners[0], route.crossings[0], corners[1])):
        assert math.dist(a, b) == pytest.approx(0.9, abs=0.06)
