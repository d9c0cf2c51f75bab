"""Which objects can be seen from where: line segments against walls, floors, ramps and furniture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from envs.houses.plan.furnish import Item
from envs.houses.plan.house import House
from envs.houses.plan.layout import CEILING_M, DOOR_HEIGHT_M, STOREY_M, WALL_M, Plan, Ramp, cut_out

Boxes = NDArray[np.float64]
"""(n, 6) axis-aligned boxes: low x, y, z, high x, y, z."""

_RAMP_SLICES = 10
SEEN_SHARE = 0.3
"""Share of an object's sample points that has to be in sight."""


def visible(house: House, eye: Sequence[float], item: Item) -> bool:
    """Whether a camera at `eye` (world x, y, z) that looks the right way sees a good part of an object.

    Objects count as solid boxes over their footprint: what is behind the legs of a table is hidden. Rugs are flat.
    """
    return bool(unhidden(house, eye, item, sample_points(item)).mean() >= SEEN_SHARE)


def unhidden(house: House, eye: Sequence[float], item: Item, points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points (n, 3) of an object nothing else stands in front of, seen from `eye`: (n,)."""
    others = [other for other in house.items if other != item]
    boxes = np.concatenate((plan_boxes(house.plan), item_boxes(others)))
    start = np.asarray(eye, dtype=np.float64)
    near = boxes[~_contains(boxes, start)]  # a camera leaning over a table looks past it
    return ~blocked(start[None], points, near)


def blocked(starts: NDArray[np.float64], ends: NDArray[np.float64], boxes: Boxes) -> NDArray[np.bool_]:
    """Whether segments run through the inside of any box: (n or 1, 3) to (n, 3) -> (n,)."""
    delta = ends - starts
    delta = np.where(np.abs(delta) < 1e-9, 1e-9, delta)
    low = (boxes[None, :, :3] - starts[:, None]) / delta[:, None]
    high = (boxes[None, :, 3:] - starts[:, None]) / delta[:, None]
    enter = np.minimum(low, high).max(axis=2)
    leave = np.maximum(low, high).min(axis=2)
    hits: NDArray[np.bool_] = ((enter + 1e-6 < leave) & (leave > 1e-6) & (enter < 1.0 - 1e-6)).any(axis=1)
    return hits


@lru_cache(maxsize=64)
def plan_boxes(plan: Plan) -> Boxes:
    """Walls with their doorways cut out, floors between storeys with their openings, and ramps."""
    boxes: list[tuple[float, ...]] = []
    for room, rect in enumerate(plan.rooms):
        base = plan.floor_m(room)
        for along, line, low, high in (
            ("x", rect.z0, rect.x0, rect.x1),
            ("x", rect.z1, rect.x0, rect.x1),
            ("z", rect.x0, rect.z0, rect.z1),
            ("z", rect.x1, rect.z0, rect.z1),
        ):
            for start, end, foot in _wall_spans(plan, room, (along, line, low, high)):
                half = WALL_M / 2
                across = (line - half, line + half)
                (x0, x1), (z0, z1) = ((start, end), across) if along == "x" else (across, (start, end))
                boxes.append((x0, base + foot, z0, x1, base + CEILING_M, z1))
        if plan.storeys[room] > 0:
            holes = [ramp.rect for ramp in plan.ramps_of(room) if ramp.rooms[1] == room]
            for part in cut_out(rect, holes):
                boxes.append((part.x0, base + CEILING_M - STOREY_M, part.z0, part.x1, base, part.z1))
    for ramp in plan.ramps:
        boxes += _ramp_slices(ramp)
    return np.array(boxes)


def item_boxes(items: Sequence[Item]) -> Boxes:
    """Objects as boxes over their footprints."""
    boxes = [
        (i.footprint.x0, i.y, i.footprint.z0, i.footprint.x1, i.y + i.height, i.footprint.z1)
        for i in items
        if i.noun != "rug"
    ]
    return np.array(boxes).reshape(-1, 6)


def _wall_spans(plan: Plan, room: int, wall: tuple[str, float, float, float]) -> list[tuple[float, float, float]]:
    """(from, to, height of the lower edge) along a wall: doorways leave the part above them."""
    along, line, position, high = wall
    axis = 0 if along == "x" else 1
    doors = [d for d in plan.doors_of(room) if d.along == along and abs(d.center[1 - axis] - line) < 1e-6]
    spans = []
    for door in sorted(doors, key=lambda d: d.center[axis]):
        a, b = door.center[axis] - door.width / 2, door.center[axis] + door.width / 2
        spans += [(position, a, 0.0), (a, b, DOOR_HEIGHT_M)]
        position = b
    return [*spans, (position, high, 0.0)]


def _ramp_slices(ramp: Ramp) -> list[tuple[float, ...]]:
    base, rect, (ux, uz) = ramp.bottom[1], ramp.rect, ramp.uphill
    slices: list[tuple[float, ...]] = []
    for i in range(_RAMP_SLICES):
        low, high = i / _RAMP_SLICES, (i + 1) / _RAMP_SLICES
        if ux + uz < 0:
            low, high = 1.0 - high, 1.0 - low
        x0, x1, z0, z1 = rect.x0, rect.x1, rect.z0, rect.z1
        if ux:
            x0, x1 = rect.x0 + low * rect.width, rect.x0 + high * rect.width
        else:
            z0, z1 = rect.z0 + low * rect.depth, rect.z0 + high * rect.depth
        slices.append((x0, base, z0, x1, base + STOREY_M * i / _RAMP_SLICES, z1))
    return slices


def sample_points(item: Item) -> NDArray[np.float64]:
    """(n, 3) points on the object: its axis and the corners of a smaller footprint at three heights."""
    rect, points = item.footprint, []
    for share in (0.25, 0.6, 0.95):
        y = item.y + share * item.height
        for along, across in ((0.5, 0.5), (0.1, 0.1), (0.1, 0.9), (0.9, 0.1), (0.9, 0.9)):
            points.append((rect.x0 + along * rect.width, y, rect.z0 + across * rect.depth))
    return np.array(points)


def _contains(boxes: Boxes, point: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which boxes hold the point."""
    inside: NDArray[np.bool_] = ((boxes[:, :3] <= point) & (point <= boxes[:, 3:])).all(axis=1)
    return inside
