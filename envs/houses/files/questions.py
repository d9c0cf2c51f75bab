"""Questions about single views of a house, with true answers: what is in sight, where, which way, how far.

They teach a model to see before it learns to follow instructions, as the vision-language data do from which
published models are fine-tuned. Directions are answered in the actions that lead there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.embedded.navmesh.pathfinder import PathFinder
from envs.houses.edition import SCENES_DIR
from envs.houses.options import HousesConfig
from envs.houses.plan.catalog import FURNISHINGS, LANDMARKS
from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House, make_house
from envs.houses.plan.layout import DOOR_HEIGHT_M, WALL_M, Door
from envs.houses.plan.visibility import SEEN_SHARE, blocked, item_boxes, plan_boxes, sample_points, unhidden
from envs.houses.routes.routes import wrap_degrees

Point = tuple[float, float, float]

EYE_M = 1.25
HFOV_DEG, ASPECT = 79.0, 4 / 3
"""Field of view of the camera that looks, and width by height of its picture."""
HALF_VIEW_DEG = 34.0
"""Only what has its middle within this of the view's middle is named."""
FARTHEST_M = 8.0
TURN_DEG, STEP_M = 15.0, 0.25
MOST_STEPS = 8
_MOST_NAMED = 5
_MOST_FACED = 3
_CLEARANCE_M = 0.3
_OFF_M = 0.01
"""A step that ends this far from where it leads is not free."""
_DOUBT = 1.3
"""What lies in a picture that is larger by this factor is not said to be absent."""
LEFT, RIGHT, FORWARD = "←", "→", "↑"


@dataclass(frozen=True)
class Viewpoint:
    """A pose (meters, yaw in degrees, a multiple of TURN_DEG) with questions about what it shows and answers."""

    position: Point
    yaw: float
    pairs: tuple[tuple[str, str], ...]

    @property
    def rotation(self) -> tuple[float, float, float, float]:
        """The yaw as a quaternion x, y, z, w."""
        half = math.radians(self.yaw) / 2
        return 0.0, math.sin(half), 0.0, math.cos(half)


@dataclass(frozen=True)
class _Seen:
    """Something in sight: what it is called, its bearing (degrees, positive to the left) and distance (meters)."""

    name: str
    bearing: float
    distance: float


def house_views(root: Path, config: HousesConfig, name: str, seed: int, count: int) -> tuple[str, list[Viewpoint]]:
    """Scene file below the scenes directory, and `count` views, of the house of that name below a data root."""
    house = make_house(name, config)
    pathfinder = PathFinder.load((root / SCENES_DIR / house.scene_id).with_suffix(".navmesh"))
    rng = random.Random(f"vlnbench questions {seed} {name}")
    return house.scene_id, list(views(house, pathfinder, rng, count))


def views(house: House, pathfinder: PathFinder, rng: random.Random, count: int) -> Iterator[Viewpoint]:
    """Views from random places of a house, each with at least the question how far the way is free."""
    rooms = range(len(house.plan.rooms))
    for _ in range(count):
        position = None
        while position is None:
            position = _place(house, pathfinder, rng.choice(rooms), rng)
        yaw = TURN_DEG * rng.randrange(round(360 / TURN_DEG))
        yield Viewpoint(position, yaw, tuple(_pairs(house, pathfinder, position, yaw, rng)))


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
    eye = (position[0], position[1] + EYE_M, position[2])
    seen = _in_sight(house, eye, yaw, room)
    names = [each.name for each in seen]
    nearest = sorted(seen, key=lambda each: each.distance)
    told = set(list(dict.fromkeys(each.name for each in nearest))[:_MOST_NAMED])
    pairs = [
        ("How far can you walk ahead?", FORWARD * _free_steps(pathfinder, position, yaw) or "not at all"),
        ("Which room is this?", house.title(room)),
    ]
    if seen:
        pairs.append(("What do you see?", ", ".join(name for name in dict.fromkeys(names) if name in told)))
    elif not any(_shown(house, eye, yaw, item, _DOUBT).any() for item in house.items):
        pairs.append(("What do you see?", "nothing"))
    single = [each for each in seen if names.count(each.name) == 1 and _is_single(house, eye, yaw, each.name)]
    for each in rng.sample(single, min(_MOST_FACED, len(single))):
        pairs.append((f"Face the {each.name}.", turns_to(each.bearing)))
    absent = _some_name(house, names, rng)
    if not _in_picture(house, eye, yaw, absent):
        pairs.append((f"Is there {_a(absent)}?", "no"))
    if seen:
        pairs.append((f"Is there {_a(rng.choice(seen).name)}?", "yes"))
    rng.shuffle(pairs)
    return pairs


