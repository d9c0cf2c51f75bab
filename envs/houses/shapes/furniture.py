"""Furniture of rooms as colored solids.

A builder gets the main color and returns parts in a local frame: origin at the middle of the footprint on the
floor, +z to the front (away from the wall it stands against), meters. Plates on the floor stay below 2 cm: a
navigation mesh with height steps of 0.2 m would make a step of anything higher.
"""

from __future__ import annotations

from envs.houses.shapes.meshes import Part, Triangles, beam, block, colored, cylinder, lathe, lying, shifted


def legs(width: float, depth: float, height: float, thick: float = 0.06) -> list[Triangles]:
    x, z = width / 2 - thick, depth / 2 - thick
    return [block((sx * x, 0, sz * z), (thick, height, thick)) for sx in (-1, 1) for sz in (-1, 1)]


def bed(color: str) -> list[Part]:
    # The roll is more than two height steps above the rest: without it the bed would be an island to walk on.
    roll = shifted(_wheel(0.19, 1.5), 0.0, 0.67, 0.08)
    return [
        *colored("pine", block((0, 0, 0), (1.6, 0.3, 2.0)), block((0, 0, -0.97), (1.6, 1.0, 0.06))),
        *colored("white", block((0, 0.3, 0), (1.54, 0.14, 1.94))),
        *colored(color, block((0, 0.3, 0.27), (1.6, 0.2, 1.44)), roll),
        *colored("white", *(block((x, 0.44, -0.72), (0.6, 0.13, 0.36)) for x in (-0.37, 0.37))),
    ]


def nightstand(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (0.45, 0.5, 0.4))),
        *colored("black", block((0, 0.34, 0.2), (0.16, 0.03, 0.03))),
    ]


def wardrobe(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (1.3, 2.0, 0.58))),
        *colored("black", block((0, 0.06, 0.285), (0.02, 1.9, 0.02))),
        *colored("steel", *(block((x, 0.95, 0.3), (0.03, 0.24, 0.04)) for x in (-0.08, 0.08))),
    ]


def _seat(color: str, width: float) -> list[Part]:
    inner = width - 0.36
    cushions = max(1, round(inner / 0.75))
    step = inner / cushions
    return [
        *colored(color, block((0, 0.08, 0), (width, 0.26, 0.85)), block((0, 0.34, -0.32), (width, 0.48, 0.2))),
        *colored(color, *(block((x * (width - 0.18) / 2, 0.34, 0), (0.18, 0.26, 0.85)) for x in (-1, 1))),
        *colored(
            color,
            *(
                block((-inner / 2 + step * (i + 0.5), 0.34, 0.1), (step - 0.04, 0.1, 0.62))
                for i in range(cushions)
            ),
        ),
        *colored("black", *legs(width, 0.85, 0.08)),
    ]


def coffee_table(color: str) -> list[Part]:
    return colored(color, block((0, 0.38, 0), (1.0, 0.06, 0.6)), *legs(1.0, 0.6, 0.38))


def tv(color: str) -> list[Part]:
    return [
        *colored("pine", block((0, 0, 0), (1.5, 0.45, 0.4))),
        *colored("steel", block((0, 0.45, 0), (0.4, 0.08, 0.2))),
        *colored(color, block((0, 0.53, 0), (1.25, 0.72, 0.07))),
        *colored("display", block((0, 0.58, 0.036), (1.15, 0.62, 0.01))),
    ]


def bookshelf(color: str) -> list[Part]:
    width, depth, height = 1.2, 0.35, 1.9
    parts = colored(
        color,
        block((0, 0, -depth / 2 + 0.02), (width, height, 0.04)),
        *(block((x * (width - 0.04) / 2, 0, 0), (0.04, height, depth)) for x in (-1, 1)),
        *(block((0, y, 0), (width, 0.04, depth)) for y in (0.0, 0.46, 0.92, 1.38, 1.86)),
    )
    spines = ("red", "blue", "green", "yellow", "purple", "orange", "cream")
    for shelf, y in enumerate((0.04, 0.5, 0.96, 1.42)):
        for i in range(11):
            tall = 0.26 + 0.03 * ((i * 5 + shelf * 3) % 4)
            x = -0.52 + 0.1 * i
            parts += colored(spines[(i * 3 + shelf * 2) % len(spines)], block((x, y, 0.0), (0.085, tall, 0.24)))
    return parts


