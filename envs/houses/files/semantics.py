"""What every pixel of a view belongs to: an object, its color, and the kind of room; and where what is seen lies.

Found from depth: a pixel is a point of the house, which lies in the box of an object or on the walls and the floor
of a room. Objects count as solid boxes, as in `visibility`; pictures, windows and lamps belong to their walls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.houses.files.questions import EYE_M, HFOV_DEG, Viewpoint, turns_to
from envs.houses.plan.catalog import FURNISHINGS
from envs.houses.plan.house import House
from envs.houses.plan.layout import STOREY_M
from envs.houses.plan.rooms import KINDS

Points = NDArray[np.float32]

CATEGORIES = {
    "object": tuple(FURNISHINGS),
    "color": tuple(sorted({color for each in FURNISHINGS.values() for color in each.colors})),
    "room": tuple(KINDS),
}
"""Names by channel of a map; the value of the first is 1, and 0 is none of them."""
_MARGIN_M = 0.03
_FLOOR_M = 0.04
"""What lies lower is floor, also below a table."""
_WALL_M = 0.12
"""A wall belongs to the room on whose side this far in front of it is."""
_LEAST_SEEN = 0.01
"""Of the picture, of what is asked for."""


@dataclass(frozen=True)
class PixelLabels:
    """What the pixels of a view belong to, (height, width) each: objects and rooms of the house by number, from 1
    on; 0 is none of them."""

    items: NDArray[np.int16]
    rooms: NDArray[np.int16]


class Semantics:
    """What views of one house show."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._items = sorted(
            house.items, key=lambda item: item.footprint.width * item.footprint.depth * item.height
        )
        boxes = [
            (i.footprint.x0, i.y, i.footprint.z0, i.footprint.x1, i.y + i.height, i.footprint.z1)
            for i in self._items
        ]
        self._low, self._high = np.split(np.array(boxes, np.float32), 2, axis=1)
        self._low -= _MARGIN_M
        self._high += _MARGIN_M
        self._low[:, 1] += np.array(
            [_MARGIN_M + (item.noun != "rug") * _FLOOR_M for item in self._items], np.float32
        )
        things = [(0, 0), *((_number("object", each.noun), _number("color", each.color)) for each in self._items)]
        self._things = np.array(things, np.uint8)
        self._kinds = np.array([0, *(_number("room", look.kind.name) for look in house.looks)], np.uint8)

    def shown(self, view: Viewpoint, depth: NDArray[np.float32], farthest: float) -> PixelLabels:
        """What the pixels belong to whose depth (height, width) is given, in meters; what is as far as `farthest`,
        where depth ends, or farther belongs to nothing."""
        eye, rays = _rays(view, depth.shape)
        along = depth.reshape(-1, 1)
        items = self._items_at(eye + along * rays)
        rooms = self._rooms_at(eye + np.maximum(along - _WALL_M, 0) * rays)
        known = depth < farthest
        return PixelLabels(*(np.where(known, found.reshape(depth.shape), 0) for found in (items, rooms)))

    def look(
        self, view: Viewpoint, depth: NDArray[np.float32], farthest: float
    ) -> tuple[NDArray[np.uint8], dict[str, str]]:
        """The image of a view, as `image`, and the questions of `ways` with their answers."""
        shown = self.shown(view, depth, farthest)
        return self.image(shown), dict(self.ways(view, shown))

    def image(self, shown: PixelLabels) -> NDArray[np.uint8]:
        """(height, width, 3) numbers of CATEGORIES."""
        return np.concatenate([self._things[shown.items], self._kinds[shown.rooms][..., None]], axis=2)

    def ways(self, view: Viewpoint, shown: PixelLabels) -> Iterator[tuple[str, str]]:
        """Which way to turn to what can be seen, as questions and answers: every object and every other room of
        which a hundredth of the picture is in sight, and nothing else that goes by that name."""
        yield from _ways(shown.items, [item.name for item in self._items])
        yield from _ways(shown.items, [item.noun for item in self._items])
        titles = [self._house.title(room) for room in range(len(self._house.plan.rooms))]
        here = self._house.plan.room_at(view.position[0], view.position[2], view.position[1])
        yield from _ways(shown.rooms, titles, but=titles[here])

    def _items_at(self, points: Points) -> NDArray[np.int16]:
        """Of objects whose boxes overlap the smaller one is seen."""
        found = np.zeros(len(points), np.int16)
        near = (self._high >= points.min(axis=0)).all(axis=1) & (self._low <= points.max(axis=0)).all(axis=1)
        for number in near.nonzero()[0]:
            inside = ((points >= self._low[number]) & (points <= self._high[number])).all(axis=1)
            found[inside & (found == 0)] = number + 1
        return found

    def _rooms_at(self, points: Points) -> NDArray[np.int16]:
        plan, found = self._house.plan, np.zeros(len(points), np.int16)
        for room, rect in enumerate(plan.rooms):
            x, y, z = points.T
            above = y - plan.floor_m(room)
            inside = (x >= rect.x0) & (x <= rect.x1) & (z >= rect.z0) & (z <= rect.z1)
            found[inside & (above > -_FLOOR_M) & (above < STOREY_M - _FLOOR_M)] = room + 1
        return found


def _ways(numbers: NDArray[np.int16], names: list[str], but: str | None = None) -> Iterator[tuple[str, str]]:
    """Where what is numbered from 1 on by its place in `names` is in the picture."""
    seen = np.bincount(numbers.ravel(), minlength=len(names) + 1)[1:].tolist()
    of_name = Counter(name for name, pixels in zip(names, seen, strict=True) if pixels)
    width = numbers.shape[1]
    for number, (name, pixels) in enumerate(zip(names, seen, strict=True), start=1):
        if name != but and of_name[name] == 1 and pixels >= _LEAST_SEEN * numbers.size:
            middle = (numbers == number).nonzero()[1].mean() + 0.5
            bearing = math.degrees(math.atan((width / 2 - middle) / _focal(width)))
            yield f"Face the {name}.", turns_to(bearing)


def _number(channel: str, name: str) -> int:
    return CATEGORIES[channel].index(name) + 1


def _rays(view: Viewpoint, shape: tuple[int, ...]) -> tuple[Points, Points]:
    """The camera (3,) and where the pixels' rays are at 1 m along the optical axis, from it, (pixels, 3)."""
    height, width = shape
    focal = _focal(width)
    columns, rows = np.arange(width) + 0.5 - width / 2, height / 2 - np.arange(height) - 0.5
    aside, up = np.meshgrid(columns / focal, rows / focal)
    sine, cosine = math.sin(math.radians(view.yaw)), math.cos(math.radians(view.yaw))
    rays = np.stack([aside * cosine - sine, up, -aside * sine - cosine], axis=2)
    x, y, z = view.position
    return np.array([x, y + EYE_M, z], np.float32), rays.reshape(-1, 3).astype(np.float32)


def _focal(width: int) -> float:
    """Pixels."""
    return 0.5 * width / math.tan(math.radians(HFOV_DEG) / 2)
