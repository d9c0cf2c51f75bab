from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.embedded.render.shrink import _columns_first, _equal_to_pillow, _rows_first, by_pillow, shrink

SIZE = st.integers(1, 70)


@settings(max_examples=60, deadline=None)
@given(height=SIZE, width=SIZE, rows=SIZE, columns=SIZE, seed=st.integers(0, 99), contrast=st.booleans())
def test_any_frame_is_resized_as_by_pillow(
    height: int, width: int, rows: int, columns: int, seed: int, contrast: bool
) -> None:
    generator = np.random.default_rng(seed)
    frame = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if contrast:  # the filter overshoots: results are cut off at 0 and 255
        frame = np.where(frame < 128, 0, 255).astype(np.uint8)
    assert np.array_equal(shrink(frame, rows, columns), by_pillow(frame, rows, columns))


@pytest.mark.parametrize("size", [(96, 96), (384, 384), (240, 320)])
def test_camera_frames_are_resized_as_by_pillow_and_not_by_it(size: tuple[int, int]) -> None:
    y, x = np.mgrid[0:480, 0:640]
    frame = np.stack([x // 3, (x * y) // 997, (x // 16 + y // 16) % 2 * 255], axis=-1).astype(np.uint8)
    assert np.array_equal(shrink(frame, *size), by_pillow(frame, *size))
    assert _equal_to_pillow((480, 640), size) is not by_pillow


@pytest.mark.parametrize("way", [_rows_first, _columns_first])
def test_either_axis_alone_is_exact(way: object) -> None:
    frame = np.random.default_rng(1).integers(0, 256, (41, 57, 3), dtype=np.uint8)
    for size in ((41, 20), (13, 57)):
        assert np.array_equal(way(frame, *size), by_pillow(frame, *size))  # type: ignore[operator]


def test_parts_of_larger_arrays_will_do() -> None:
    frame = np.random.default_rng(2).integers(0, 256, (60, 80, 3), dtype=np.uint8)[::2, 5:65]
    assert np.array_equal(shrink(frame, 9, 11), by_pillow(np.ascontiguousarray(frame), 9, 11))