def _chair_at(color: str, x: float, z: float, back: tuple[int, int]) -> list[Part]:
    bx, bz = x + 0.19 * back[0], z + 0.19 * back[1]
    size = (0.04 if back[0] else 0.42, 0.5, 0.04 if back[1] else 0.42)
    legs = [block((x + sx * 0.18, 0, z + sz * 0.18), (0.04, 0.36, 0.04)) for sx in (-1, 1) for sz in (-1, 1)]
    return colored(color, block((x, 0.36, z), (0.42, 0.05, 0.42)), block((bx, 0.41, bz), size), *legs)


def dining_table(color: str) -> list[Part]:
    parts = colored(color, block((0, 0.7, 0), (1.4, 0.06, 0.84)), *legs(1.4, 0.84, 0.7, 0.08))
    for x in (-0.4, 0.4):
        parts += _chair_at("pine", x, 0.58, (0, 1)) + _chair_at("pine", x, -0.58, (0, -1))
    return [*parts, *colored("white", *(cylinder(0.13, 0.76, 0.78, (x, 0.0)) for x in (-0.4, 0.4)))]


def desk(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0.7, -0.3), (1.4, 0.05, 0.65)), block((0.5, 0, -0.3), (0.36, 0.7, 0.6))),
        *colored(color, *(block((-0.66, 0, z), (0.06, 0.7, 0.06)) for z in (-0.58, -0.03))),
        *colored("black", block((0, 0.75, -0.45), (0.2, 0.1, 0.12)), block((0, 0.84, -0.42), (0.62, 0.4, 0.05))),
        *colored("display", block((0, 0.87, -0.392), (0.56, 0.34, 0.006))),
        *colored("gray", block((0, 0.75, -0.15), (0.45, 0.02, 0.16))),
        *_chair_at("black", -0.1, 0.3, (0, 1)),
    ]


def fridge(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (0.75, 1.85, 0.68))),
        *colored("black", block((0, 1.2, 0.335), (0.75, 0.015, 0.02))),
        *colored("steel", *(block((-0.3, y, 0.36), (0.04, h, 0.04)) for y, h in ((0.65, 0.45), (1.3, 0.35)))),
    ]


def counter(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (1.8, 0.86, 0.6))),
        *colored("gray", block((0, 0.86, 0), (1.84, 0.05, 0.62))),
        *colored("steel", block((0.4, 0.905, 0), (0.5, 0.012, 0.4)), cylinder(0.02, 0.9, 1.15, (0.4, -0.24), 8)),
        *colored("steel", block((0.4, 1.13, -0.16), (0.03, 0.03, 0.18))),
        *colored("black", *(block((x, 0.08, 0.3), (0.012, 0.74, 0.012)) for x in (-0.45, 0.0, 0.45))),
        *colored(color, block((0, 1.5, -0.13), (1.8, 0.65, 0.34))),
        *colored("black", *(block((x, 1.52, 0.04), (0.012, 0.6, 0.012)) for x in (-0.45, 0.0, 0.45))),
    ]


def stove(color: str) -> list[Part]:
    rings = [cylinder(0.09, 0.9, 0.915, (x, z)) for x in (-0.15, 0.15) for z in (-0.13, 0.15)]
    return [
        *colored(color, block((0, 0, 0), (0.62, 0.9, 0.6)), block((0, 0.9, -0.28), (0.62, 0.14, 0.04))),
        *colored("screen", block((0, 0.2, 0.302), (0.46, 0.38, 0.012)), *rings),
        *colored("steel", block((0, 0.66, 0.32), (0.46, 0.03, 0.04))),
        *colored("steel", block((0, 1.6, -0.1), (0.6, 0.12, 0.4)), block((0, 1.72, -0.18), (0.26, 0.8, 0.24))),
    ]


