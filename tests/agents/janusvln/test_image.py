from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.common.qwen2_5_vl.image import grid_of, patches, scaled
from agents.janusvln.network import resize
from tests.agents.recorded import traces
from tests.agents.streamvln.frames import frame

SIZES = {
    (640, 480): (490, 17, 23),
    (320, 240): (490, 17, 23),
    (1280, 720): (364, 13, 23),
    (224, 224): (644, 23, 23),
    (480, 640): (644, 23, 23),
    (512, 384): (476, 17, 23),
}
"""Width and height of a camera -> height after resizing, embeddings down and across. 34.5 patches are 35 or 34."""


@pytest.mark.parametrize("camera", SIZES)
def test_sizes(camera: tuple[int, int]) -> None:
    width, height = camera
    shown = resize(np.zeros((height, width, 3), np.uint8))
    assert shown.shape[1] == 644
    assert (shown.shape[0], *grid_of(*shown.shape[:2])) == SIZES[camera]


def test_recorded_sizes(goldens: Path) -> None:
    for known in traces(goldens)["preprocess_sizes"]:
        width, height = known["input_wh"]
        shown = torch.from_numpy(resize(np.zeros((height, width, 3), np.uint8)))[None]
        assert list(scaled(shown).shape[1:]) == known["vggt_chw"]
        grid = grid_of(*shown.shape[1:3])
        assert [28 * grid.rows, 28 * grid.columns] == known["qwen_hw"]
        assert patches(shown).shape == (1, 4 * grid.cells, 1176)


def test_recorded_frames(goldens: Path) -> None:
    for known in traces(goldens)["vision"]:
        rgb = frame(known["frame_seed"], known["frame_episode"], known["step"])
        assert hashlib.sha256(rgb.tobytes()).hexdigest() == known["sha256_rgb"]
        shown = torch.from_numpy(resize(rgb))[None]
        image = scaled(shown)[0]
        assert list(image.shape) == known["vggt_input"]["shape"]
        for place in known["vggt_input"]["at"]:
            assert image[:, place["row"], place["col"]].tolist() == place["rgb"]
        cut = patches(shown)[0]
        for row, values in known["pixel_values"]["first6"].items():
            assert cut[int(row), :6].tolist() == pytest.approx(values, abs=1e-6)
        assert float(cut.mean()) == pytest.approx(known["pixel_values"]["mean"], abs=1e-5)
        assert float(cut.std()) == pytest.approx(known["pixel_values"]["std"], abs=1e-5)


def test_patches_of_an_embedding_follow_one_another() -> None:
    """Five rows of patches, of which the last has no embedding; each pixel says where it is."""
    y, x = torch.meshgrid(torch.arange(70), torch.arange(56), indexing="ij")
    shown = torch.stack((y, x, torch.full_like(y, 255)), dim=-1).to(torch.uint8)[None]
    cut = patches(shown)[0].reshape(16, 3, 2, 14, 14)
    assert torch.equal(cut[:, :, 0], cut[:, :, 1])
    mean, std = torch.tensor([0.48145466, 0.4578275]), torch.tensor([0.26862954, 0.26130258])
    corners = (cut[:, :2, 0, 0, 0] * std + mean) * 255
    order = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    expected = [(14 * (row + down), 14 * column) for down in (0, 2) for row, column in order]
    torch.testing.assert_close(corners, torch.tensor(expected).float(), atol=1e-3, rtol=0)
    assert cut[0, 2, 0, 0, 0].item() == pytest.approx((1 - 0.40821073) / 0.27577711)


def test_a_tall_frame_loses_its_top_and_its_bottom() -> None:
    rgb = np.repeat(np.arange(200, dtype=np.uint8)[:, None, None], 100, axis=1).repeat(3, axis=2)
    shown = resize(rgb)
    assert shown.shape == (644, 644, 3)
    assert abs(int(shown[0, 0, 0]) - 50) <= 1
    assert abs(int(shown[-1, 0, 0]) - 149) <= 1


def test_a_frame_too_flat_for_one_embedding_is_refused() -> None:
    with pytest.raises(ValueError, match="frames of 640 x 10 pixels are too flat"):
        resize(np.zeros((10, 640, 3), np.uint8))
