"""Lines of sight, by hand and against rendered depth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.houses.options import HousesConfig
from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House
from envs.houses.plan.layout import STOREY_M, Door, Plan, Ramp, Rect
from envs.houses.plan.rooms import KINDS, RoomLook
from envs.houses.plan.visibility import sample_points, visible
from tests.envs.houses.scenes import Built, build
from vlnbench.interfaces import Camera

EYE_M = 1.25


def item(noun: str, x: float, z: float, room: int = 0, storey: int = 0) -> Item:
    return Item(noun, "red", room, x, z, (0, 1), Rect(x - 0.2, z - 0.2, x + 0.2, z + 0.2), storey)


def house(*items: Item) -> House:
    """Two rooms side by side with a door between them, and a room with a ramp's opening above the first."""
    rooms = (Rect(0.0, 0.0, 8.0, 4.0), Rect(8.0, 0.0, 12.0, 4.0), Rect(0.0, 0.0, 8.0, 4.0))
    door = Door((0, 1), "z", (8.0, 2.0), 1.0)
    ramp = Ramp((0, 2), Rect(1.5, 0.08, 6.5, 1.18), (1, 0))
    plan = Plan(Rect(0.0, 0.0, 12.0, 4.0), rooms, (door,), (0, 0, 1), (ramp,))
    look = RoomLook(KINDS["hallway"], "white", "hallway")
    return House("x", plan, (look,) * 3, items)


def test_walls_hide_and_doorways_show() -> None:
    ahead, aside = item("vase", 10.0, 2.0, room=1), item("vase", 9.0, 0.5, room=1)
    scene = house(ahead, aside)
    assert visible(scene, (5.0, EYE_M, 2.0), ahead)
    assert not visible(scene, (5.0, EYE_M, 2.0), aside)
    assert not visible(scene, (5.0, EYE_M, 3.9), ahead)
    assert visible(scene, (9.0, EYE_M, 3.5), aside)


def test_furniture_hides_what_is_lower() -> None:
    near, far = item("wardrobe", 4.0, 3.0), item("vase", 6.0, 3.0)
    assert not visible(house(near, far), (2.0, EYE_M, 3.0), far)
    assert visible(house(item("bucket", 4.0, 3.0), far), (2.0, EYE_M, 3.0), far)
    assert visible(house(near, far), (2.0, EYE_M, 3.0), near)


def test_floors_hide_but_for_the_opening() -> None:
    below, above = item("vase", 7.4, 3.4), item("vase", 4.0, 2.6, room=2, storey=1)
    scene = house(below, above)
    assert not visible(scene, (2.0, STOREY_M + EYE_M, 3.5), below)
    assert not visible(scene, (4.0, EYE_M, 2.6), above)
    assert not visible(house(item("vase", 7.4, 0.6)), (2.0, EYE_M, 0.6), item("vase", 7.4, 0.6)), "behind the ramp"
    assert visible(scene, (2.0, STOREY_M + EYE_M, 2.6), above)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    config = HousesConfig(seed=5, rooms_max=12, storeys_share=1.0, distractors=1)
    return build(tmp_path_factory.mktemp("seen"), "high", config)


def test_it_agrees_with_rendered_depth(built: Built) -> None:
    """Small objects of the same storey, hidden or in plain sight, from two places of every room."""
    plan, found, missed, hidden, wrong = built.house.plan, 0, 0, 0, 0
    for room, rect in enumerate(plan.rooms):
        small = [i for i in built.house.items if i.storey == plan.storeys[room] and i.footprint.width < 1.0]
        for x, z in (rect.center, (rect.x0 + 0.7, rect.z0 + 0.7)):
            eye = built.pathfinder.snap_point((x, plan.floor_m(room), z)) + np.array((0.0, EYE_M, 0.0))
            for other in small:
                rendered = rendered_share(built, eye, other)
                if rendered is None or 0.1 < rendered < 0.6:
                    continue
                seen = visible(built.house, eye, other)
                wrong += rendered <= 0.1 and seen
                found += seen
                missed += rendered >= 0.6 and not seen
                hidden += rendered <= 0.1
    assert found > 40
    assert hidden > 100
    assert wrong <= 0.01 * hidden  # a hood over a stove counts as a box
    assert missed <= 0.25 * found  # behind table legs, or within the tolerance of the rendered answer


def rendered_share(built: Built, eye: NDArray[np.float64], other: Item) -> float | None:
    """Share of an object's points that lie no deeper than what the camera sees there; None outside its view."""
    offset = sample_points(other) - eye
    yaw = math.atan2(-offset[0, 0], -offset[0, 2])
    rotation = (0.0, math.sin(yaw / 2), 0.0, math.cos(yaw / 2))
    depth = built.renderer.render(Camera(96, 96, 120.0, 0.0), tuple(eye), rotation, rgb=False).depth
    assert depth is not None
    ahead = -offset[:, 0] * math.sin(yaw) - offset[:, 2] * math.cos(yaw)
    right = offset[:, 0] * math.cos(yaw) - offset[:, 2] * math.sin(yaw)
    focal = 48.0 / math.tan(math.radians(60.0))
    column, row = 48.0 + focal * right / ahead, 48.0 - focal * offset[:, 1] / ahead
    if ahead.min() < 0.8 or not (np.abs((column, row)) < 96).all() or min(column.min(), row.min()) < 0:
        return None
    return float((depth[row.astype(int), column.astype(int)] > ahead - 0.6).mean())
