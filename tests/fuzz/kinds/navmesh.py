"""`.navmesh` files: read, and asked what an episode and a report ask."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from tests.envs.embedded.navmesh.scenes import KINDS, random_scene
from tests.fuzz.judge import Builder
from tests.fuzz.kinds.glb import ask
from tests.fuzz.values import change_bytes

NAME = "scene.navmesh"
SET_HEADER, SETTINGS, TILE_PREFIX, TILE_HEADER = 40, 56, 8, 100
TILE = SET_HEADER + SETTINGS + TILE_PREFIX
BOX = TILE + 72
"""Lowest and highest corner in the tile's header, then the quantization of its tree."""


def read(folder: Path) -> None:
    pathfinder = PathFinder.load(folder / NAME)
    ask(pathfinder)
    assert np.isfinite(pathfinder.navigable_area)
    pathfinder.build_navmesh_vertices()
    pathfinder.closest_obstacle_surface_point(pathfinder.get_bounds()[0])


@cache
def honest() -> tuple[bytes, ...]:
    """A small navmesh of every kind of scene."""
    import tempfile

    found, settings = [], NavMeshSettings()
    for number, kind in enumerate(KINDS):
        mesh = random_scene(kind, np.random.default_rng(number))
        with tempfile.TemporaryDirectory() as folder:
            PathFinder.from_polymesh(*build_polymesh(*mesh, settings), settings).save(Path(folder) / NAME)
            found.append((Path(folder) / NAME).read_bytes())
    return tuple(found)


def write(folder: Path, random: Random) -> None:
    data = bytearray(random.choice(honest()))
    for _ in range(random.choice([1, 1, 2, 3, 8])):
        random.choice(MUTATORS)(data, random)
    if random.random() < 0.7:
        data[TILE - 4 : TILE] = struct.pack("<i", len(data) - TILE)  # so that more than the size is looked at
    (folder / NAME).write_bytes(data)


def _put(data: bytearray, at: int, code: str, value: Any) -> None:
    if at + struct.calcsize(code) <= len(data):
        data[at : at + struct.calcsize(code)] = struct.pack("<" + code, value)


def change_header(data: bytearray, random: Random) -> None:
    at = 4 * random.randrange((TILE + TILE_HEADER) // 4)
    if random.random() < 0.5:
        _put(data, at, "i", random.choice([-(2**31), -1, 0, 1, 2, 3, 7, 1000, 2**15, 2**20, 2**31 - 1]))
    else:
        _put(data, at, "f", random.choice(FLOATS))


def change_counts(data: bytearray, random: Random) -> None:
    """One of the counts of the tile moves by a little, or far."""
    at = TILE + 24 + 4 * random.randrange(7)
    if at + 4 <= len(data):
        (count,) = struct.unpack_from("<i", data, at)
        _put(data, at, "i", max(-(2**31), min(2**31 - 1, count + random.choice([-2, -1, 1, 2, 1000, 2**30]))))


def change_floats(data: bytearray, random: Random) -> None:
    """Corners of the box, or vertices, move."""
    first = random.choice([BOX, TILE + TILE_HEADER])
    at = first + 4 * random.randrange(7 if first == BOX else 60)
    _put(data, at, "f", random.choice(FLOATS))


def change_indices(data: bytearray, random: Random) -> None:
    at = random.randrange(TILE + TILE_HEADER, max(TILE + TILE_HEADER + 1, len(data)))
    code, values = random.choice(
        [("H", (0, 1, 255, 2**15, 2**16 - 1)), ("B", (0, 1, 7, 255)), ("i", (-5, -1, 0, 9))]
    )
    _put(data, at, code, random.choice(values))


def change_size(data: bytearray, random: Random) -> None:
    """All vertices and the boxes around them are some times as large, or all but one lie in one place."""
    vertices = struct.unpack_from("<i", data, TILE + 28)[0] if len(data) >= TILE + 32 else 0
    end = min(len(data), TILE + TILE_HEADER + 12 * max(0, min(vertices, 10**6)))
    factor = random.choice([0.0, 1e-20, 1e-3, 10.0, 300.0, 1e4, 1e20, -1.0])
    for first, last in ((BOX, min(len(data), BOX + 24)), (TILE + TILE_HEADER, end)):
        for at in range(first, last - 3, 4):
            value = struct.unpack_from("<f", data, at)[0] * factor
            _put(data, at, "f", value if abs(value) < 3e38 else 3e38)


def change_blocks(data: bytearray, random: Random) -> None:
    """A block of polygons, links or nodes of the tree lies where another should, or many times."""
    if len(data) <= TILE + TILE_HEADER + 64:
        return
    size = random.choice([4, 12, 16, 32, 64])
    a, b = (TILE + TILE_HEADER + 4 * random.randrange((len(data) - TILE - TILE_HEADER) // 4) for _ in range(2))
    block = bytes(data[a : a + size])
    if random.random() < 0.5:
        data[b : b + size] = block
    else:
        data[b:b] = block * random.choice([1, 10, 1000])


def change_tiles(data: bytearray, random: Random) -> None:
    """The tile is there some times, and the header says so, or says more."""
    count = random.choice([2, 3, 100])
    tile = bytes(data[SET_HEADER + SETTINGS :])
    if len(tile) * count < 1 << 22:
        data += tile * (count - 1)
    _put(data, 8, "i", random.choice([count, count, count + 1, 2**30]))


MUTATORS = (
    change_header,
    change_counts,
    change_floats,
    change_indices,
    change_bytes,
    change_size,
    change_blocks,
    change_tiles,
)

FLOATS = (
    0.0,
    -0.0,
    1e-30,
    0.05,
    -3.0,
    40.0,
    300.0,
    5e3,
    9e5,
    -9e5,
    1e30,
    float("nan"),
    float("inf"),
    -float("inf"),
)


def case(edit: Callable[[bytearray], None]) -> Builder:
    def build(folder: Path) -> None:
        data = bytearray(honest()[0])
        edit(data)
        (folder / NAME).write_bytes(data)

    return build


def wide(meters: float) -> Callable[[bytearray], None]:
    """The box from -meters to +meters in plan."""

    def edit(data: bytearray) -> None:
        for corner, value in ((0, -meters), (3, meters)):
            for axis in (0, 2):
                _put(data, BOX + 4 * (corner + axis), "f", value)

    return edit


def counts(data: bytearray) -> None:
    for k in range(7):
        _put(data, TILE + 24 + 4 * k, "i", 2**30)


corpus: dict[str, tuple[Builder, str]] = {
    "honest": (case(lambda data: None), ""),
    "1,800 km wide": (case(wide(9e5)), "spans 1800000 m"),
    "a map of 0.04 million million cells": (case(wide(4990.0)), "top-down map"),
    "counts of 2^30": (case(counts), "tile counts"),
}
