"""Random scenes: a furnished room, separate floors, and two storeys joined by a ramp."""

from __future__ import annotations

import numpy as np

from tests.envs.embedded.navmesh.test_build import Mesh, box, floor, join, quad, room

KINDS = ("room", "islands", "storeys")


def boxes(random: np.random.Generator, low: tuple[float, float, float], high: tuple[float, float]) -> list[Mesh]:
    """Up to six boxes 0.2 to 1.5 m high on a floor whose lowest corner is `low`; x and z end at `high`."""
    found = []
    for _ in range(random.integers(0, 7)):
        x, z = random.uniform((low[0], low[2]), high)
        dx, dz = random.uniform(0.2, 1.5, 2)
        top = low[1] + random.choice([0.25, 0.8, 1.5])
        found.append(box(x, low[1], z, min(x + dx, high[0]), top, min(z + dz, high[1])))
    return found


def random_scene(kind: str, random: np.random.Generator) -> Mesh:
    """A scene of one of `KINDS`; its floors are at heights between 0 and 3 m."""
    if kind == "room":
        width, depth = random.uniform(2, 7, 2)
        return room(width, depth, *boxes(random, (0, 0, 0), (width, depth)))
    if kind == "islands":
        parts, x = [], 0.0
        for _ in range(random.integers(2, 4)):
            width, depth, y = random.uniform((1.5, 1.5, 0), (3.5, 4, 2))
            parts += [floor(x, 0, x + width, depth, y), *boxes(random, (x, y, 0), (x + width, depth))]
            x += width + random.uniform(0.0, 1.0)
        return join(*parts)
    rise, landing = random.uniform(2.2, 3.0), random.uniform(7.5, 8.5)
    ramp = quad((2, 0, 0), (2, 0, 1.5), (7, rise, 1.5), (7, rise, 0))
    upper = [floor(7, 0, landing, 1.5, rise), floor(3, 1.5, landing, 5, rise)]
    return join(
        floor(0, 0, 2, 1.5),
        floor(0, 1.5, 9, 5),
        ramp,
        *upper,
        *boxes(random, (0, 0, 1.8), (9, 5)),
        *boxes(random, (3.2, rise, 2), (landing, 5)),
    )
