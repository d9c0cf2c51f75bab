"""Patterns of floors, walls, wood and cloth, the same bytes on every machine: whole numbers alone, and PNG files
that are stored and not compressed, so that no release of numpy or zlib shows in them.

A pattern is (size, size) whole numbers: a tone from 0 (dark) to TONES - 1 (bright), and TONES more where it shows
its second color. It repeats without a seam. `seed` decides its details.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Pattern = NDArray[np.int64]
Color = tuple[int, int, int]

TONES = 32
SIZE = 128
_MIDDLE = 22
"""The tone of a surface without shades: its color as it is."""
_SKIRTING = 6
"""Rows at the foot of a wall."""


def _grid(size: int) -> tuple[Pattern, Pattern]:
    rows, columns = np.mgrid[0:size, 0:size]
    return rows.astype(np.int64), columns.astype(np.int64)


def _hash(x: Pattern, y: Pattern, seed: int) -> Pattern:
    """Whole numbers from 0 to 65535 that look random."""
    with np.errstate(over="ignore"):
        mixed = (
            x.astype(np.uint32) * np.uint32(374761393)
            + y.astype(np.uint32) * np.uint32(668265263)
            + np.uint32(seed * 2246822519 % 2**32)
        )
        mixed ^= mixed >> np.uint32(13)
        mixed *= np.uint32(1274126177)
    return ((mixed ^ (mixed >> np.uint32(16))) & np.uint32(0xFFFF)).astype(np.int64)


def _grain(size: int, seed: int, most: int) -> Pattern:
    """Noise from -most to most, pixel by pixel."""
    rows, columns = _grid(size)
    return _hash(columns, rows, seed) * (2 * most + 1) // 65536 - most


def _cloud(size: int, cells: int, seed: int, most: int, stretch: int = 1) -> Pattern:
    """Smooth noise from -most to most with so many cells across, `stretch` times as many down."""
    rows, columns = _grid(size)

    def lattice(i: Pattern, j: Pattern) -> Pattern:
        return _hash(j % cells, i % (cells * stretch), seed)

    high, wide = size // (cells * stretch), size // cells
    i, j, y, x = rows // high, columns // wide, rows % high, columns % wide
    top = lattice(i, j) * (wide - x) + lattice(i, j + 1) * x
    foot = lattice(i + 1, j) * (wide - x) + lattice(i + 1, j + 1) * x
    return (top * (high - y) + foot * y) // (wide * high) * (2 * most + 1) // 65536 - most


def _pick(seed: int, number: int, choices: Sequence[int]) -> int:
    """One of some numbers, for one detail of a pattern."""
    return choices[(seed // 7 + seed * (2 * number + 3) // 5) % len(choices)]


def _shade(*layers: Pattern | int) -> Pattern:
    """Tones of layers that are added to the middle tone."""
    total = np.zeros((SIZE, SIZE), np.int64)
    for layer in layers:
        total = total + layer
    return np.clip(_MIDDLE + total, 0, TONES - 1)


def _two(tones: Pattern, second: Pattern | NDArray[np.bool_]) -> Pattern:
    """Tones in the second color where that is said."""
    both: Pattern = tones + TONES * second.astype(np.int64)
    return both


def _planks(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    width, length = _pick(seed, 0, (8, 16, 32)), _pick(seed, 1, (64, 128))
    strip = rows // width
    along = (columns + strip * 37) % SIZE
    board = _hash(along // length, strip, seed) * 9 // 65536 - 5
    gap = (rows % width < 1) | (along % length < 1)
    return _shade(board, _cloud(SIZE, 4, seed, 3, 8), np.where(gap, -9, 0))


def _herringbone(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    width = _pick(seed, 0, (8, 16))
    flipped = columns // (4 * width) % 2
    slope = np.where(flipped, rows + columns, rows - columns) % SIZE
    board = _hash(slope // width, columns // (4 * width), seed) * 8 // 65536 - 5
    gap = (slope % width < 1) | (columns % (4 * width) < 1)
    return _shade(board, _grain(SIZE, seed, 2), np.where(gap, -8, 0))


def _parquet(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    block = _pick(seed, 0, (32, 64))
    upright = (rows // block + columns // block) % 2
    across = np.where(upright, columns, rows) % block
    slat = _hash(rows // block * 8 + columns // block, across // (block // 4), seed) * 9 // 65536 - 5
    gap = (across % (block // 4) < 1) | (np.where(upright, rows, columns) % block < 1)
    return _shade(slat, _grain(SIZE, seed, 2), np.where(gap, -8, 0))


def _tiles(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    edge = _pick(seed, 0, (16, 32, 64))
    tile = _hash(columns // edge, rows // edge, seed) * 5 // 65536 - 2
    grout = (rows % edge < 2) | (columns % edge < 2)
    return np.where(grout, TONES + _MIDDLE, _shade(tile, _grain(SIZE, seed, 1)))


def _offset_tiles(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    high = _pick(seed, 0, (16, 32))
    along = (columns + rows // high % 2 * high) % SIZE
    tile = _hash(along // (2 * high), rows // high, seed) * 6 // 65536 - 3
    grout = (rows % high < 2) | (along % (2 * high) < 2)
    return np.where(grout, TONES + _MIDDLE, _shade(tile, _grain(SIZE, seed, 1)))


def _checker(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    edge = _pick(seed, 0, (16, 32))
    other = (rows // edge + columns // edge) % 2
    return _two(_shade(_grain(SIZE, seed, 1)), other)


def _slabs(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    edge = _pick(seed, 0, (32, 64))
    slab = _hash(columns // edge, rows // edge, seed) * 7 // 65536 - 4
    joint = (rows % edge < 2) | (columns % edge < 2)
    return _shade(slab, _cloud(SIZE, 8, seed, 5), np.where(joint, -8, 0))


def _terrazzo(seed: int) -> Pattern:
    spots = _cloud(SIZE, 32, seed, 20)
    flecks = np.where(spots > 8, TONES, 0) + _shade(_grain(SIZE, seed, 1))
    return np.where(spots < -9, _MIDDLE - 9, flecks)


def _marble(seed: int) -> Pattern:
    veins = _cloud(SIZE, 4, seed, 40) + _cloud(SIZE, 16, seed + 1, 12)
    return _shade(_cloud(SIZE, 8, seed + 2, 4), np.where(np.abs(veins) < 3, -9, 0))


def _concrete(seed: int) -> Pattern:
    return _shade(_cloud(SIZE, 4, seed, 6), _cloud(SIZE, 16, seed + 1, 3), _grain(SIZE, seed, 1))


def _carpet(seed: int) -> Pattern:
    return _shade(_grain(SIZE, seed, 5), _cloud(SIZE, 8, seed, 2))


def _striped_carpet(seed: int) -> Pattern:
    width = _pick(seed, 0, (8, 16, 32))
    return _two(_shade(_grain(SIZE, seed, 4)), (_grid(SIZE)[1] // width % 2))


def _diamond_carpet(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    edge = _pick(seed, 0, (32, 64))
    off = np.abs(rows % edge - edge // 2) + np.abs(columns % edge - edge // 2)
    return _two(_shade(_grain(SIZE, seed, 4)), (off < edge // 4))


def _plain(seed: int) -> Pattern:
    return _shade(_grain(SIZE, seed, 1))


def _plaster(seed: int) -> Pattern:
    return _shade(_cloud(SIZE, 8, seed, 5), _cloud(SIZE, 32, seed + 1, 3))


def _stripes(seed: int) -> Pattern:
    width = _pick(seed, 0, (4, 8, 16))
    return _two(_shade(_grain(SIZE, seed, 1)), (_grid(SIZE)[1] // width % 2))


def _brick(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    along = (columns + rows // 8 % 2 * 8) % SIZE
    stone = _hash(along // 16, rows // 8, seed) * 11 // 65536 - 6
    return np.where((rows % 8 < 1) | (along % 16 < 1), TONES + _MIDDLE, _shade(stone, _grain(SIZE, seed, 2)))


def _wall_tiles(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    edge = _pick(seed, 0, (8, 16))
    top = _pick(seed, 1, (24, 44, 64))
    grout = ((rows % edge < 1) | (columns % edge < 1)) & (rows > top)
    tiled = _shade(np.where(grout, -7, 0), _grain(SIZE, seed, 1))
    return _two(tiled, (rows > top - 4) & (rows <= top))


def _panels(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    top, width = _pick(seed, 0, (60, 76, 88)), _pick(seed, 1, (16, 32))
    line = ((columns % width < 2) & (rows > top)) | ((rows > top - 3) & (rows <= top))
    return _two(_shade(np.where(line, -7, 0), _grain(SIZE, seed, 1)), (rows > top))


def _dots(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    edge = _pick(seed, 0, (16, 32))
    x = (columns + rows // edge % 2 * (edge // 2)) % edge - edge // 2
    spot = (rows % edge - edge // 2) ** 2 + x * x < (edge // 5) ** 2
    return _two(_shade(_grain(SIZE, seed, 1)), spot)


def _diamonds(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    edge = _pick(seed, 0, (16, 32))
    off = np.abs(rows % edge - edge // 2) + np.abs(columns % edge - edge // 2)
    return _two(_shade(_grain(SIZE, seed, 1)), ((off - edge // 2 < 2) & (off - edge // 2 > -2)))


def _boards(seed: int) -> Pattern:
    rows, _ = _grid(SIZE)
    high = _pick(seed, 0, (8, 16))
    board = _hash(rows * 0, rows // high, seed) * 5 // 65536 - 2
    return _shade(board, _cloud(SIZE, 4, seed, 2, 8), np.where(rows % high < 1, -8, 0))


def _checks(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    width = _pick(seed, 0, (8, 16))
    bands = rows // width % 2 + columns // width % 2
    return _two(_shade(-3 * (bands == 1), _grain(SIZE, seed, 1)), (bands == 2))


def _zigzag(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    edge = _pick(seed, 0, (16, 32))
    wave = np.abs(columns % edge - edge // 2)
    return _two(_shade(_grain(SIZE, seed, 1)), ((rows + wave) // (edge // 2) % 2))


def _flowers(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    x = (columns + rows // 32 % 2 * 16) % 32 - 16
    y = rows % 32 - 16
    petals = np.minimum(np.abs(x) + 3 * np.abs(y), 3 * np.abs(x) + np.abs(y)) < 20
    leaf = (np.abs(x + y) < 3) & (np.abs(x - y) < 14)
    return _two(_shade(np.where(leaf, -5, 0), _grain(SIZE, seed, 1)), petals)


def _wood(seed: int) -> Pattern:
    return _shade(_cloud(SIZE, 2, seed, 6, 32), _grain(SIZE, seed, 2))


def _weave(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    thread = _pick(seed, 0, (2, 4))
    over = (rows // thread + columns // thread) % 2
    return _shade(-5 * over, _grain(SIZE, seed, 2))


def _ribs(seed: int) -> Pattern:
    return _shade(np.abs(_grid(SIZE)[1] % 8 - 4) * 2 - 6, _grain(SIZE, seed, 1))


def _plaid(seed: int) -> Pattern:
    rows, columns = _grid(SIZE)
    width = _pick(seed, 0, (16, 32))
    bands = (rows % (2 * width) < width // 2) * 1 + (columns % (2 * width) < width // 2)
    return _shade(-5 * bands, _grain(SIZE, seed, 2))


WOODEN_FLOORS: dict[str, Callable[[int], Pattern]] = {
    "planks": _planks,
    "herringbone": _herringbone,
    "parquet": _parquet,
    "carpet": _carpet,
    "striped carpet": _striped_carpet,
    "diamond carpet": _diamond_carpet,
}
"""Floors of rooms to live in."""
HARD_FLOORS: dict[str, Callable[[int], Pattern]] = {
    "tiles": _tiles,
    "offset tiles": _offset_tiles,
    "checker": _checker,
    "slabs": _slabs,
    "terrazzo": _terrazzo,
    "marble": _marble,
    "concrete": _concrete,
}
"""Floors of rooms that get wet."""
WALLS: dict[str, Callable[[int], Pattern]] = {
    "plain": _plain,
    "plaster": _plaster,
    "stripes": _stripes,
    "brick": _brick,
    "wall tiles": _wall_tiles,
    "panels": _panels,
    "dots": _dots,
    "diamonds": _diamonds,
    "boards": _boards,
    "checks": _checks,
    "zigzag": _zigzag,
    "flowers": _flowers,
}
CLOTHS: dict[str, Callable[[int], Pattern]] = {
    "felt": _carpet,
    "weave": _weave,
    "ribs": _ribs,
    "plaid": _plaid,
}
PATTERNS = {**WOODEN_FLOORS, **HARD_FLOORS, **WALLS, **CLOTHS, "wood": _wood}


@cache
def tile_png(style: str, seed: int, color: Color, second: Color) -> bytes:
    """A pattern of PATTERNS in two colors; repeats without a seam."""
    return indexed_png(PATTERNS[style](seed), [*_tones(color), *_tones(second)])


@cache
def wall_png(style: str, seed: int, color: Color, second: Color, skirting: Color) -> bytes:
    """The same for the height of a wall: top row at the ceiling, a skirting board at the foot."""
    pattern = PATTERNS[style](seed)
    rows = _grid(SIZE)[0]
    # A little darker towards ceiling and floor, so that room edges read without lights.
    shade = np.where(rows < 8, (8 - rows) // 3, 0) + np.where(rows > SIZE - 18, (rows - SIZE + 18) // 4, 0)
    pattern = np.where(pattern < TONES, np.maximum(pattern - shade, 0), np.maximum(pattern - shade, TONES))
    pattern[SIZE - _SKIRTING :] = 2 * TONES + _MIDDLE
    pattern[SIZE - _SKIRTING - 1] = 2 * TONES + _MIDDLE - 10
    return indexed_png(pattern, [*_tones(color), *_tones(second), *_tones(skirting)])


def _tones(color: Color) -> list[Color]:
    """A color from dark to bright."""
    tones = []
    for tone in range(TONES):
        gain = 256 + (tone - _MIDDLE) * 8
        red, green, blue = (min(255, channel * gain // 256) for channel in color)
        tones.append((red, green, blue))
    return tones


def indexed_png(pixels: NDArray[np.int64], colors: Sequence[Color]) -> bytes:
    """A PNG of (height, width) numbers of at most 256 colors, stored and not compressed."""
    height, width = pixels.shape
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter, none
    rows[:, 1:] = pixels
    data = rows.tobytes()
    blocks = [data[i : i + 65535] for i in range(0, len(data), 65535)]
    stored = b"".join(
        struct.pack("<BHH", block is blocks[-1], len(block), len(block) ^ 0xFFFF) + block for block in blocks
    )
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(channel for color in colors for channel in color)),
        (b"IDAT", b"\x78\x01" + stored + struct.pack(">I", zlib.adler32(data))),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
