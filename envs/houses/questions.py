"""Questions about single views of a house, with true answers: what is in sight, where, which way, how far.

They teach a model to see before it learns to follow instructions, as the vision-language data do from which
published models are fine-tuned. Directions are answered in the actions that lead there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from envs.embedded.navmesh.pathfinder import PathFinder

from .house import House
from .layout import DOOR_HEIGHT_M, WALL_M, Door
from .routes import wrap_degrees
from .visibility import blocked, item_boxes, plan_boxes, visible

Point = tuple[float, float, float]

EYE_M = 1.25
HALF_VIEW_DEG = 34.0
"""Bearings within this of the view's middle count as in sight: hfov 79 less a margin for the width of things."""
FARTHEST_M = 8.0
TURN_DEG, STEP_M = 15.0, 0.25
MOST_STEPS = 8
_MOST_NAMED = 5
_TRIES = 60
_CLEARANCE_M = 0.3
LEFT, RIGHT, FORWARD = "←", "→", "↑"


@dataclass(frozen=True)
class View:
    """A pose (metres, yaw in degrees, a multiple of TURN_DEG) with questions about what it shows and answers."""

    position: Point
    yaw: float
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Seen:
    """Something in sight: what it is called, its bearing (degrees, positive to the left) and distance (metres)."""

    name: str
    bearing: float
    distance: float


def views(house: House, pathfinder: PathFinder, rng: random.Random, count: int) -> Iterator[View]:
    """Views from random places of a house, each with at least the question how far the way is free."""
    rooms = range(len(house.plan.rooms))
    for _ in range(count):
        position = None
        while position is None:
            position = _place(house, pathfinder, rng.choice(rooms), rng)
        yaw = TURN_DEG * rng.randrange(round(360 / TURN_DEG))
        yield View(position, yaw, tuple(_pairs(house, pathfinder, position, yaw, rng)))


def _place(house: House, pathfinder: PathFinder, room: int, rng: random.Random) -> Point | None:
    rect = house.plan.rooms[room].grown(-WALL_M / 2 - _CLEARANCE_M)
    x, z = rect.x0 + rng.random() * rect.width, rect.z0 + rng.random() * rect.depth
    height = house.plan.floor_m(room)
    snapped = pathfinder.snap_point((x, height, z))
    near = bool(np.isfinite(snapped).all()) and math.dist((x, height, z), snapped) < _CLEARANCE_M
    return (float(snapped[0]), float(snapped[1]), float(snapped[2])) if near else None


def _pairs(
    house: House, pathfinder: PathFinder, position: Point, yaw: float, rng: random.Random
) -> list[tuple[str, str]]:
    room = house.plan.room_at(position[0], position[2], position[1])
    seen = _in_sight(house, position, yaw)
    pairs = [
        ("How far can you walk ahead?", FORWARD * _free_steps(pathfinder, position, yaw) or "not at all"),
        ("Which room is this?", house.title(room)),
        ("What do you see?", ", ".join(each.name for each in seen[:_MOST_NAMED]) or "nothing"),
    ]
    names = [each.name for each in seen]
    for each in rng.sample(seen, min(3, len(seen))):
        if names.count(each.name) == 1:
            pairs.append((f"Face the {each.name}.", _turns(each.bearing)))
    absent = rng.choice(house.items).name
    pairs.append((f"Is there a {absent}?", "yes" if absent in names else "no"))
    if seen:
        pairs.append((f"Is there a {rng.choice(seen).name}?", "yes"))
    rng.shuffle(pairs)
    return pairs


def _in_sight(house: House, position: Point, yaw: float) -> list[_Seen]:
    """What can be seen and named, from left to right."""
    eye = (position[0], position[1] + EYE_M, position[2])
    found = [
        _Seen(item.name, *aim)
        for item in house.items
        if (aim := _aim(eye, (item.x, item.z), item.y, yaw)) and item.noun != "rug" and visible(house, eye, item)
    ]
    room = house.plan.room_at(position[0], position[2], position[1])
    for door in house.plan.doors_of(room):
        aim = _aim(eye, door.center, door.y, yaw)
        if aim and _open_view(house, eye, door):
            beyond = door.rooms[0] if door.rooms[1] == room else door.rooms[1]
            found.append(_Seen(f"door to the {house.title(beyond)}", *aim))
    return sorted(found, key=lambda each: -each.bearing)


def _aim(eye: Point, target: tuple[float, float], floor: float, yaw: float) -> tuple[float, float] | None:
    """Bearing and distance of a point of the plan, if it is in the field of view and on this storey."""
    dx, dz = target[0] - eye[0], target[1] - eye[2]
    distance = math.hypot(dx, dz)
    bearing = wrap_degrees(math.degrees(math.atan2(-dx, -dz)) - yaw)
    level = abs(floor - (eye[1] - EYE_M)) < DOOR_HEIGHT_M
    return (bearing, distance) if level and distance < FARTHEST_M and abs(bearing) <= HALF_VIEW_DEG else None


def _open_view(house: House, eye: Point, door: Door) -> bool:
    boxes = np.concatenate((plan_boxes(house.plan), item_boxes(house.items)))
    end = np.array([[door.center[0], eye[1], door.center[1]]])
    return not blocked(np.array([eye]), end, boxes)[0]


def _free_steps(pathfinder: PathFinder, position: Point, yaw: float) -> int:
    """Steps of STEP_M that lead straight on, at most MOST_STEPS."""
    dx, dz = -STEP_M * math.sin(math.radians(yaw)), -STEP_M * math.cos(math.radians(yaw))
    at = np.asarray(position)
    for taken in range(MOST_STEPS):
        end = pathfinder.try_step_no_sliding(at, (at[0] + dx, at[1], at[2] + dz))
        if math.hypot(end[0] - at[0], end[2] - at[2]) < 0.9 * STEP_M:
            return taken
        at = end
    return MOST_STEPS


def _turns(bearing: float) -> str:
    count = round(bearing / TURN_DEG)
    return (LEFT if count > 0 else RIGHT) * abs(count) or FORWARD
