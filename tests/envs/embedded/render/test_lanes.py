"""Vector values in compiled kernels against numpy, and filtering against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs.embedded.kernels.jit import kernel
from envs.embedded.render import lanes
from envs.embedded.render.simd import GROUP, filter_group, mix_group

FLOATS = np.array([[1.5, -2.5, 0.0, 7.25, -0.75, np.nan, 100.0, -1e30]], np.float32)
OTHERS = np.array([[1.25, 2.5, -1.0, 7.5, -0.5, 1.0, 99.0, 3.0]], np.float32)


@kernel
def _float_results(a: NDArray[np.float32], b: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    x, y = lanes.load(a, 0, 0), lanes.load(b, 0, 0)
    lanes.store(out, 0, 0, (x + y) * 2 - x / y)
    lanes.store(out, 1, 0, lanes.floor(x))
    lanes.store(out, 2, 0, lanes.maximum(x, y))
    lanes.store(out, 3, 0, lanes.minimum(x, 1.0))
    lanes.store(out, 4, 0, lanes.where_greater(x, y, x, 5.0))


@kernel
def _int_results(a: NDArray[np.int32], out: NDArray[np.int32]) -> None:
    x = lanes.load(a, 0, 0)
    lanes.store(out, 0, 0, ((x + 3) * x - 1) << 2)
    lanes.store(out, 1, 0, (x >> 1) & 255 | lanes.counting(40))
    lanes.store(out, 2, 0, lanes.where_equal(x, 4, 70, lanes.maximum(x, -2)))
    lanes.store(out, 3, 0, lanes.truncated(lanes.converted(x) * 0.5))
    lanes.store(out, 4, 0, lanes.bit_pattern(lanes.converted(x)))
    lanes.store(out, 5, 0, lanes.counting(0) * 0 + lanes.lowest(x))
    lanes.store(out, 6, 0, lanes.counting(0) * 0 + lanes.highest(x))


def test_floats() -> None:
    out = np.empty((5, lanes.LANES), np.float32)
    _float_results(FLOATS, OTHERS, out)
    x, y = FLOATS[0], OTHERS[0]
    expected = [
        (x + y) * np.float32(2) - x / y,
        np.floor(x),
        np.where(x > y, x, y),
        np.where(x < 1, x, 1),
        np.where(x > y, x, 5),
    ]
    assert np.array_equal(out, np.array(expected, np.float32), equal_nan=True)


def test_ints() -> None:
    x = np.array([-9, 4, 0, 1, 77, -1, 4, 1000], np.int32)
    out = np.empty((7, lanes.LANES), np.int32)
    _int_results(x[None], out)
    expected = [
        ((x + 3) * x - 1) << 2,
        (x >> 1) & 255 | np.arange(40, 48),
        np.where(x == 4, 70, np.maximum(x, -2)),
        np.trunc(x * 0.5),
        x.astype(np.float32).view(np.int32),
        np.full(8, x.min()),
        np.full(8, x.max()),
    ]
    assert np.array_equal(out, np.array(expected, np.int32))


@kernel
def _filtered(line: NDArray[np.int32], texels: NDArray[np.uint32]) -> None:
    filter_group(line, 0, GROUP, texels, 3)
    mix_group(line, 3, 4, 5, GROUP)


@pytest.mark.parametrize("seed", range(5))
def test_filtering(seed: int) -> None:
    rng = np.random.default_rng(seed)
    channels = rng.integers(0, 256, (50, 4), dtype=np.uint8)
    channels[:10] = rng.choice([0, 255], (10, 4))
    texels: NDArray[Any] = channels.view("<u4")[:, 0].copy()
    upper, lower = rng.integers(0, 49, (2, GROUP))
    right, below, share = rng.integers(0, 256, (3, GROUP))
    other = rng.integers(0, 256, (GROUP, 4), dtype=np.uint8)
    line = np.zeros((6, 3 * GROUP), np.int32)
    group = slice(GROUP, 2 * GROUP)
    line[:3, group] = upper, lower, right | below << 16
    line[4, group] = other.view("<i4")[:, 0]
    line[5, group] = share
    _filtered(line, texels)

    def mixed(a: Any, b: Any, part: Any) -> Any:
        return (a.astype(int) * (256 - part[:, None]) + b.astype(int) * part[:, None] + 128) >> 8

    left = mixed(channels[upper], channels[lower], below)
    color = mixed(left, mixed(channels[upper + 1], channels[lower + 1], below), right)
    found = np.ascontiguousarray(line[3, group]).view(np.uint8).reshape(GROUP, 4)
    assert np.array_equal(found, mixed(color, other, share))
    assert not line[:, :GROUP].any()
    assert not line[:, 2 * GROUP :].any()
