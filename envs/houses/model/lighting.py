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
from envs.houses.model.style import DAY, Lighting
from envs.houses.plan.house import House
from envs.houses.plan.layout import CEILING_M, STOREY_M
from envs.houses.plan.visibility import Boxes, blocked, item_boxes

Colors = NDArray[np.float64]
"""(n, 3) factors from 0 to 1 for red, green and blue."""

_SKY = 0.07
"""Ambient light that faces looking up get more, and those looking down less."""
_BRIGHTEST = 1.0
_SHADOW = 0.3
"""Share of a light that reaches a point behind furniture, by way of the walls."""
_COLD_ROOMS = ("bathroom", "kitchen", "office", "laundry room", "gym", "workshop")


@dataclass(frozen=True)
class Light:
    """A point of light. Halved at `reach` meters; `normal` is the side it shines to, zero for all around."""

    position: tuple[float, float, float]
    normal: tuple[float, float, float]
    power: float
    reach: float
    color: tuple[float, float, float]


def lights_of(
    house: House, hangings: Sequence[Hanging], rng: random.Random, lighting: Lighting = DAY
) -> list[list[Light]]:
    """The lights of every room: its lamps, windows, doorways and openings."""
    plan, found = house.plan, []
    for room, look in enumerate(house.looks):
        base = plan.floor_m(room)
        tint = lighting.cold if look.kind.name in _COLD_ROOMS else lighting.warm
        power = lighting.lamps[0] + lighting.lamps[1] * rng.random()
        lamps = lamps_of(house, room)
        lights = [Light((x, base + CEILING_M - 0.15, z), (0, 0, 0), power, 2.6, tint) for x, z in lamps]
        for hanging in (h for h in hangings if h.room == room and h.wall.outer):
            (x, z), (fx, fz) = hanging.center, hanging.facing
            lights.append(Light((x, base + 1.55, z), (fx, 0, fz), lighting.window, 1.8, lighting.daylight))
        for door in plan.doors_of(room):
            nx, nz = door.normal(room)
            middle = (door.center[0], base + 1.2, door.center[1])
            lights.append(Light(middle, (nx, 0, nz), 0.2, 1.2, lighting.warm))
        for ramp in plan.ramps_of(room):
            side = -1 if room == ramp.rooms[0] else 1
            x, z = ramp.rect.center
            lights.append(Light((x, ramp.bottom[1] + STOREY_M - 0.1, z), (0, side, 0), 0.3, 2.0, lighting.warm))
        found.append(lights)
    return found


def shade(
    points: NDArray[np.float64],
    normals: NDArray[np.float64],
    lights: Sequence[Light],
    obstacles: Boxes,
    lighting: Lighting = DAY,
) -> Colors:
    """Light that points (n, 3) of surfaces with unit normals (n, 3) give back."""
    total = (lighting.ambient + _SKY * normals[:, 1:2]) * np.array(lighting.ambient_tint)
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
    lit: Colors = np.clip(total, lighting.darkest, _BRIGHTEST)
    return lit


def obstacles_of(house: House, room: int) -> Boxes:
    """What casts shadows in a room."""
    return item_boxes([item for item in house.items if item.room == room])
