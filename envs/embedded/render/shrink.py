"""Smaller RGB frames, equal to what Pillow's bicubic `Image.resize` makes of them and several times as fast.

Agents resize what they see before they look at it. Pillow (libImaging's Resample.c) works in whole numbers:
weights with 22 fraction bits, one axis after the other, each rounded to 8 bits. Whole numbers add up to the
same in any order, so the same weights give the same image. Which axis comes first differs between versions of
Pillow and between sizes: for each pair of sizes a frame of noise is compared with Pillow's own result once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from envs.embedded.kernels.jit import inner_kernel, kernel
from envs.embedded.render.lanes import LANES, load, maximum, minimum, store

FRACTION_BITS = 22
CHANNELS = 3

Shrink = Callable[[NDArray[np.uint8], int, int], NDArray[np.uint8]]


class Taps(NamedTuple):
    """Which pixels a smaller image is made from along one axis.

    first, counts: int64 (size,), the first of them and how many; weights: int32 (size, most of them), 0 beyond.
    """

    first: NDArray[np.int64]
    counts: NDArray[np.int64]
    weights: NDArray[np.int32]


def shrink(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """An RGB frame (H, W, 3) as (height, width, 3), bicubic, aspect ratio not kept. Sizes may also grow."""
    return _equal_to_pillow(frame.shape[:2], (height, width))(frame, height, width)


def by_pillow(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """What `shrink` does, done by Pillow."""
    return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC))


@lru_cache(maxsize=16)
def _equal_to_pillow(size: tuple[int, int], wanted: tuple[int, int]) -> Shrink:
    """The faster way that gives what Pillow gives for these sizes, Pillow itself if none does."""
    noise = np.random.default_rng(0).integers(0, 256, (*size, CHANNELS), dtype=np.uint8)
    theirs = by_pillow(noise, *wanted)
    ways: tuple[Shrink, ...] = (_rows_first, _columns_first)
    return next((way for way in ways if np.array_equal(way(noise, *wanted), theirs)), by_pillow)


def _rows_first(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    narrow = _along_rows(np.ascontiguousarray(frame), _taps(frame.shape[1], width))
    return _along_columns(narrow, _taps(frame.shape[0], height))


def _columns_first(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    low = _along_columns(np.ascontiguousarray(frame), _taps(frame.shape[0], height))
    return _along_rows(low, _taps(frame.shape[1], width))


@lru_cache(maxsize=16)
def _taps(size: int, wanted: int) -> Taps:
    """Pillow's weights along an axis of `size` pixels."""
    scale = size / wanted
    stretch = max(scale, 1.0)
    reach = 2.0 * stretch
    most = math.ceil(reach) * 2 + 1
    first, count = np.zeros(wanted, np.int64), np.zeros(wanted, np.int64)
    weights = np.zeros((wanted, most), np.int32)
    for k in range(wanted):
        center = (k + 0.5) * scale
        begin = max(int(center - reach + 0.5), 0)
        end = min(int(center + reach + 0.5), size)
        parts = [_bicubic((x - center + 0.5) * (1.0 / stretch)) for x in range(begin, end)]
        total = 0.0
        for part in parts:
            total += part
        first[k], count[k] = begin, end - begin
        scaled = [part / total * (1 << FRACTION_BITS) for part in parts]
        weights[k, : end - begin] = [int(value - 0.5) if value < 0 else int(value + 0.5) for value in scaled]
    return Taps(first, count, weights)


def _bicubic(x: float) -> float:
    """The filter with a = -0.5, whose terms Pillow adds in this order."""
    x = abs(x)
    if x < 1.0:
        return ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2.0 else 0.0


@kernel
def _along_rows(frame: NDArray[np.uint8], taps: Taps) -> NDArray[np.uint8]:
    """(H, W, 3) as (H, len(taps.first), 3): as many rows at once as there are lanes."""
    height, width = frame.shape[0], len(taps.first)
    narrow = np.empty((height, width, CHANNELS), np.uint8)
    columns = np.zeros((frame.shape[1] * CHANNELS, LANES), np.int32)
    sums = np.empty((width * CHANNELS, LANES), np.int32)
    for row in range(0, height, LANES):
        count = min(LANES, height - row)
        for lane in range(count):
            pixels = frame[row + lane].reshape(-1)
            for x in range(len(pixels)):
                columns[x, lane] = pixels[x]
        _add_up(columns, taps, sums)
        for lane in range(count):
            target = narrow[row + lane].reshape(-1)
            for x in range(len(target)):
                target[x] = sums[x, lane]
    return narrow


@inner_kernel
def _add_up(columns: NDArray[np.int32], taps: Taps, sums: NDArray[np.int32]) -> None:
    """The weighted sums of all columns of pixels, rounded to 8 bits."""
    for k in range(len(taps.first)):
        for channel in range(CHANNELS):
            place = taps.first[k] * CHANNELS + channel
            total = load(columns, place, 0) * taps.weights[k, 0]
            for j in range(1, taps.counts[k]):
                total = total + load(columns, place + j * CHANNELS, 0) * taps.weights[k, j]
            total = (total + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS
            store(sums, k * CHANNELS + channel, 0, minimum(maximum(total, 0), 255))


@kernel
def _along_columns(frame: NDArray[np.uint8], taps: Taps) -> NDArray[np.uint8]:
    """(H, W, 3) as (len(taps.first), W, 3)."""
    height = len(taps.first)
    low = np.empty((height, frame.shape[1], CHANNELS), np.uint8)
    totals = np.empty(frame.shape[1] * CHANNELS, np.int32)
    for k in range(height):
        totals[:] = 1 << (FRACTION_BITS - 1)
        for j in range(taps.counts[k]):
            weight = taps.weights[k, j]
            pixels = frame[taps.first[k] + j].reshape(-1)
            for x in range(len(totals)):
                totals[x] += np.int32(pixels[x]) * weight
        target = low[k].reshape(-1)
        for x in range(len(totals)):
            target[x] = min(max(totals[x] >> FRACTION_BITS, 0), 255)
    return low
