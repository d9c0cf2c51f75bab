"""Generated instructions are true; planted errors and ambiguities are found."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from envs.houses.edition import HOUSES
from envs.houses.files.verify import Verdict, verify
from envs.houses.language.checker import check_text
from envs.houses.language.grammar import Clause, voice
from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House, make_house
from envs.houses.plan.layout import Door, Plan, Rect
from envs.houses.plan.rooms import KINDS, RoomLook
from tests.envs.houses.conftest import TINY, Generated
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.errors import UsageError

Walk = tuple[list[int], list[tuple[float, float, float]]]


def item(noun: str, color: str, room: int, x: float, z: float) -> Item:
    return Item(noun, color, room, x, z, (0, 1), Rect(x - 0.25, z - 0.25, x + 0.25, z + 0.25))


@pytest.fixture
def house() -> House:
    """A hallway along x with a kitchen and an office in the north and two bedrooms in the south."""
    rooms = (Rect(0, 4, 12, 7), Rect(0, 0, 6, 4), Rect(6, 0, 12, 4), Rect(0, 7, 6, 11), Rect(6, 7, 12, 11))
    doors = (
        Door((1, 0), "x", (4.0, 4.0), 1.0),
        Door((2, 0), "x", (9.0, 4.0), 1.0),
        Door((0, 3), "x", (4.0, 7.0), 1.0),
        Door((0, 4), "x", (9.0, 7.0), 1.0),
    )
    plan = Plan(Rect(0, 0, 12, 11), rooms, doors, (0,) * 5)
    titles = ("hallway", "kitchen", "office", "blue bedroom", "pink bedroom")
    looks = tuple(
        RoomLook(KINDS[title.split()[-1]], KINDS[title.split()[-1]].wall_colors[0], title) for title in titles
    )
    items = (
        item("ball", "red", 0, 5.5, 6.2),
        item("lamp", "blue", 2, 9.8, 1.0),
        item("crate", "red", 2, 7.0, 1.0),
        item("vase", "red", 1, 1.0, 1.0),
    )
    return House("drawn", plan, looks, items)


@pytest.fixture
def walk() -> Walk:
    """East along the hallway, left through the second door on that side, to the lamp in the office."""
    actions = [1] * 32 + [2] * 6 + [1] * 19 + [0]
    east = [(1.0 + 0.25 * i, 0.0, 5.5) for i in range(33)]
    north = [(9.0, 0.0, 5.5 - 0.25 * i) for i in range(1, 20)]
    return actions, east + north


EAST = -90.0
TRUE = (
    "Walk straight ahead and go past the red ball on your right. Enter the office on your left. "
    "Stop next to the blue lamp."
)


def problems(house: House, text: str, walk: Walk, yaw: float = EAST) -> list[str]:
    return check_text(house, text, "r2r", yaw, walk)


@pytest.mark.parametrize(
    "text",
    [
        TRUE,
        "Take the second door on the left. Wait beside the blue lamp.",
        "Leave the hallway and enter the office. Stop by the blue lamp.",
        "Turn left into the office. Stop near the lamp.",
    ],
)
def test_true_instructions_pass(house: House, walk: Walk, text: str) -> None:
    assert problems(house, text, walk) == []


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (TRUE.replace("on your right", "on your left"), "pass", "not on the left"),
        (TRUE.replace("red ball", "green ball"), "pass", "0 objects"),
        (TRUE.replace("on your left", "on your right"), "exit", "not on the right"),
        (TRUE.replace("office", "kitchen"), "exit", "leads to the office"),
        (TRUE.replace("Walk straight ahead", "Turn right"), "turn", "turns 0 and 12"),
        (TRUE.replace("Walk straight ahead", "Turn around"), "around", "turns 0 and 12"),
        (TRUE.replace("Walk straight ahead", "Walk through the kitchen"), "cross", "this is the hallway"),
        (TRUE.replace("Walk straight ahead", "Go up the ramp"), "up", "does not take a ramp"),
        (TRUE.replace("next to the blue lamp", "next to the red crate"), "stop next to", "ends"),
        (TRUE.replace("Stop next to the blue lamp", "Stop in the doorway"), "stop door", "behind the door"),
        (TRUE.replace("Stop next to the blue lamp", "Stop in the middle of the room"), "stop middle", "middle"),
        (TRUE.replace(" Stop next to the blue lamp.", ""), "end", "where to stop"),
        ("Walk straight ahead. Stop next to the red ball.", "stop next to", "not the last room"),
        ("Take the first door on the left. Stop next to the blue lamp.", "exit", "door 2"),
        ("Take the door on the left. Stop next to the blue lamp.", "exit", "2 ways out fit"),
        ("Exit the hallway. Stop next to the blue lamp.", "exit", "4 ways out fit"),
        (TRUE.replace("blue lamp", "blue lamp with legs"), "unreadable", ""),
    ],
)
def test_planted_errors_are_found(house: House, walk: Walk, text: str, kind: str, reason: str) -> None:
    (problem, *_) = problems(house, text, walk)
    assert problem.startswith(f"{kind}: ")
    assert reason in problem


def test_second_object_of_the_same_name_is_ambiguous(house: House, walk: Walk) -> None:
    twin = replace(house, items=(*house.items, item("lamp", "blue", 2, 7.0, 3.0)))
    assert problems(twin, TRUE, walk) == ["stop next to: 2 objects here are a blue lamp"]
    other = replace(house, items=(*house.items, item("lamp", "pink", 2, 7.0, 3.0)))
    assert problems(other, TRUE, walk) == []
    assert problems(other, TRUE.replace("blue lamp", "lamp"), walk) == ["stop next to: 2 objects here are a lamp"]


def test_repetition_in_another_room_is_not_ambiguous(house: House, walk: Walk) -> None:
    repeated = replace(house, items=(*house.items, item("lamp", "blue", 4, 9.0, 9.0)))
    assert problems(repeated, TRUE, walk) == []


def test_hidden_objects_are_not_mentioned(house: House, walk: Walk) -> None:
    wardrobe = replace(item("wardrobe", "brown", 0, 5.5, 5.9), footprint=Rect(4.0, 5.85, 7.0, 5.94))
    hidden = replace(house, items=(*house.items, wardrobe))
    assert problems(hidden, TRUE, walk) == ["pass: red ball out of sight"]


def test_two_rooms_of_one_title_are_ambiguous(house: House, walk: Walk) -> None:
    looks = tuple(replace(look, title="office") if i == 4 else look for i, look in enumerate(house.looks))
    twin = replace(house, looks=looks)
    text = "Leave the hallway and enter the office. Stop by the blue lamp."
    assert problems(twin, text, walk) == ["exit: 2 ways out fit"]
    assert problems(twin, TRUE, walk) == []  # the side tells them apart


def test_sights_are_relative_to_the_heading(house: House, walk: Walk) -> None:
    def said(side: str) -> list[str]:
        clauses = [
            Clause("see", side=side, object="red ball"),
            Clause("exit", next="office"),
            Clause("stop next to", object="blue lamp"),
        ]
        text = voice("te-IN").say(clauses, random.Random(0))
        return check_text(house, text, "te-IN", EAST, walk)

    assert said("ahead") == []
    assert said("left") == ["see: the red ball is not left"]


def checked(tiny: Generated, benchmark: str, split: str, speaker: str | None = None) -> Verdict:
    return verify(tiny.root, HOUSES, load_split(get_benchmark(benchmark), split, tiny.root).episodes, speaker)


@pytest.mark.parametrize("benchmark", ["houses-r2r", "houses-rxr"])
@pytest.mark.parametrize("split", ["train", "val_seen", "val_unseen"])
def test_every_generated_instruction_passes(tiny: Generated, benchmark: str, split: str) -> None:
    found = checked(tiny, benchmark, split)
    assert (found.wrong, found.first, found.problems) == (0, "", {})
    assert found.checked == tiny.manifest.counts[split]["episodes" if benchmark == "houses-r2r" else "rxr guide"]


def test_other_sides_in_generated_instructions_are_found(tiny: Generated) -> None:
    swap = {"left": "right", "right": "left"}
    episodes = load_split(get_benchmark("houses-r2r"), "train", tiny.root).episodes
    mirrored = [
        replace(e, instruction=" ".join(swap.get(word.strip(".,"), word) for word in e.instruction.split()))
        for e in episodes
        if any(side in e.instruction.split() for side in swap)
    ]
    assert len(mirrored) > 5
    clean = [replace(e, instruction=e.instruction.replace("  ", " ")) for e in mirrored]
    assert verify(tiny.root, HOUSES, clean).wrong == len(clean)


def test_another_path_is_another_instruction(tiny: Generated) -> None:
    """The text of one trajectory is not true of the others from the same start."""
    episodes = load_split(get_benchmark("houses-r2r"), "train", tiny.root).episodes
    crossed = [
        replace(a, instruction=b.instruction)
        for a in episodes
        for b in episodes
        if a.start_position == b.start_position and a.goals != b.goals
    ]
    assert len(crossed) >= 10
    assert verify(tiny.root, HOUSES, crossed).wrong / len(crossed) > 0.9


def test_verify_needs_the_manifest(tiny: Generated, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="field 'config' cannot be read"):
        verify(tmp_path, HOUSES, [])


@cache
def known_house(name: str) -> House:
    return make_house(name, TINY)


def test_stops_are_said_by_the_last_clause(tiny: Generated) -> None:
    for episode in tiny.split("val_unseen")["episodes"]:
        clauses = voice("r2r").read(episode["instruction"]["instruction_text"])
        assert clauses is not None
        stop, (goal,) = clauses[-1], episode["goals"]
        drawn = known_house(episode["scene_id"].split("/")[1])
        x, y, z = goal["position"]
        room = drawn.plan.room_at(x, z, y)
        named = [i for i in drawn.items if i.room == room and stop.object in (i.noun, i.name)]
        if stop.object:
            assert len(named) == 1
            assert math.dist((named[0].x, named[0].z), (x, z)) < 2.2