def toilet(color: str) -> list[Part]:
    bowl = lathe(((0.12, 0), (0.13, 0.18), (0.2, 0.36), (0.21, 0.42)), (0, 0.1), 16)
    return [
        *colored(color, block((0, 0.3, -0.24), (0.42, 0.5, 0.2)), bowl),
        *colored("gray", cylinder(0.15, 0.42, 0.425, (0, 0.1), 16)),
        *colored("steel", block((0.12, 0.68, -0.13), (0.08, 0.03, 0.03))),
    ]


def bathtub(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (1.7, 0.3, 0.75))),
        *colored(color, *(block((0, 0.3, z), (1.7, 0.26, 0.09)) for z in (-0.33, 0.33))),
        *colored(color, *(block((x, 0.3, 0), (0.1, 0.26, 0.75)) for x in (-0.8, 0.8))),
        *colored("glass", block((0, 0.3, 0), (1.5, 0.14, 0.57))),
        *colored("steel", cylinder(0.02, 0.56, 0.8, (-0.8, 0), 8), block((-0.72, 0.78, 0), (0.18, 0.03, 0.03))),
    ]


def sink(color: str) -> list[Part]:
    return [
        *colored("pine", block((0, 0, 0), (0.8, 0.74, 0.48))),
        *colored(color, block((0, 0.74, 0), (0.84, 0.12, 0.5))),
        *colored("gray", block((0, 0.855, 0.03), (0.5, 0.01, 0.3))),
        *colored("steel", cylinder(0.018, 0.86, 1.02, (0, -0.17), 8), block((0, 1.0, -0.1), (0.03, 0.03, 0.16))),
        *colored("glass", block((0, 1.2, -0.235), (0.7, 0.8, 0.02))),
        *colored("trim", block((0, 1.16, -0.242), (0.78, 0.88, 0.012))),
    ]


def washing_machine(color: str) -> list[Part]:
    drum = shifted(lying(cylinder(0.2, 0, 0.03, segments=18)), 0.0, 0.45, 0.3)
    glass = shifted(lying(cylinder(0.15, 0, 0.02, segments=18)), 0.0, 0.45, 0.325)
    return [
        *colored(color, block((0, 0, 0), (0.62, 0.88, 0.6))),
        *colored("steel", drum),
        *colored("screen", glass, block((0.1, 0.76, 0.302), (0.3, 0.07, 0.01))),
    ]


def piano(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, -0.15), (1.5, 1.2, 0.3)), block((0, 0.6, 0.12), (1.5, 0.1, 0.36))),
        *colored(color, *(block((x, 0, 0.24), (0.08, 0.6, 0.08)) for x in (-0.7, 0.7))),
        *colored("white", block((0, 0.7, 0.14), (1.36, 0.02, 0.24))),
        *colored("screen", *(block((-0.6 + 0.1 * i, 0.72, 0.08), (0.04, 0.015, 0.13)) for i in range(13))),
        *colored("brown", block((0, 0.4, 0.7), (0.7, 0.07, 0.32)), *_legs_at(0, 0.7, 0.6, 0.26, 0.4)),
    ]


def _legs_at(x: float, z: float, width: float, depth: float, height: float) -> list[Triangles]:
    return [shifted(leg, x, 0.0, z) for leg in legs(width, depth, height)]


