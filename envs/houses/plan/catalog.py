"""The catalog of furniture and landmark objects: sizes, colors and where they stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from envs.houses.shapes import furniture as shapes
from envs.houses.shapes import landmarks as marks
from envs.houses.shapes import toys
from envs.houses.shapes import variants as makes
from envs.houses.shapes.meshes import Part


@dataclass(frozen=True)
class Furnishing:
    """What can stand in a room: its noun, footprint (width, depth), height, possible colors and shape.

    `place`: "wall" stands with its back to a wall, "middle" in the free middle of a room, "rug" under everything.
    `make`: number among the makes of its noun.
    """

    noun: str
    size: tuple[float, float]
    height: float
    colors: tuple[str, ...]
    build: Callable[[str], list[Part]]
    place: str = "wall"
    make: int = 0


_WOOD = ("brown", "white", "black")
_CLOTH = ("red", "blue", "green", "gray", "purple", "orange", "yellow", "pink")
_BRIGHT = ("red", "orange", "yellow", "green", "blue", "turquoise", "purple", "pink", "white", "black")

_FURNITURE = (
    Furnishing("bed", (1.6, 2.0), 1.0, _CLOTH, shapes.bed),
    Furnishing("nightstand", (0.45, 0.4), 0.5, _WOOD, shapes.nightstand),
    Furnishing("wardrobe", (1.3, 0.6), 2.0, _WOOD, shapes.wardrobe),
    Furnishing("sofa", (2.0, 0.85), 0.82, _CLOTH, shapes.sofa),
    Furnishing("armchair", (0.95, 0.85), 0.82, _CLOTH, shapes.armchair),
    Furnishing("coffee table", (1.0, 0.6), 0.44, _WOOD, shapes.coffee_table, "middle"),
    Furnishing("television", (1.5, 0.4), 1.25, ("black",), shapes.tv),
    Furnishing("bookshelf", (1.2, 0.35), 1.9, _WOOD, shapes.bookshelf),
    Furnishing("dining table", (1.5, 1.6), 0.93, _WOOD, shapes.dining_table, "middle"),
    Furnishing("desk", (1.4, 1.25), 1.24, _WOOD, shapes.desk),
    Furnishing("refrigerator", (0.75, 0.72), 1.85, ("white", "gray", "red", "black"), shapes.fridge),
    Furnishing("kitchen counter", (1.84, 0.62), 2.15, ("white", "blue", "green", "brown"), shapes.counter),
    Furnishing("stove", (0.62, 0.62), 2.5, ("white", "gray", "black"), shapes.stove),
    Furnishing("toilet", (0.42, 0.7), 0.8, ("white",), shapes.toilet),
    Furnishing("bathtub", (1.7, 0.75), 0.8, ("white", "pink"), shapes.bathtub),
    Furnishing("sink", (0.84, 0.5), 2.04, ("white",), shapes.sink),
    Furnishing("washing machine", (0.62, 0.66), 0.88, ("white", "gray"), shapes.washing_machine),
    Furnishing("piano", (1.5, 1.8), 1.2, ("black", "brown", "white"), shapes.piano),
    Furnishing("fireplace", (1.6, 0.54), 2.55, ("red", "gray", "white"), shapes.fireplace),
    Furnishing("bench", (1.2, 0.36), 0.48, (*_WOOD, "red", "blue"), shapes.bench),
    Furnishing("clock", (0.5, 0.36), 1.98, ("brown", "black", "red"), shapes.clock),
    Furnishing("chest", (0.94, 0.54), 0.57, ("red", "blue", "green", "purple"), shapes.chest),
    Furnishing("rug", (2.2, 1.5), 0.02, _CLOTH, shapes.rug, "rug"),
    Furnishing("treadmill", (0.8, 1.62), 1.32, ("gray", "black", "white"), shapes.treadmill),
    Furnishing("weight bench", (1.5, 1.32), 1.22, ("red", "blue", "black"), shapes.weight_bench),
    Furnishing("workbench", (1.72, 0.72), 1.76, _WOOD, shapes.workbench),
    Furnishing("tool cabinet", (0.74, 0.54), 1.05, ("red", "blue", "gray"), shapes.tool_cabinet),
    Furnishing("drum kit", (1.7, 1.0), 1.25, ("red", "blue", "black"), shapes.drum_kit),
)

_LANDMARKS = (
    Furnishing("vase", (0.42, 0.42), 0.8, _BRIGHT, marks.vase),
    Furnishing("ball", (0.56, 0.56), 0.56, _BRIGHT, toys.ball),
    Furnishing("cone", (0.46, 0.46), 0.8, ("red", "orange", "yellow", "green", "blue", "pink"), marks.cone),
    Furnishing("crate", (0.52, 0.52), 0.51, _BRIGHT, marks.crate),
    Furnishing("barrel", (0.6, 0.6), 0.8, _BRIGHT, marks.barrel),
    Furnishing("plant", (0.6, 0.56), 1.34, ("white", "black", "blue", "orange"), marks.plant),
    Furnishing("lamp", (0.48, 0.48), 1.6, _BRIGHT, marks.lamp),
    Furnishing("stool", (0.42, 0.42), 0.56, _BRIGHT, marks.stool),
    Furnishing("bucket", (0.46, 0.46), 0.44, _BRIGHT, marks.bucket),
    Furnishing("suitcase", (0.52, 0.34), 1.03, _BRIGHT, marks.suitcase),
    Furnishing("globe", (0.62, 0.62), 1.2, _BRIGHT, marks.globe),
    Furnishing("drum", (0.64, 0.64), 0.61, _BRIGHT, toys.drum),
    Furnishing("guitar", (0.5, 0.42), 1.46, _BRIGHT, toys.guitar),
    Furnishing("teddy bear", (0.62, 0.72), 0.93, _BRIGHT, toys.teddy_bear),
    Furnishing("statue", (0.52, 0.52), 1.49, _BRIGHT, marks.statue),
    Furnishing("mirror", (0.7, 0.4), 1.6, _BRIGHT, marks.mirror),
    Furnishing("easel", (0.76, 0.56), 1.6, _BRIGHT, marks.easel),
    Furnishing("fan", (0.62, 0.46), 1.45, _BRIGHT, marks.fan),
    Furnishing("basket", (0.7, 0.7), 0.68, _BRIGHT, marks.basket),
    Furnishing("birdcage", (0.52, 0.52), 1.5, _BRIGHT, marks.birdcage),
    Furnishing("pyramid", (0.74, 0.74), 0.8, _BRIGHT, toys.pyramid),
    Furnishing("telescope", (0.68, 0.92), 1.45, _BRIGHT, marks.telescope),
    Furnishing("tent", (1.02, 0.86), 0.9, _BRIGHT, toys.tent),
    Furnishing("hydrant", (0.58, 0.46), 0.95, _BRIGHT, marks.hydrant),
    Furnishing("mailbox", (0.42, 0.52), 1.32, _BRIGHT, marks.mailbox),
    Furnishing("ladder", (0.6, 0.68), 1.53, _BRIGHT, marks.ladder),
    Furnishing("chair", (0.48, 0.48), 1.06, _BRIGHT, marks.chair),
    Furnishing("cactus", (0.6, 0.48), 1.26, _BRIGHT, marks.cactus),
    Furnishing("robot", (0.64, 0.32), 1.24, _BRIGHT, toys.robot),
    Furnishing("rocket", (0.62, 0.62), 1.3, _BRIGHT, toys.rocket),
    Furnishing("duck", (0.52, 0.8), 0.73, _BRIGHT, toys.duck),
    Furnishing("hourglass", (0.54, 0.54), 1.0, _BRIGHT, toys.hourglass),
    Furnishing("mushroom", (0.74, 0.74), 0.74, _BRIGHT, toys.mushroom),
    Furnishing("umbrella", (0.9, 0.9), 1.6, _BRIGHT, toys.umbrella),
    Furnishing("trophy", (0.72, 0.44), 0.98, _BRIGHT, marks.trophy),
)
LANDMARKS = tuple(item.noun for item in _LANDMARKS)
"""Nouns that are always named with their color."""

FURNISHINGS = {item.noun: item for item in (*_FURNITURE, *_LANDMARKS)}
"""Everything that can stand in a house, by noun."""

CLOTH = ("bed", "sofa", "armchair", "rug")
"""Furniture whose main color is that of a cloth."""

_MAKES: dict[str, tuple[tuple[tuple[float, float], float, Callable[[str], list[Part]]], ...]] = {
    "bed": (((1.0, 2.0), 0.9, makes.single_bed), ((1.5, 2.0), 0.88, makes.low_bed)),
    "nightstand": (((0.42, 0.42), 0.5, makes.round_nightstand),),
    "wardrobe": (((1.05, 0.56), 1.85, makes.open_wardrobe),),
    "sofa": (((1.8, 0.85), 0.76, makes.legged_sofa), ((1.6, 0.84), 0.82, makes.small_sofa)),
    "armchair": (((0.82, 0.85), 0.76, makes.legged_armchair), ((0.82, 0.78), 0.76, makes.tub_chair)),
    "coffee table": (((0.62, 0.62), 0.44, makes.round_table), ((0.9, 0.52), 0.42, makes.box_table)),
    "television": (((1.1, 0.36), 1.16, makes.tv_on_legs),),
    "bookshelf": (((0.82, 0.32), 1.7, makes.narrow_bookshelf),),
    "dining table": (((1.5, 1.5), 0.86, makes.round_dining_table),),
    "desk": (((1.2, 1.26), 1.16, makes.trestle_desk),),
    "refrigerator": (((0.72, 0.74), 1.8, makes.tall_fridge),),
    "bench": (((1.14, 0.42), 0.84, makes.backed_bench),),
    "rug": (((1.72, 1.72), 0.02, makes.round_rug), ((2.2, 0.9), 0.02, makes.runner)),
    "clock": (((0.42, 0.32), 1.82, makes.pillar_clock),),
    "chest": (((0.82, 0.5), 0.5, makes.banded_chest),),
    "kitchen counter": (((1.56, 0.62), 1.72, makes.bare_counter),),
}
"""Size, height and shape of further makes, for houses whose furniture differs."""

MAKES: dict[str, tuple[Furnishing, ...]] = {
    noun: (
        usual,
        *(
            replace(usual, size=size, height=height, build=build, make=number)
            for number, (size, height, build) in enumerate(_MAKES.get(noun, ()), start=1)
        ),
    )
    for noun, usual in FURNISHINGS.items()
}
"""All makes by noun, the usual one first."""
