"""Toys and other playful landmark objects as colored solids, each with an outline of its own.

Builders work as in furniture_shapes.py.
"""

from __future__ import annotations

from envs.houses.shapes.meshes import (
    Part,
    Triangles,
    beam,
    block,
    colored,
    cylinder,
    lathe,
    lying,
    place,
    prism,
    quads,
    shifted,
    sphere,
    stretched,
)


def ball(color: str) -> list[Part]:
    return colored(color, sphere(0.28, 0.28, segments=18, rings=11))


def drum(color: str) -> list[Part]:
    return [
        *colored(color, cylinder(0.3, 0.1, 0.6, segments=18)),
        *colored("brass", cylinder(0.31, 0.1, 0.16, segments=18), cylinder(0.31, 0.54, 0.6, segments=18)),
        *colored("cream", cylinder(0.28, 0.6, 0.61, segments=18)),
        *colored(
            "cream",
            *(beam((0.305 * x, 0.16, 0.305 * z), (0.305 * u, 0.54, 0.305 * w), 0.03) for x, z, u, w in _ZIGZAG),
        ),
        *colored("screen", *(block((x, 0, z), (0.05, 0.1, 0.05)) for x in (-0.18, 0.18) for z in (-0.18, 0.18))),
    ]


_ZIGZAG = (
    (1.0, 0.0, 0.7, 0.7),
    (0.0, 1.0, 0.7, 0.7),
    (0.0, 1.0, -0.7, 0.7),
    (-1.0, 0.0, -0.7, 0.7),
    (-1.0, 0.0, -0.7, -0.7),
    (0.0, -1.0, -0.7, -0.7),
    (0.0, -1.0, 0.7, -0.7),
    (1.0, 0.0, 0.7, -0.7),
)


def guitar(color: str) -> list[Part]:
    body = [lying(cylinder(r, -0.05, 0.05, segments=18)) for r in (0.24, 0.18)]
    hole = lying(cylinder(0.07, 0, 0.012, segments=14))
    return [
        *colored(color, shifted(body[0], 0, 0.34, 0), shifted(body[1], 0, 0.66, 0)),
        *colored("screen", shifted(hole, 0, 0.55, 0.05), block((0, 0.26, 0.055), (0.16, 0.03, 0.02))),
        *colored("brown", block((0, 0.6, 0.03), (0.06, 0.72, 0.05)), block((0, 1.3, 0.02), (0.1, 0.16, 0.04))),
        *colored("steel", *(beam((x, 0.02, -0.16), (0, 0.5, -0.06), 0.03) for x in (-0.18, 0.18))),
        *colored("steel", *(block((x, 0, 0.02), (0.03, 0.14, 0.26)) for x in (-0.12, 0.12))),
    ]


def teddy_bear(color: str) -> list[Part]:
    limbs = [
        shifted(stretched(sphere(0.1, 0, segments=10, rings=6), 1.0, 1.0, 1.7), x, 0.1, 0.17)
        for x in (-0.15, 0.15)
    ]
    arms = [sphere(0.09, 0.42, (x, 0.1), 10, 6) for x in (-0.24, 0.24)]
    ears = [sphere(0.075, 0.86, (x, 0.0), 8, 5) for x in (-0.15, 0.15)]
    return [
        *colored(color, stretched(sphere(0.23, 0.26, segments=12, rings=8), 1.0, 1.15, 0.9), *limbs, *arms, *ears),
        *colored(color, sphere(0.2, 0.7, segments=12, rings=8)),
        *colored(
            "cream",
            sphere(0.09, 0.66, (0, 0.15), 10, 6),
            *(sphere(0.07, 0.1, (x, 0.32), 8, 5) for x in (-0.15, 0.15)),
        ),
        *colored(
            "screen",
            sphere(0.03, 0.69, (0, 0.235), 6, 4),
            *(sphere(0.025, 0.76, (x, 0.18), 6, 4) for x in (-0.07, 0.07)),
        ),
    ]


def pyramid(color: str) -> list[Part]:
    def tier(half: float, y: float, top: float, y1: float) -> Triangles:
        low = [(-half, y, -half), (half, y, -half), (half, y, half), (-half, y, half)]
        high = [(-top, y1, -top), (top, y1, -top), (top, y1, top), (-top, y1, top)]
        sides = [(low[(i + 1) % 4], low[i], high[i], high[(i + 1) % 4]) for i in range(4)]
        return quads([*sides, low, high[::-1]])

    return [
        *colored(color, tier(0.36, 0.0, 0.225, 0.3), tier(0.16, 0.45, 0.002, 0.8)),
        *colored("cream", tier(0.225, 0.3, 0.16, 0.45)),
    ]