def _in_sight(house: House, eye: Point, yaw: float, room: int) -> list[_Seen]:
    """What can be seen and named, from left to right. Rugs are not: too much stands on them."""
    found = []
    for item in house.items:
        aim = _aim(eye, (item.x, item.z), item.y, yaw)
        if aim and item.noun != "rug" and _shown(house, eye, yaw, item).mean() >= SEEN_SHARE:
            found.append(_Seen(item.name, *aim))
    for door in house.plan.doors_of(room):
        aim = _aim(eye, door.center, door.y, yaw)
        if aim and _open_view(house, eye, door):
            beyond = door.rooms[0] if door.rooms[1] == room else door.rooms[1]
            found.append(_Seen(f"door to the {house.title(beyond)}", *aim))
    return sorted(found, key=lambda each: -each.bearing)


def _is_single(house: House, eye: Point, yaw: float, name: str) -> bool:
    """Whether no two things of that name, of which one may be half hidden, are in the picture."""
    alike = [item for item in house.items if item.name == name]
    return sum(bool(_shown(house, eye, yaw, item, _DOUBT).any()) for item in alike) <= 1


def _some_name(house: House, seen: Sequence[str], rng: random.Random) -> str:
    """Something to ask for: of this house, of another color than what is seen, or of any house."""
    kinds = [FURNISHINGS[noun] for noun in LANDMARKS]
    alike = [kind for kind in kinds if any(name.endswith(f" {kind.noun}") for name in seen)]
    chosen = rng.choice(("house", "alike" if alike else "any", "any"))
    if chosen == "house":
        return rng.choice([item for item in house.items if item.noun != "rug"]).name
    kind = rng.choice(alike if chosen == "alike" else kinds)
    return f"{rng.choice(kind.colors)} {kind.noun}"


def _in_picture(house: House, eye: Point, yaw: float, name: str) -> bool:
    """Whether the least part of a thing of that name might be seen."""
    return any(bool(_shown(house, eye, yaw, item, _DOUBT).any()) for item in house.items if item.name == name)


def _shown(house: House, eye: Point, yaw: float, item: Item, grown: float = 1.0) -> NDArray[np.bool_]:
    """Which of an object's sample points are in the picture, larger by a factor, with nothing in front."""
    points = sample_points(item)
    offset = points - np.asarray(eye)
    sine, cosine = math.sin(math.radians(yaw)), math.cos(math.radians(yaw))
    ahead = -offset[:, 0] * sine - offset[:, 2] * cosine
    aside = np.abs(offset[:, 0] * cosine - offset[:, 2] * sine)
    half = grown * math.tan(math.radians(HFOV_DEG / 2))
    inside: NDArray[np.bool_] = (aside <= half * ahead) & (np.abs(offset[:, 1]) <= half / ASPECT * ahead)
    if inside.any():
        inside[inside] = unhidden(house, eye, item, points[inside])
    return inside


def _aim(eye: Point, target: tuple[float, float], floor: float, yaw: float) -> tuple[float, float] | None:
    """Bearing and distance of a point of the plan, if it is near the view's middle and on this storey."""
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
        if math.hypot(end[0] - at[0] - dx, end[2] - at[2] - dz) > _OFF_M:
            return taken
        at = end
    return MOST_STEPS


def turns_to(bearing: float) -> str:
    """Actions that turn to a bearing in degrees, positive to the left; straight ahead is a step."""
    count = round(bearing / TURN_DEG)
    return (LEFT if count > 0 else RIGHT) * abs(count) or FORWARD


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
