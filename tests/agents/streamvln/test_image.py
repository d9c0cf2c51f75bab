from __future__ import annotations

import hashlib
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from agents.common.sight.augment import augment
from agents.common.towers.siglip import network_input, resize
from tests.agents.recorded import traces
from tests.agents.streamvln.frames import frame


@pytest.fixture
def vision(shared: Path) -> list[dict]:
    return traces(shared / "goldens" / "streamvln")["vision"]


def test_network_inputs_are_the_recorded_ones(vision: list[dict]) -> None:
    for entry in vision:
        rgb = frame(entry["frame_seed"], entry["frame_episode"], entry["step"])
        assert hashlib.sha256(rgb.tobytes()).hexdigest() == entry["sha256_rgb"]
        (pixels,) = network_input([resize(rgb, 384)]).numpy()
        for point in entry["pixel_values_at"]:
            assert pixels[:, point["row"], point["col"]].tolist() == point["rgb"]
        np.testing.assert_allclose(pixels.mean((1, 2)), entry["pixel_values_mean"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(pixels.std((1, 2), ddof=1), entry["pixel_values_std"], rtol=0, atol=1e-6)


def test_resized_frames_are_small_bytes_and_inputs_are_float32() -> None:
    small = resize(np.full((480, 640, 3), 255, np.uint8), 384)
    assert (small.dtype, small.shape, small.nbytes) == (np.uint8, (384, 384, 3), 442368)
    pixels = network_input([small, 0 * small])
    assert pixels.shape == (2, 3, 384, 384)
    assert pixels.dtype.is_floating_point
    assert (pixels[0].unique().item(), pixels[1].unique().item()) == (1.0, -1.0)


@cache
def picture() -> Image.Image:
    return Image.fromarray(frame(1, 2, 3)[::8, ::8] // 2 + 40)


@given(st.integers(0, 10**6))
def test_the_same_draw_augments_alike_and_keeps_the_size(seed: int) -> None:
    first = augment(picture(), random.Random(seed))
    assert (first.size, first.mode) == (picture().size, "RGB")
    assert first.tobytes() == augment(picture(), random.Random(seed)).tobytes()


def test_augmentations_differ_and_each_happens_half_the_time() -> None:
    images = [np.asarray(augment(picture(), random.Random(seed))) for seed in range(300)]
    assert len({image.tobytes() for image in images}) == 300
    stretched = np.mean([image.min() == 0 and image.max() == 255 for image in images])
    coarse = np.mean([len(np.unique(image)) <= 16 for image in images])
    assert 0.4 < stretched < 0.65
    assert 0.15 < coarse < 0.35  # posterized and not sharpened afterwards


def test_jitter_keeps_brightness_and_saturation_within_a_fifth() -> None:
    gray = Image.new("RGB", (8, 8), (100, 100, 100))
    levels = [np.asarray(augment(gray, random.Random(seed))).max() for seed in range(200)]
    plain = [level for level in levels if level not in (0, 255)]
    assert min(plain) >= 80 - 15  # posterizing rounds down by up to 15
    assert max(plain) <= 120
    assert max(plain) - min(plain) > 30
