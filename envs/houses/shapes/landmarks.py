"""Landmark objects as colored solids, each with an outline of its own.

Builders work as in furniture_shapes.py.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from envs.houses.shapes.furniture import legs
from envs.houses.shapes.meshes import (
    Part,
    Triangles,
    beam,
    block,
    colored,
    cylinder,
    lathe,
    lying,
    prism,
    shifted,
    sphere,
)


def vase(color: str) -> list[Part]:
    profile = ((0.1, 0), (0.19, 0.2), (0.2, 0.38), (0.09, 0.62), (0.08, 0.7), (0.13, 0.8))
    return colored(color, lathe(profile, segments=18))


def cone(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (0.46, 0.016, 0.46)), lathe(((0.19, 0.016), (0.13, 0.3)), segments=18)),
        *colored("white", lathe(((0.13, 0.3), (0.09, 0.48)), segments=18)),
        *colored(color, lathe(((0.09, 0.48), (0.02, 0.8)), segments=18)),
    ]


def crate(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (0.5, 0.5, 0.5))),
        *colored("cream", block((0, 0.2, 0), (0.51, 0.1, 0.51)), block((0, 0.495, 0), (0.1, 0.01, 0.5))),
    ]


def barrel(color: str) -> list[Part]:
    hoops = [lathe(((0.285, y), (0.285, y + 0.05)), segments=18) for y in (0.12, 0.63)]
    profile = ((0.23, 0), (0.28, 0.2), (0.3, 0.4), (0.28, 0.6), (0.23, 0.8))
    return [*colored(color, lathe(profile, segments=18)), *colored("screen", *hoops)]


def plant(color: str) -> list[Part]:
    leaves = [sphere(r, y, c, 10, 7) for r, y, c in _LEAVES]
    return [
        *colored(color, lathe(((0.16, 0), (0.22, 0.36)), segments=16)),
        *colored("brown", cylinder(0.03, 0.36, 0.7, segments=8)),
        *colored("leaf", *leaves),
    ]


_LEAVES = (
    (0.24, 0.85, (0.0, 0.0)),
    (0.17, 0.72, (0.15, 0.08)),
    (0.17, 0.75, (-0.14, -0.07)),
    (0.18, 1.08, (-0.05, 0.06)),
    (0.14, 1.2, (0.06, -0.04)),
)


def lamp(color: str) -> list[Part]:
    return [
        *colored("black", cylinder(0.15, 0, 0.015), cylinder(0.02, 0.015, 1.3, segments=8)),
        *colored(color, lathe(((0.24, 1.25), (0.13, 1.6)), segments=18)),
    ]


def stool(color: str) -> list[Part]:
    return [
        *colored(color, cylinder(0.2, 0.48, 0.56, segments=18)),
        *colored("steel", *legs(0.36, 0.36, 0.48, 0.04)),
    ]


def bucket(color: str) -> list[Part]:
    return [
        *colored(color, lathe(((0.15, 0), (0.22, 0.42)), segments=18)),
        *colored("white", lathe(((0.225, 0.38), (0.23, 0.44)), segments=18)),
        *colored("screen", cylinder(0.19, 0.44, 0.442, segments=18)),
    ]


def suitcase(color: str) -> list[Part]:
    handle = [block((x, 0.7, -0.06), (0.03, 0.3, 0.03)) for x in (-0.13, 0.13)]
    return [
        *colored(color, block((0, 0.06, 0), (0.5, 0.64, 0.28))),
        *colored("black", *(block((x, 0.06, 0), (0.03, 0.65, 0.29)) for x in (-0.14, 0.14))),
        *colored("steel", *handle, block((0, 1.0, -0.06), (0.29, 0.03, 0.03))),
        *colored("screen", *(cylinder(0.04, 0, 0.06, (x, z), 8) for x in (-0.2, 0.2) for z in (-0.08, 0.08))),
    ]


def globe(color: str) -> list[Part]:
    return [
        *colored("brown", cylinder(0.2, 0, 0.015), cylinder(0.03, 0.015, 0.6, segments=8)),
        *colored("brown", cylinder(0.31, 0.84, 0.88, segments=18)),
        *colored(color, sphere(0.29, 0.86, segments=18, rings=11)),
        *colored("brass", cylinder(0.02, 0.56, 1.2, segments=8)),
    ]


def statue(color: str) -> list[Part]:
    return [
        *colored(
            "gray",
            block((0, 0, 0), (0.5, 0.12, 0.5)),
            block((0, 0.12, 0), (0.36, 0.6, 0.36)),
            block((0, 0.72, 0), (0.46, 0.08, 0.46)),
        ),
        *colored(
            color,
            lathe(((0.2, 0.8), (0.22, 1.0), (0.08, 1.14), (0.07, 1.22)), segments=16),
            sphere(0.15, 1.34, segments=16, rings=9),
        ),
    ]


def mirror(color: str) -> list[Part]:
    return [
        *colored(color, *(block((x, 0.1, 0), (0.07, 1.5, 0.06)) for x in (-0.3, 0.3))),
        *colored(color, block((0, 0.1, 0), (0.6, 0.07, 0.06)), block((0, 1.53, 0), (0.67, 0.07, 0.06))),
        *colored(color, *(block((x, 0, 0), (0.07, 0.1, 0.36)) for x in (-0.3, 0.3))),
        *colored("glass", block((0, 0.17, 0), (0.53, 1.36, 0.02))),
    ]


def easel(color: str) -> list[Part]:
    return [
        *colored("pine", *(beam((x, 0.025, 0.2), (x / 4, 1.57, -0.05), 0.05) for x in (-0.34, 0.34))),
        *colored(
            "pine", beam((0, 0.025, -0.26), (0, 1.55, -0.07), 0.05), block((0, 0.62, 0.13), (0.7, 0.04, 0.1))
        ),
        *colored("white", block((0, 0.66, 0.12), (0.66, 0.62, 0.03))),
        *colored(color, block((0, 0.72, 0.136), (0.56, 0.5, 0.006))),
        *colored("white", shifted(lying(cylinder(0.11, 0, 0.006)), 0.08, 1.02, 0.139)),
    ]


def fan(color: str) -> list[Part]:
    ring = lying(cylinder(0.3, -0.03, 0.03, segments=20))
    blades = [prism(((-0.02, 0.0), (0.02, 0.0), (0.1, 0.26), (-0.1, 0.26)), 0.03, 0.05)]
    turned = [blades[0] @ _quarter(i) for i in range(4)]
    return [
        *colored(color, cylinder(0.2, 0, 0.018, segments=16), cylinder(0.025, 0.018, 1.0, segments=8)),
        *colored(color, shifted(ring, 0, 1.15, 0), block((0, 1.08, -0.12), (0.14, 0.14, 0.2))),
        *colored("white", *(shifted(blade, 0, 1.15, 0) for blade in turned)),
        *colored("black", shifted(lying(cylinder(0.06, 0.03, 0.08)), 0, 1.15, 0)),
    ]


def _quarter(turns: int) -> Triangles:
    """Rotation about z by a number of quarter turns, for row vectors."""
    cos, sin = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))[turns % 4]
    return np.array(((cos, sin, 0.0), (-sin, cos, 0.0), (0.0, 0.0, 1.0)))


def basket(color: str) -> list[Part]:
    hoop = [beam(a, b, 0.035) for a, b in pairwise(_HOOP)]
    return [
        *colored(color, lathe(((0.2, 0), (0.32, 0.26)), segments=16)),
        *colored("pine", lathe(((0.33, 0.24), (0.34, 0.3)), segments=16), *hoop),
        *colored("screen", cylinder(0.29, 0.3, 0.302, segments=16)),
    ]


_HOOP = (
    (-0.31, 0.28, 0.0),
    (-0.26, 0.52, 0.0),
    (-0.1, 0.66, 0.0),
    (0.1, 0.66, 0.0),
    (0.26, 0.52, 0.0),
    (0.31, 0.28, 0.0),
)


def birdcage(color: str) -> list[Part]:
    around = [(math.cos(math.pi * i / 6), math.sin(math.pi * i / 6)) for i in range(12)]
    bars = [block((0.22 * c, 0.72, 0.22 * s), (0.018, 0.5, 0.018)) for c, s in around]
    roof = [beam((0.22 * c, 1.22, 0.22 * s), (0.0, 1.44, 0.0), 0.018) for c, s in around[::2]]
    return [
        *colored(
            color, cylinder(0.18, 0, 0.018), cylinder(0.025, 0.018, 0.68, segments=8), cylinder(0.25, 0.68, 0.74)
        ),
        *colored(color, cylinder(0.235, 1.2, 1.235), *bars, *roof, sphere(0.045, 1.46, segments=8, rings=6)),
        *colored("yellow", sphere(0.08, 0.92, (0.0, 0.02), 10, 7), sphere(0.05, 1.02, (0.0, 0.07), 8, 6)),
        *colored("orange", lathe(((0.02, 1.0), (0.0, 1.04)), (0.0, 0.12), 6)),
    ]


def telescope(color: str) -> list[Part]:
    feet = ((-0.3, 0.025, 0.2), (0.3, 0.025, 0.2), (0.0, 0.025, -0.34))
    return [
        *colored("pine", *(beam(foot, (0, 0.95, 0), 0.045) for foot in feet)),
        *colored(color, beam((0, 0.82, -0.36), (0, 1.3, 0.3), 0.14)),
        *colored(
            "brass", beam((0, 1.27, 0.26), (0, 1.37, 0.4), 0.19), beam((0, 0.77, -0.42), (0, 0.82, -0.36), 0.09)
        ),
    ]


def hydrant(color: str) -> list[Part]:
    caps = [shifted(cylinder(0.09, -0.28, 0.28, segments=12)[:, :, (1, 0, 2)][:, ::-1], 0, 0.52, 0)]
    return [
        *colored(color, cylinder(0.22, 0, 0.08, segments=16), cylinder(0.15, 0.08, 0.66, segments=16)),
        *colored(color, lathe(((0.19, 0.66), (0.18, 0.74), (0.1, 0.86), (0.04, 0.9)), segments=16), *caps),
        *colored(
            "steel",
            shifted(lying(cylinder(0.08, 0.1, 0.2, segments=12)), 0, 0.52, 0),
            cylinder(0.04, 0.9, 0.95, segments=6),
        ),
    ]


def mailbox(color: str) -> list[Part]:
    arch = [(0.16 * math.cos(math.pi * i / 8), 1.06 + 0.16 * math.sin(math.pi * i / 8)) for i in range(9)]
    return [
        *colored("pine", block((0, 0, 0), (0.1, 0.86, 0.1)), block((0, 0, 0), (0.3, 0.04, 0.3))),
        *colored(color, prism(((-0.16, 0.86), (0.16, 0.86), *arch), -0.25, 0.25)),
        *colored("white", block((0, 1.0, 0.25), (0.2, 0.03, 0.01))),
        *colored(
            "screen", block((0.185, 1.0, -0.02), (0.03, 0.32, 0.05)), block((0.185, 1.22, 0.06), (0.03, 0.1, 0.16))
        ),
    ]


def ladder(color: str) -> list[Part]:
    return [
        *colored(color, *(beam((x, 0.025, 0.3), (0.75 * x, 1.5, 0.02), 0.06) for x in (-0.26, 0.26))),
        *colored("steel", *(beam((x, 0.025, -0.3), (0.75 * x, 1.48, -0.02), 0.045) for x in (-0.26, 0.26))),
        *colored(
            color, *(block((0, y, 0.3 - 0.187 * y), (0.5 - 0.08 * y, 0.04, 0.1)) for y in (0.28, 0.58, 0.88, 1.18))
        ),
        *colored(color, block((0, 1.48, 0), (0.46, 0.05, 0.16))),
    ]


def chair(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0.44, 0), (0.46, 0.06, 0.46)), *legs(0.46, 0.46, 0.44, 0.05)),
        *colored(color, *(block((x, 0.5, -0.205), (0.05, 0.55, 0.05)) for x in (-0.205, 0.205))),
        *colored(color, *(block((0, y, -0.205), (0.36, 0.09, 0.04)) for y in (0.66, 0.82, 0.97))),
    ]


def cactus(color: str) -> list[Part]:
    def arm(x: float, y: float, top: float) -> list[Triangles]:
        return [
            cylinder(0.06, y, top, (x, 0), 10),
            sphere(0.06, top, (x, 0), 10, 6),
            beam((0, y + 0.04, 0), (x, y + 0.04, 0), 0.1),
        ]

    return [
        *colored(color, lathe(((0.17, 0), (0.23, 0.3)), segments=14)),
        *colored("leaf", cylinder(0.11, 0.3, 1.15, segments=12), sphere(0.11, 1.15, segments=12, rings=8)),
        *colored("leaf", *arm(-0.23, 0.6, 0.95), *arm(0.23, 0.72, 1.05)),
    ]


def trophy(color: str) -> list[Part]:
    ears = [beam(a, b, 0.04) for s in (-1, 1) for a, b in pairwise([(s * x, y, 0.0) for x, y in _EAR])]
    return [
        *colored("black", block((0, 0, 0), (0.4, 0.3, 0.4))),
        *colored(
            color, lathe(((0.12, 0.3), (0.04, 0.4), (0.04, 0.52), (0.18, 0.66), (0.24, 0.98)), segments=16), *ears
        ),
        *colored("screen", cylinder(0.2, 0.98, 0.982, segments=16)),
        *colored("cream", block((0, 0.09, 0.2), (0.24, 0.12, 0.01))),
    ]


_EAR = ((0.18, 0.68), (0.3, 0.72), (0.33, 0.84), (0.23, 0.92))