def tent(color: str) -> list[Part]:
    return [
        *colored(color, prism(((-0.5, 0), (0.5, 0), (0.02, 0.9), (-0.02, 0.9)), -0.4, 0.4)),
        *colored("screen", prism(((-0.2, 0), (0.2, 0), (0, 0.62)), 0.4, 0.405)),
        *colored("cream", beam((0, 0.86, -0.42), (0, 0.86, 0.42), 0.07)),
    ]


def robot(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0.3, 0), (0.42, 0.42, 0.28)), block((0, 0.78, 0), (0.3, 0.26, 0.26))),
        *colored(
            "steel",
            *(block((x, 0, 0), (0.12, 0.3, 0.2)) for x in (-0.12, 0.12)),
            block((0, 0.72, 0), (0.12, 0.06, 0.12)),
        ),
        *colored(
            "steel",
            *(block((x, 0.34, 0.02), (0.09, 0.36, 0.12)) for x in (-0.26, 0.26)),
            block((0, 1.04, 0), (0.02, 0.14, 0.02)),
        ),
        *colored("yellow", *(block((x, 0.9, 0.131), (0.07, 0.06, 0.01)) for x in (-0.07, 0.07))),
        *colored(
            "screen", block((0, 0.82, 0.131), (0.16, 0.03, 0.01)), block((0, 0.48, 0.141), (0.24, 0.14, 0.01))
        ),
        *colored("red", sphere(0.04, 1.2, segments=8, rings=6)),
    ]


def rocket(color: str) -> list[Part]:
    fin = ((0.1, 0.0), (0.3, 0.0), (0.3, 0.12), (0.12, 0.42))
    left = tuple((-x, y) for x, y in fin[::-1])
    crossed = [prism(outline, -0.02, 0.02) for outline in (fin, left)]
    return [
        *colored("white", lathe(((0.13, 0.12), (0.17, 0.4), (0.16, 0.85)), segments=16)),
        *colored(color, lathe(((0.16, 0.85), (0.1, 1.1), (0.01, 1.3)), segments=16), *crossed),
        *colored(color, *(place(solid, (1, 0), 0.0, 0.0) for solid in crossed)),
        *colored("display", shifted(lying(cylinder(0.06, 0.13, 0.18)), 0, 0.66, 0)),
    ]


def duck(color: str) -> list[Part]:
    return [
        *colored(color, shifted(stretched(sphere(0.27, 0, segments=16, rings=10), 0.9, 0.8, 1.2), 0, 0.22, 0)),
        *colored(
            color,
            sphere(0.17, 0.56, (0, 0.14), 14, 9),
            prism(((-0.1, 0.28), (0.1, 0.28), (0.0, 0.5)), -0.36, -0.26),
        ),
        *colored("orange" if color != "orange" else "yellow", block((0, 0.5, 0.32), (0.13, 0.05, 0.14))),
        *colored("screen", *(sphere(0.03, 0.62, (x, 0.26), 8, 6) for x in (-0.09, 0.09))),
    ]


def hourglass(color: str) -> list[Part]:
    posts = [cylinder(0.02, 0.06, 0.94, (x, z), 6) for x in (-0.2, 0.2) for z in (-0.2, 0.2)]
    return [
        *colored("brown", block((0, 0, 0), (0.52, 0.06, 0.52)), block((0, 0.94, 0), (0.52, 0.06, 0.52)), *posts),
        *colored(color, lathe(((0.2, 0.06), (0.2, 0.24), (0.03, 0.5), (0.2, 0.76), (0.2, 0.94)), segments=16)),
    ]


def mushroom(color: str) -> list[Part]:
    dots = ((0.0, 0.69, 0.0), (0.22, 0.59, 0.1), (-0.2, 0.6, 0.12), (0.05, 0.59, -0.24), (0.02, 0.56, 0.28))
    return [
        *colored("cream", lathe(((0.16, 0), (0.11, 0.2), (0.12, 0.42)), segments=14)),
        *colored(color, lathe(((0.36, 0.4), (0.33, 0.54), (0.2, 0.66), (0.05, 0.7)), segments=18)),
        *colored("white", *(sphere(0.055, y, (x, z), 8, 6) for x, y, z in dots)),
    ]


def umbrella(color: str) -> list[Part]:
    return [
        *colored("gray", lathe(((0.22, 0), (0.18, 0.1)), segments=14)),
        *colored("pine", cylinder(0.025, 0.1, 1.45, segments=8)),
        *colored(color, lathe(((0.44, 1.22), (0.3, 1.42), (0.02, 1.56)), segments=8)),
        *colored("white", sphere(0.035, 1.57, segments=8, rings=6)),
    ]
