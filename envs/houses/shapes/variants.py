"""Further makes of the furniture of rooms. Builders work as in furniture.py."""

from __future__ import annotations

from envs.houses.shapes.furniture import legs
from envs.houses.shapes.meshes import Part, Triangles, beam, block, colored, cylinder, lathe, shifted


def _turned_legs(width: float, depth: float, height: float, radius: float = 0.03) -> list[Triangles]:
    x, z = width / 2 - 0.06, depth / 2 - 0.06
    return [
        lathe(((radius * 0.6, 0.0), (radius, height)), (sx * x, sz * z), 8) for sx in (-1, 1) for sz in (-1, 1)
    ]


def _bed(color: str, width: float, ends: tuple[float, float]) -> list[Part]:
    """With boards of two heights at head and foot. The cushion breaks the surface: nobody walks on a bed."""
    roll = block((0, 0.48, 0.1), (width - 0.1, 0.36, 0.34))
    pillow = block((0, 0.44, -0.74), (min(width - 0.3, 0.7), 0.13, 0.34))
    boards = [block((0, 0, z), (width, high, 0.06)) for z, high in ((-0.97, ends[0]), (0.97, ends[1]))]
    return [
        *colored("pine", block((0, 0.1, 0), (width, 0.2, 1.9)), *boards, *legs(width, 1.9, 0.1, 0.08)),
        *colored("white", block((0, 0.3, 0), (width - 0.06, 0.14, 1.88)), pillow),
        *colored(color, block((0, 0.3, 0.25), (width, 0.18, 1.36)), roll),
    ]


def single_bed(color: str) -> list[Part]:
    return _bed(color, 1.0, (0.9, 0.55))


def low_bed(color: str) -> list[Part]:
    return _bed(color, 1.5, (0.88, 0.4))


def round_nightstand(color: str) -> list[Part]:
    return [
        *colored(color, cylinder(0.2, 0.46, 0.5, segments=16), cylinder(0.17, 0.16, 0.19, segments=16)),
        *colored("steel", *_turned_legs(0.36, 0.36, 0.46, 0.018)),
    ]


def open_wardrobe(color: str) -> list[Part]:
    return [
        *colored(color, *(block((x, 0, 0), (0.05, 1.85, 0.55)) for x in (-0.5, 0.0, 0.5))),
        *colored(color, *(block((0, y, 0), (1.05, 0.05, 0.55)) for y in (0.0, 0.55, 1.8))),
        *colored(color, block((0, 0, -0.26), (1.05, 1.85, 0.03))),
        *colored("cream", *(block((0.25, 0.12 + 0.44 * i, 0.02), (0.4, 0.3, 0.4)) for i in range(4))),
        *colored("steel", beam((-0.48, 1.7, 0), (-0.02, 1.7, 0), 0.03)),
        *colored("gray", *(block((-0.4 + 0.1 * i, 0.9, 0), (0.04, 0.76, 0.4)) for i in range(4))),
    ]


def _legged_seat(color: str, width: float) -> list[Part]:
    arms = [block((sx * (width / 2 - 0.05), 0.24, 0.02), (0.1, 0.36, 0.74)) for sx in (-1, 1)]
    back = block((0, 0.24, -0.34), (width, 0.52, 0.16))
    return [
        *colored(color, block((0, 0.24, 0.04), (width - 0.1, 0.18, 0.74)), back, *arms),
        *colored("pine", *_turned_legs(width - 0.1, 0.74, 0.24)),
    ]


def legged_sofa(color: str) -> list[Part]:
    return _legged_seat(color, 1.8)


def small_sofa(color: str) -> list[Part]:
    cushions = [block((x, 0.42, 0.06), (0.6, 0.12, 0.6)) for x in (-0.31, 0.31)]
    arms = [shifted(cylinder(0.13, 0.06, 0.62, segments=10), x, 0.0, 0.1) for x in (-0.66, 0.66)]
    return [
        *colored(color, block((0, 0.0, 0.04), (1.5, 0.42, 0.74)), block((0, 0.0, -0.33), (1.5, 0.82, 0.16))),
        *colored(color, *cushions, *arms),
    ]