def fireplace(color: str) -> list[Part]:
    logs = [block((x, 0.06, 0.05), (0.12, 0.1, 0.4)) for x in (-0.2, 0.0, 0.2)]
    flames = [lathe(((0.09, 0.16), (0.11, 0.24), (0.0, 0.5)), (x, 0.06), 8) for x in (-0.16, 0.0, 0.16)]
    return [
        *colored(color, *(block((x, 0, 0), (0.3, 1.05, 0.45)) for x in (-0.6, 0.6))),
        *colored(color, block((0, 0.75, 0), (0.9, 0.3, 0.45)), block((0, 1.15, -0.1), (0.9, 1.4, 0.25))),
        *colored("pine", block((0, 1.05, 0.02), (1.6, 0.1, 0.5))),
        *colored("screen", block((0, 0, -0.18), (0.9, 0.75, 0.08)), block((0, 0, 0.02), (0.9, 0.016, 0.4))),
        *colored("brown", *logs),
        *colored("flame", *flames),
    ]


def bench(color: str) -> list[Part]:
    return colored(color, block((0, 0.4, 0), (1.2, 0.08, 0.36)), *legs(1.2, 0.36, 0.4, 0.07))


def clock(color: str) -> list[Part]:
    face = shifted(lying(cylinder(0.16, 0, 0.02, segments=18)), 0.0, 1.65, 0.16)
    return [
        *colored(color, block((0, 0, 0), (0.5, 0.4, 0.34)), block((0, 0.4, 0), (0.4, 0.95, 0.28))),
        *colored(color, block((0, 1.35, 0), (0.5, 0.55, 0.32)), block((0, 1.9, 0), (0.36, 0.08, 0.28))),
        *colored("white", face),
        *colored(
            "screen", block((0, 1.65, 0.18), (0.015, 0.12, 0.01)), block((0.04, 1.645, 0.18), (0.1, 0.015, 0.01))
        ),
        *colored("cream", block((0, 0.55, 0.14), (0.2, 0.65, 0.01))),
    ]


def rug(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (2.2, 0.012, 1.5))),
        *colored("cream", block((0, 0.012, 0), (1.9, 0.002, 1.2))),
        *colored(color, block((0, 0.014, 0), (1.7, 0.002, 1.0))),
    ]


def armchair(color: str) -> list[Part]:
    return _seat(color, 0.95)


def sofa(color: str) -> list[Part]:
    return _seat(color, 2.0)


def chest(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (0.9, 0.45, 0.5))),
        *colored("pine", block((0, 0.45, 0), (0.94, 0.12, 0.54))),
        *colored("steel", block((0, 0.36, 0.255), (0.12, 0.16, 0.03))),
    ]


def treadmill(color: str) -> list[Part]:
    return [
        *colored(color, block((0, 0, 0), (0.75, 0.14, 1.6)), block((0, 0.14, -0.66), (0.75, 0.12, 0.28))),
        *colored("screen", block((0, 0.14, 0.14), (0.55, 0.01, 1.3))),
        *colored("steel", *(beam((x, 0.2, -0.6), (x, 1.2, -0.75), 0.06) for x in (-0.33, 0.33))),
        *colored("steel", *(beam((x, 1.0, -0.7), (x, 1.0, -0.2), 0.05) for x in (-0.33, 0.33))),
        *colored(color, block((0, 1.08, -0.72), (0.75, 0.24, 0.1))),
        *colored("display", block((0, 1.12, -0.665), (0.5, 0.16, 0.012))),
    ]


def weight_bench(color: str) -> list[Part]:
    plates = [shifted(_wheel(0.22, 0.06), x, 1.0, -0.45) for x in (-0.66, -0.58, 0.58, 0.66)]
    return [
        *colored(color, block((0, 0.38, 0.1), (0.3, 0.1, 1.1))),
        *colored("steel", *(block((x, 0, -0.45), (0.06, 0.98, 0.06)) for x in (-0.3, 0.3))),
        *colored("steel", block((0, 0, 0.5), (0.3, 0.38, 0.06)), block((0, 0.34, 0.1), (0.08, 0.04, 1.0))),
        *colored("steel", beam((-0.75, 1.0, -0.45), (0.75, 1.0, -0.45), 0.03)),
        *colored("black", *plates),
    ]


