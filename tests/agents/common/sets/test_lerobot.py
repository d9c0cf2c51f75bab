"""Walks as a LeRobot dataset: what it writes is read back by the library; what is wrong is said before.

The library does not go into one environment with habitat-lab. docs/train.md says how it is installed; with pytest
beside it these are run by

python -m pytest -p no:cacheprovider --noconftest -o addopts= tests/agents/common/sets/test_lerobot.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agents.common.sets import lerobot
from agents.common.sets.lerobot import write_lerobot
from vlnbench.errors import UsageError


def pixels(walk: int, frame: int, size: tuple[int, int] = (128, 96)) -> np.ndarray:
    return np.random.default_rng(10 * walk + frame).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)


@pytest.fixture
def walks(tmp_path: Path) -> Path:
    records = []
    for walk, count in enumerate((5, 7)):
        video = f"images/house{walk}_r2r_{walk}"
        (tmp_path / "set" / video / "rgb").mkdir(parents=True)
        for i in range(count):
            Image.fromarray(pixels(walk, i)).save(tmp_path / "set" / video / "rgb" / f"{i:03d}.png")
        actions = [-1, *(1 + i % 3 for i in range(count - 1))]
        told = {"instructions": [f"Go {walk}.", f"Walk {walk}."], "actions": actions, "strays": [2]}
        records.append({"id": walk, "video": video, **told})
    (tmp_path / "set" / "annotations.json").write_text(json.dumps(records))
    return tmp_path / "set"


@pytest.mark.filterwarnings("ignore")  # the library has its own
def test_what_is_written_is_read_back(walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pixel, action and text, in the order of the walks; the last action is STOP."""
    pytest.importorskip("lerobot", reason="LeRobot is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    written = write_lerobot(walks, tmp_path / "out", 4, videos=False)
    assert (written.episodes, written.frames) == (4, 24)
    found = LeRobotDataset("vlnbench/out", root=tmp_path / "out")
    assert (found.num_episodes, len(found), found.fps) == (4, 24, 4)
    expected = [
        (walk, frame, text)
        for walk, count in enumerate((5, 7))
        for text in (f"Go {walk}.", f"Walk {walk}.")
        for frame in range(count)
    ]
    for item, (walk, frame, text) in zip((found[i] for i in range(24)), expected, strict=True):
        image = item["observation.images.front"].numpy().transpose(1, 2, 0) * 255
        assert np.abs(image - pixels(walk, frame)).max() < 1e-3
        assert item["task"] == text
        assert item["action"].item() == (0 if frame == (5, 7)[walk] - 1 else 1 + frame % 3)
        assert item["is_example"].item() == (frame != 1)
        assert item["timestamp"].item() == pytest.approx(frame / 4)


def test_mistakes_are_one_line_and_write_nothing(
    walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="there: exists already"):
        write_lerobot(walks, tmp_path / "there", 3, videos=False)
    with pytest.raises(UsageError, match="--fps 0"):
        write_lerobot(walks, tmp_path / "out", 0, videos=False)
    monkeypatch.setattr(lerobot, "_dataset_type", lambda: None)
    first = walks / "images" / "house1_r2r_1" / "rgb" / "000.png"
    Image.fromarray(pixels(1, 0, (64, 48))).save(first)
    with pytest.raises(UsageError, match=r"000.png: 64 x 48 pixels, but .*house0.* has 128 x 96"):
        write_lerobot(walks, tmp_path / "out", 3, videos=False)
    assert not (tmp_path / "out").exists()


def test_without_the_library_that_is_said(walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lerobot.datasets.lerobot_dataset", None)
    with pytest.raises(UsageError, match="it needs an environment of its own"):
        write_lerobot(walks, tmp_path / "out", 3, videos=False)
    assert not (tmp_path / "out").exists()