def legged_armchair(color: str) -> list[Part]:
    return _legged_seat(color, 0.8)


def tub_chair(color: str) -> list[Part]:
    shell = [block((sx * 0.34, 0.1, 0.0), (0.12, 0.5, 0.62)) for sx in (-1, 1)]
    return [
        *colored(color, cylinder(0.36, 0.1, 0.4, segments=16), block((0, 0.1, -0.32), (0.76, 0.66, 0.12)), *shell),
        *colored("steel", cylinder(0.3, 0.0, 0.019, segments=16), cylinder(0.05, 0.0, 0.12, segments=8)),
    ]


def round_table(color: str) -> list[Part]:
    return [
        *colored(color, cylinder(0.3, 0.4, 0.44, segments=18)),
        *colored("steel", *_turned_legs(0.46, 0.46, 0.4, 0.02)),
    ]


def box_table(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0.36, 0), (0.9, 0.06, 0.5)), block((0, 0.08, 0), (0.9, 0.04, 0.5))),
        *colored(color, *(block((x, 0, 0), (0.05, 0.4, 0.5)) for x in (-0.42, 0.42))),
        *colored("cream", block((0.15, 0.12, 0), (0.3, 0.06, 0.24))),
    ]


def tv_on_legs(color: str) -> list[Part]:
    return [
        *colored(
            "steel", *(beam((x, 0.0, 0.14 * s), (0.0, 0.5, 0.0), 0.04) for x in (-0.3, 0.3) for s in (-1, 1))
        ),
        *colored(color, block((0, 0.5, 0), (1.1, 0.66, 0.06))),
        *colored("display", block((0, 0.54, 0.031), (1.02, 0.58, 0.01))),
    ]


def narrow_bookshelf(color: str) -> list[Part]:
    parts = colored(
        color,
        block((0, 0, -0.14), (0.8, 1.7, 0.03)),
        *(block((x, 0, 0), (0.04, 1.7, 0.3)) for x in (-0.38, 0.38)),
        *(block((0, y, 0), (0.8, 0.04, 0.3)) for y in (0.0, 0.42, 0.84, 1.26, 1.66)),
    )
    for shelf, y in enumerate((0.04, 0.46, 0.88, 1.3)):
        for i in range(5 - shelf % 2):
            tint = ("cream", "gray", "terracotta", "steel")[(i + 3 * shelf) % 4]
            parts += colored(tint, block((-0.3 + 0.09 * i, y, 0.0), (0.07, 0.22 + 0.02 * (i % 3), 0.2)))
    return parts


def round_dining_table(color: str) -> list[Part]:
    parts = colored(color, cylinder(0.5, 0.7, 0.75, segments=20), cylinder(0.06, 0.02, 0.7, segments=10))
    parts += colored(color, cylinder(0.26, 0.0, 0.019, segments=16))
    for x, z in ((0.56, 0.0), (-0.56, 0.0), (0.0, 0.56), (0.0, -0.56)):
        parts += colored("pine", cylinder(0.17, 0.42, 0.46, (x, z), 12))
        parts += colored("steel", cylinder(0.025, 0.0, 0.42, (x, z), 8))
    return [*parts, *colored("white", cylinder(0.1, 0.75, 0.86, segments=12))]


def trestle_desk(color: str) -> list[Part]:
    trestles = [beam((x, 0.0, z), (x, 0.7, -0.3), 0.05) for x in (-0.5, 0.5) for z in (-0.52, -0.08)]
    return [
        *colored(color, block((0, 0.7, -0.3), (1.2, 0.04, 0.6))),
        *colored("pine", *trestles),
        *colored(
            "gray", block((-0.1, 0.74, -0.3), (0.36, 0.02, 0.25)), block((-0.1, 0.74, -0.42), (0.36, 0.24, 0.02))
        ),
        *colored(
            "brass", cylinder(0.07, 0.74, 0.76, (0.45, -0.4), 10), cylinder(0.012, 0.76, 1.1, (0.45, -0.4), 6)
        ),
        *colored("cream", lathe(((0.11, 1.02), (0.05, 1.16)), (0.45, -0.4), 12)),
        *colored(
            "black", cylinder(0.2, 0.4, 0.45, (-0.1, 0.32), 14), block((-0.1, 0.45, 0.5), (0.36, 0.42, 0.04))
        ),
        *colored("steel", cylinder(0.03, 0.02, 0.4, (-0.1, 0.32), 8), cylinder(0.2, 0.0, 0.019, (-0.1, 0.32), 12)),
    ]


