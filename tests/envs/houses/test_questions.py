"""Questions about views, against rendered depth and walked steps."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.houses.files.questions import ASPECT, EYE_M, HFOV_DEG, STEP_M, TURN_DEG, Viewpoint, views
from envs.houses.files.semantics import _ways
from envs.houses.options import HousesConfig
from envs.houses.plan.catalog import LANDMARKS
from envs.houses.plan.house import House, make_house
from tests.envs.houses.scenes import Built, build
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.interfaces import Camera

COUNT = 120
WIDTH, HEIGHT = 160, 120


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("asked"), "asked", HousesConfig(seed=5, storeys_share=1.0))


@pytest.fixture(scope="module")
def found(built: Built) -> list[Viewpoint]:
    return look(built, 0)


def look(built: Built, seed: int) -> list[Viewpoint]:
    return list(views(built.house, built.pathfinder, random.Random(seed), COUNT))


def answers(found: list[Viewpoint], start: str, end: str) -> list[tuple[Viewpoint, str, str]]:
    """(view, what is asked for, answer) of the questions that begin and end so."""
    return [
        (view, question.removeprefix(start).removesuffix(end), answer)
        for view in found
        for question, answer in view.pairs
        if question.startswith(start) and question.endswith(end)
    ]


def seen_points(built: Built, view: Viewpoint) -> NDArray[np.float64]:
    """World points (n, 3) of what the camera sees, one per pixel."""
    x, y, z = view.position
    camera = Camera(WIDTH, HEIGHT, HFOV_DEG, 0.0)
    depth = built.renderer.render(camera, (x, y + EYE_M, z), view.rotation, rgb=False).depth
    assert depth is not None
    focal = WIDTH / 2 / math.tan(math.radians(HFOV_DEG / 2))
    right = (np.arange(WIDTH) + 0.5 - WIDTH / 2) / focal * depth
    up = -(np.arange(HEIGHT)[:, None] + 0.5 - HEIGHT / 2) / focal * depth
    sine, cosine = math.sin(math.radians(view.yaw)), math.cos(math.radians(view.yaw))
    points = np.stack((x + right * cosine - depth * sine, y + EYE_M + up, z - right * sine - depth * cosine), -1)
    return points.reshape(-1, 3)


def pixels(house: House, points: NDArray[np.float64], name: str) -> int:
    """How many pixels show objects of that name: those whose points lie within their boxes."""
    total = 0
    for item in house.items:
        if item.name == name and item.noun != "rug":
            box = item.footprint
            low = np.array((box.x0 - 0.02, item.y + 0.05, box.z0 - 0.02))
            high = np.array((box.x1 + 0.02, item.y + item.height + 0.02, box.z1 + 0.02))
            total += int(((low <= points) & (points <= high)).all(axis=1).sum())
    return total


def test_the_camera_is_the_benchmarks() -> None:
    body = get_benchmark("houses-r2r").body
    assert (body.camera.hfov, body.camera.height_m, body.camera.pitch_deg) == (HFOV_DEG, EYE_M, 0.0)
    assert body.camera.width / body.camera.height == pytest.approx(ASPECT)
    assert (body.turn_deg, body.forward_m) == (TURN_DEG, STEP_M)


def test_views_depend_on_the_seed_alone(built: Built, found: list[Viewpoint]) -> None:
    assert look(built, 0) == found
    assert look(built, 1) != found


def test_every_view_asks_each_question_once_and_answers_all(found: list[Viewpoint]) -> None:
    for view in found:
        questions = [question for question, _ in view.pairs]
        assert len(set(questions)) == len(questions)
        assert all(answer for _, answer in view.pairs)
        assert {"How far can you walk ahead?", "Which room is this?"} <= set(questions)
    assert len({tuple(question.split()[0] for question, _ in view.pairs) for view in found}) > 10
    replies = Counter(answer for _, _, answer in answers(found, "Is there a", "?"))
    assert min(replies["yes"], replies["no"]) > 0.3 * replies.total()


def test_rooms_are_those_around_the_place(built: Built, found: list[Viewpoint]) -> None:
    plan = built.house.plan
    for view, _, answer in answers(found, "Which room is this?", ""):
        x, y, z = view.position
        around = [
            built.house.title(room)
            for room, rect in enumerate(plan.rooms)
            if rect.contains(x, z) and abs(plan.floor_m(room) - y) < 1.0
        ]
        assert around == [answer]


@pytest.mark.slow
def test_what_is_seen_is_in_the_picture_and_what_is_absent_is_not(built: Built, found: list[Viewpoint]) -> None:
    house = built.house
    unseen = wrong = blank = 0
    named = denied = 0
    for view in found:
        points = seen_points(built, view)
        told = dict(view.pairs)
        things = told.get("What do you see?", "nothing").split(", ")
        if told.get("What do you see?") == "nothing":
            blank += 1
            wrong += any(pixels(house, points, item.name) > 12 for item in house.items)
        assert len(set(things)) == len(things) <= 5
        for question, answer in view.pairs:
            name = question.removeprefix("Is there ").removesuffix("?").partition(" ")[2]
            if question.startswith("Is there"):
                assert question.split()[2] == ("an" if name[0] in "aeiou" else "a")
                if answer == "yes":
                    things.append(name)
                else:
                    denied += 1
                    wrong += pixels(house, points, name) > 12
        for name in things:
            if name != "nothing" and not name.startswith("door to the "):
                named += 1
                unseen += pixels(house, points, name) < 3
    assert blank > 5
    assert named > COUNT
    assert denied > COUNT / 2
    assert unseen == 0
    assert wrong == 0


def test_turning_as_told_brings_things_to_the_middle(built: Built, found: list[Viewpoint]) -> None:
    house = built.house
    asked = answers(found, "Face the ", ".")
    assert len(asked) > COUNT / 2
    assert {answer[0] for _, _, answer in asked} == {"←", "→", "↑"}
    for view, name, answer in asked:
        x, y, z = view.position
        yaw = math.radians(view.yaw + TURN_DEG * (answer.count("←") - answer.count("→")))
        level = [item for item in house.items if abs(item.y - y) < 1.5]
        room = house.plan.room_at(x, z, y)
        places = [(item.x, item.z) for item in level if item.name == name] + [
            door.center
            for door in house.plan.doors_of(room)
            if name in {f"door to the {house.title(other)}" for other in door.rooms if other != room}
        ]
        off = [math.atan2(-(px - x), -(pz - z)) - yaw for px, pz in places]
        nearest = min(abs(math.degrees(math.remainder(angle, 2 * math.pi))) for angle in off)
        assert nearest <= TURN_DEG / 2 + 1e-6
        assert answer in ("↑", answer[0] * len(answer))


def test_the_way_is_free_as_far_as_told(built: Built, found: list[Viewpoint]) -> None:
    told = answers(found, "How far can you walk ahead?", "")
    lengths = Counter(0 if answer == "not at all" else len(answer) for _, _, answer in told)
    assert len(lengths) == 9
    for view, _, answer in told:
        steps = answer.count("↑")
        assert answer in ("↑" * steps, "not at all")
        assert off(built, view, steps) < 0.02
        assert steps == 8 or off(built, view, steps + 1) > 0.005


def off(built: Built, view: Viewpoint, steps: int) -> float:
    """Meters in the plan between where so many steps lead and where they end if taken at once."""
    way = steps * STEP_M * np.array((-math.sin(math.radians(view.yaw)), 0.0, -math.cos(math.radians(view.yaw))))
    start = np.array(view.position)
    end = built.pathfinder.try_step_no_sliding(start, start + way)
    return float(np.hypot(*(end - start - way)[[0, 2]]))


def test_questions_hold_the_words_of_other_houses(built: Built, found: list[Viewpoint]) -> None:
    words = {
        word for view in [*found, *look(built, 1), *look(built, 2)] for q, _ in view.pairs for word in q.split()
    }
    words = {word.strip("?.") for word in words}
    other = make_house("other", HousesConfig(seed=6))
    wanted = {word for item in other.items if item.noun in LANDMARKS for word in item.name.split()}
    assert len(wanted - words) <= 0.05 * len(wanted)


def test_what_a_hundredth_of_the_picture_shows_is_asked_for_by_a_name_of_its_own() -> None:
    """Bearings are those of the middle of the pixels: of column 0 of 20, 38 degrees to the left."""
    numbers = np.zeros((20, 20), np.int16)
    numbers[:4, 0] = 1  # exactly a hundredth
    numbers[:3, 10] = 2
    numbers[5:, 19], numbers[0, 5] = 3, 4  # alike
    numbers[5:, 9:11] = 5
    numbers[5:, 15] = 6
    names = ["bed", "sofa", "chair", "chair", "desk", "kitchen"]
    assert dict(_ways(numbers, names, but="kitchen")) == {"Face the bed.": "←←←", "Face the desk.": "↑"}
    assert dict(_ways(numbers, names))["Face the kitchen."] == "→→"
