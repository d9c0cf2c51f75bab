"""Light baked into vertex colors: lamps, windows and what comes in through doors, with furniture in the way.

The model is kept to additions, products, quotients and square roots, which every machine rounds alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.houses.model.hangings import Hanging
from envs.houses.model.shell import lamps_of
from envs.houses.plan.house import House
from envs.houses.plan.layout import CEILING_M, STOREY_M
from envs.houses.plan.visibility import Boxes, blocked, item_boxes

Colors = NDArray[np.float64]
"""(n, 3) factors from 0 to 1 for red, green and blue."""

_AMBIENT = 0.4
_SKY = 0.07
"""Ambient light that faces looking up get more, and those looking down less."""
_DARKEST, _BRIGHTEST = 0.3, 1.0
_SHADOW = 0.3
"""Share of a light that reaches a point behind furniture, by way of the walls."""
_LAMP_WARM, _LAMP_COLD, _DAYLIGHT = (1.0, 0.97, 0.9), (0.95, 0.98, 1.0), (0.93, 0.97, 1.0)
_COLD_ROOMS = ("bathroom", "kitchen", "office", "laundry room", "gym", "workshop")


@dataclass(frozen=True)
class Light:
    """A point of light. Halved at `reach` meters; `normal` is the side it shines to, zero for all around."""

    position: tuple[float, float, float]
    normal: tuple[float, float, float]
    power: float
    reach: float
    color: tuple[float, float, float]


def lights_of(house: House, hangings: Sequence[Hanging], rng: random.Random) -> list[list[Light]]:
    """The lights of every room: its lamps, windows, doorways and openings."""
    plan, found = house.plan, []
    for room, look in enumerate(house.looks):
        base = plan.floor_m(room)
        tint = _LAMP_COLD if look.kind.name in _COLD_ROOMS else _LAMP_WARM
        power = 0.55 + 0.3 * rng.random()
        lamps = lamps_of(house, room)
        lights = [Light((x, base + CEILING_M - 0.15, z), (0, 0, 0), power, 2.6, tint) for x, z in lamps]
        for hanging in (h for h in hangings if h.room == room and h.wall.outer):
            (x, z), (fx, fz) = hanging.center, hanging.facing
            lights.append(Light((x, base + 1.55, z), (fx, 0, fz), 0.75, 1.8, _DAYLIGHT))
        for door in plan.doors_of(room):
            nx, nz = door.normal(room)
            lights.append(Light((door.center[0], base + 1.2, door.center[1]), (nx, 0, nz), 0.2, 1.2, _LAMP_WARM))
        for ramp in plan.ramps_of(room):
            side = -1 if room == ramp.rooms[0] else 1
            x, z = ramp.rect.center
            lights.append(Light((x, ramp.bottom[1] + STOREY_M - 0.1, z), (0, side, 0), 0.3, 2.0, _LAMP_WARM))
        found.append(lights)
    return found


def shade(
    points: NDArray[np.float64], normals: NDArray[np.float64], lights: Sequence[Light], obstacles: Boxes
) -> Colors:
    """Light that points (n, 3) of surfaces with unit normals (n, 3) give back."""
    total = np.repeat(_AMBIENT + _SKY * normals[:, 1:2], 3, axis=1)
    lifted = points + 0.03 * normals
    for light in lights:
        way = np.array(light.position) - points
        square = (way * way).sum(axis=1)
        inverse = 1.0 / np.sqrt(np.maximum(square, 0.01))
        facing = 0.3 + 0.7 * (way * normals).sum(axis=1) * inverse
        gain = np.maximum(facing, 0.0) * light.power / (1.0 + square / light.reach**2)
        if any(light.normal):
            gain *= np.maximum(-(way * np.array(light.normal)).sum(axis=1) * inverse, 0.0)
        if len(obstacles):
            behind = blocked(lifted, np.array(light.position)[None], obstacles)
            gain = np.where(behind, gain * _SHADOW, gain)
        total += gain[:, None] * np.array(light.color)
    return np.clip(total, _DARKEST, _BRIGHTEST)


def obstacles_of(house: House, room: int) -> Boxes:
    """What casts shadows in a room."""
    return item_boxes([item for item in house.items if item.room == room])