def tall_fridge(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0.05, 0), (0.7, 1.75, 0.66))),
        *colored("screen", block((0, 0, 0), (0.66, 0.05, 0.6)), block((0, 0.62, 0.325), (0.7, 0.02, 0.02))),
        *colored(
            "steel", block((0.27, 0.72, 0.35), (0.03, 0.8, 0.03)), block((0.27, 0.2, 0.35), (0.03, 0.36, 0.03))
        ),
        *colored("display", block((-0.12, 1.2, 0.332), (0.18, 0.26, 0.01))),
    ]


def backed_bench(color: str) -> list[Part]:
    rails = [block((0, y, -0.18), (1.1, 0.09, 0.03)) for y in (0.56, 0.72)]
    return [
        *colored(color, block((0, 0.4, 0), (1.1, 0.06, 0.38)), *rails),
        *colored(
            "pine", *legs(1.1, 0.4, 0.4, 0.06), *(block((x, 0.4, -0.18), (0.05, 0.44, 0.04)) for x in (-0.5, 0.5))
        ),
    ]


def round_rug(color: str) -> list[Part]:
    return [
        *colored(color, cylinder(0.85, 0.0, 0.012, segments=24)),
        *colored("cream", cylinder(0.7, 0.012, 0.014, segments=24)),
        *colored(color, cylinder(0.56, 0.014, 0.016, segments=24)),
    ]


def runner(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (2.2, 0.012, 0.9))),
        *colored("cream", *(block((x, 0.012, 0), (0.12, 0.002, 0.9)) for x in (-0.95, -0.6, 0.6, 0.95))),
    ]


def pillar_clock(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (0.4, 0.12, 0.3)), block((0, 0.12, 0), (0.3, 1.7, 0.24))),
        *colored("brass", block((0, 1.4, 0.12), (0.26, 0.26, 0.012)), block((0, 0.5, 0.12), (0.06, 0.6, 0.02))),
        *colored("white", block((0, 1.43, 0.13), (0.2, 0.2, 0.01))),
        *colored(
            "screen", block((0, 1.53, 0.14), (0.012, 0.08, 0.008)), block((0.03, 1.53, 0.14), (0.07, 0.012, 0.008))
        ),
    ]


def banded_chest(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0.04, 0), (0.8, 0.44, 0.46))),
        *colored("brass", *(block((x, 0.03, 0), (0.06, 0.46, 0.48)) for x in (-0.28, 0.28))),
        *colored("brown", block((0, 0.0, 0), (0.7, 0.04, 0.4))),
    ]


def bare_counter(color: str) -> list[Part]:
    shelf = block((0, 1.5, -0.2), (1.5, 0.04, 0.2))
    jars = [cylinder(0.05, 1.54, 1.7, (-0.6 + 0.2 * i, -0.2), 10) for i in range(4)]
    return [
        *colored(color, block((0, 0.08, -0.02), (1.5, 0.78, 0.56))),
        *colored("pine", block((0, 0.86, 0), (1.54, 0.05, 0.6)), shelf),
        *colored("screen", block((0, 0.0, -0.04), (1.44, 0.08, 0.5))),
        *colored(
            "steel", block((-0.35, 0.905, 0), (0.44, 0.012, 0.36)), cylinder(0.02, 0.9, 1.15, (-0.35, -0.24), 8)
        ),
        *colored("brass", *(block((x, 0.7, 0.265), (0.16, 0.02, 0.02)) for x in (-0.5, 0.0, 0.5))),
        *colored("terracotta", *jars),
    ]
