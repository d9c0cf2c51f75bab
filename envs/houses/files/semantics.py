"""What every pixel of a view belongs to: an object, its color, and the kind of room.

Found from depth: a pixel is a point of the house, which lies in the box of an object or on the walls and the floor
of a room. Objects count as solid boxes, as in `visibility`; pictures, windows and lamps belong to their walls.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.houses.files.manifest import read_config
from envs.houses.files.questions import EYE_M, HFOV_DEG, View
from envs.houses.plan.catalog import FURNISHINGS
from envs.houses.plan.house import make_house
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


class Semantics:
    """Maps of one house below a data root."""

    def __init__(self, root: Path, name: str) -> None:
        self._house = make_house(name, read_config(root))
        items = sorted(
            self._house.items, key=lambda item: item.footprint.width * item.footprint.depth * item.height
        )
        boxes = [
            (i.footprint.x0, i.y, i.footprint.z0, i.footprint.x1, i.y + i.height, i.footprint.z1) for i in items
        ]
        self._low, self._high = np.split(np.array(boxes, np.float32), 2, axis=1)
        self._low -= _MARGIN_M
        self._high += _MARGIN_M
        self._low[:, 1] += np.array([_MARGIN_M + (item.noun != "rug") * _FLOOR_M for item in items], np.float32)
        self._names = [(_number("object", item.noun), _number("color", item.color)) for item in items]

    def of(self, view: View, depth: NDArray[np.float32]) -> NDArray[np.uint8]:
        """(height, width, 3) numbers of CATEGORIES from the depth (height, width), in meters, of a view."""
        eye, rays = _rays(view, depth.shape)
        found = np.zeros((depth.size, 3), np.uint8)
        along = depth.reshape(-1, 1)
        self._paint_objects(found, eye + along * rays)
        self._paint_rooms(found, eye + np.maximum(along - _WALL_M, 0) * rays)
        return found.reshape(*depth.shape, 3)

    def _paint_objects(self, found: NDArray[np.uint8], points: Points) -> None:
        """Of objects whose boxes overlap the smaller one is seen."""
        near = (self._high >= points.min(axis=0)).all(axis=1) & (self._low <= points.max(axis=0)).all(axis=1)
        for number in near.nonzero()[0]:
            inside = ((points >= self._low[number]) & (points <= self._high[number])).all(axis=1)
            found[inside & (found[:, 0] == 0), :2] = self._names[number]

    def _paint_rooms(self, found: NDArray[np.uint8], points: Points) -> None:
        plan = self._house.plan
        for room, (rect, look) in enumerate(zip(plan.rooms, self._house.looks, strict=True)):
            x, y, z = points.T
            above = y - plan.floor_m(room)
            inside = (x >= rect.x0) & (x <= rect.x1) & (z >= rect.z0) & (z <= rect.z1)
            inside &= (above > -_FLOOR_M) & (above < STOREY_M - _FLOOR_M)
            found[inside, 2] = _number("room", look.kind.name)


def _number(channel: str, name: str) -> int:
    return CATEGORIES[channel].index(name) + 1


def _rays(view: View, shape: tuple[int, ...]) -> tuple[Points, Points]:
    """The camera (3,) and where the pixels' rays are at 1 m along the optical axis, from it, (pixels, 3)."""
    height, width = shape
    focal = 0.5 * width / math.tan(math.radians(HFOV_DEG) / 2)
    columns, rows = np.arange(width) + 0.5 - width / 2, height / 2 - np.arange(height) - 0.5
    aside, up = np.meshgrid(columns / focal, rows / focal)
    sine, cosine = math.sin(math.radians(view.yaw)), math.cos(math.radians(view.yaw))
    rays = np.stack([aside * cosine - sine, up, -aside * sine - cosine], axis=2)
    x, y, z = view.position
    return np.array([x, y + EYE_M, z], np.float32), rays.reshape(-1, 3).astype(np.float32)
