"""Colors of houses that have their own: whole numbers near those that names and materials stand for."""

from __future__ import annotations

import random

from envs.houses.shapes.patterns import Color
from envs.houses.shapes.textures import COLORS

NAMED = tuple(list(COLORS)[: list(COLORS).index("leaf")])
"""Colors that instructions name."""
_SHIFT = 20
_BRIGHTNESS = (205, 275)
"""Of 256."""

WOODS: tuple[Color, ...] = (
    (150, 98, 58),
    (196, 150, 100),
    (116, 66, 38),
    (222, 190, 146),
    (94, 62, 44),
    (176, 128, 92),
    (168, 152, 134),
    (130, 78, 60),
)
STONES: tuple[Color, ...] = (
    (232, 230, 222),
    (150, 190, 215),
    (116, 120, 128),
    (170, 170, 165),
    (198, 168, 138),
    (176, 104, 76),
    (86, 92, 96),
    (150, 170, 140),
    (214, 200, 170),
    (60, 66, 82),
)
CARPETS: tuple[Color, ...] = (
    (190, 176, 150),
    (92, 104, 128),
    (120, 36, 44),
    (112, 140, 96),
    (150, 60, 58),
    (88, 60, 92),
    (70, 74, 78),
    (176, 140, 90),
    (60, 108, 112),
    (206, 196, 184),
)
SCHEMES: tuple[tuple[Color, ...], ...] = (
    ((240, 236, 226), (228, 220, 204), (214, 206, 192)),
    ((226, 232, 236), (196, 212, 222), (160, 182, 198)),
    ((236, 226, 208), (222, 196, 158), (206, 168, 126)),
    ((226, 234, 218), (190, 206, 176), (152, 172, 144)),
    ((238, 224, 222), (222, 190, 188), (190, 144, 146)),
    ((228, 222, 236), (196, 186, 214), (152, 140, 178)),
    ((236, 230, 190), (226, 206, 128), (214, 176, 92)),
    ((216, 214, 212), (168, 168, 170), (122, 126, 132)),
    ((222, 238, 236), (160, 206, 204), (98, 156, 160)),
    ((232, 214, 200), (196, 140, 112), (150, 92, 72)),
)
"""Wall colors of a house, pale to strong."""
_MATERIALS: dict[str, tuple[Color, ...]] = {
    "leaf": ((52, 128, 46), (88, 140, 60), (40, 96, 62), (120, 150, 66)),
    "steel": ((185, 190, 196), (120, 124, 130), (206, 200, 190)),
    "brass": ((214, 176, 80), (186, 140, 96), (200, 196, 190)),
    "pine": WOODS,
    "brown": ((125, 78, 40), (112, 66, 36), (138, 92, 52)),
    "cream": ((236, 224, 196), (226, 214, 202), (240, 232, 214)),
    "terracotta": ((178, 92, 58), (160, 110, 84), (196, 112, 74)),
    "trim": ((226, 222, 212), (244, 244, 240), (150, 108, 72), (96, 66, 48), (88, 92, 98)),
    "ceiling": ((238, 236, 230), (246, 246, 246), (230, 222, 206), (216, 220, 224)),
    "glass": ((160, 205, 235), (190, 214, 226), (214, 224, 220), (150, 190, 240)),
}


def near(color: Color, rng: random.Random, by: int) -> Color:
    """A color at most `by` of 255 away in every channel."""
    red, green, blue = (min(255, max(0, channel + rng.randint(-by, by))) for channel in color)
    return red, green, blue


def pastel(color: Color, by: int) -> Color:
    """A color brighter (darker, where negative) by so much of 255."""
    red, green, blue = (min(255, max(0, channel + by)) for channel in color)
    return red, green, blue


def paints(rng: random.Random) -> dict[str, Color]:
    """For every name of COLORS the color of one house. Those that instructions name stay nearest to their name."""
    found: dict[str, Color] = {}
    for name, usual in COLORS.items():
        choices = _MATERIALS.get(name, (usual,))
        while True:
            gain = rng.randint(*_BRIGHTNESS) if name in NAMED else 256
            red, green, blue = near(rng.choice(choices), rng, _SHIFT if name in NAMED else 6)
            color = min(255, red * gain // 256), min(255, green * gain // 256), min(255, blue * gain // 256)
            if name not in NAMED or nearest_name(color) == name:
                found[name] = color
                break
    return found


def nearest_name(color: Color) -> str:
    """Which of the colors that instructions name is nearest."""
    return min(NAMED, key=lambda name: sum((a - b) ** 2 for a, b in zip(color, COLORS[name], strict=True)))