def _wheel(radius: float, thick: float) -> Triangles:
    """Disc about the x axis, its middle at the origin."""
    disc = cylinder(radius, -thick / 2, thick / 2, segments=14)
    turned: Triangles = disc[:, :, (1, 0, 2)][:, ::-1]
    return turned


def workbench(color: str) -> list[Part]:
    tools = ("red", "yellow", "blue", "orange", "green")
    return [
        *colored(color, block((0, 0.78, 0.02), (1.7, 0.08, 0.66)), *legs(1.66, 0.6, 0.78, 0.09)),
        *colored(color, block((0, 0.2, 0), (1.5, 0.05, 0.5)), block((0, 0.86, -0.31), (1.7, 0.9, 0.03))),
        *(
            part
            for i, tool in enumerate(tools)
            for part in (
                *colored(tool, block((-0.6 + 0.3 * i, 1.2, -0.28), (0.05, 0.2 + 0.04 * (i % 3), 0.03))),
                *colored("steel", block((-0.6 + 0.3 * i, 1.46, -0.28), (0.16 - 0.03 * (i % 2), 0.1, 0.03))),
            )
        ),
        *colored("steel", block((0.6, 0.86, 0.22), (0.16, 0.16, 0.2)), block((0.6, 0.9, 0.3), (0.24, 0.08, 0.04))),
        *colored("red", block((-0.45, 0.25, 0.05), (0.5, 0.24, 0.28))),
    ]


def tool_cabinet(color: str) -> list[Part]:
    drawers = [block((0, 0.16 + 0.21 * i, 0.23), (0.62, 0.18, 0.02)) for i in range(4)]
    return [
        *colored("black", *legs(0.64, 0.4, 0.1, 0.08)),
        *colored(color, block((0, 0.1, 0), (0.7, 0.92, 0.46))),
        *colored("steel", *drawers),
        *colored("black", *(block((0, 0.27 + 0.21 * i, 0.245), (0.4, 0.025, 0.02)) for i in range(4))),
        *colored("black", block((0, 1.02, 0), (0.72, 0.03, 0.48))),
    ]


def drum_kit(color: str) -> list[Part]:
    bass = shifted(lying(cylinder(0.32, -0.2, 0.2, segments=18)), 0.0, 0.34, 0.1)
    skin = shifted(lying(cylinder(0.28, 0, 0.01, segments=18)), 0.0, 0.34, 0.3)
    toms = [((-0.2, -0.02), 0.72, 0.15), ((0.2, -0.02), 0.72, 0.15), ((0.55, -0.2), 0.36, 0.21)]
    shells = [cylinder(r, y, y + 0.22, at) for at, y, r in toms]
    heads = [cylinder(r - 0.02, y + 0.22, y + 0.23, at) for at, y, r in toms]
    stands = [cylinder(0.015, 0.0, y, at, 6) for at, y in (((-0.6, 0.0), 1.1), ((0.62, 0.2), 1.2))]
    dishes = [lathe(((0.24, y), (0.03, y + 0.05)), at) for at, y in (((-0.6, 0.0), 1.1), ((0.56, 0.2), 1.2))]
    return [
        *colored(color, bass, *shells, cylinder(0.17, 0.45, 0.6, (-0.5, -0.3))),
        *colored("white", skin, *heads, cylinder(0.16, 0.6, 0.61, (-0.5, -0.3))),
        *colored(
            "steel",
            *stands,
            cylinder(0.02, 0.0, 0.45, (-0.5, -0.3), 6),
            cylinder(0.02, 0.0, 0.36, (0.55, -0.2), 6),
        ),
        *colored("steel", cylinder(0.02, 0.6, 0.72, (-0.2, -0.02), 6), cylinder(0.02, 0.6, 0.72, (0.2, -0.02), 6)),
        *colored("brass", *dishes),
    ]
