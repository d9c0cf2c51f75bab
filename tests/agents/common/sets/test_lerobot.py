"""Walks as a LeRobot dataset: what it writes is read back by the library; what is wrong is said before.

The library does not go into one environment with habitat-lab. docs/how-to/collect.md says how it is installed;
with pytest beside it these are run by

python -m pytest -p no:cacheprovider --noconftest -o addopts= tests/agents/common/sets/test_lerobot.py
"""

from __future__ import annotations

import json
import signal
import subprocess
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


KILLED = """
import os, signal, sys
from pathlib import Path
from agents.common.sets import lerobot

class Library:
    # Writes as LeRobot does, into the folder that it makes, and is killed at an episode.
    def __init__(self, root):
        self.root, self.episodes = root, 0
        root.mkdir()
    @classmethod
    def create(cls, *, repo_id, fps, features, root, use_videos):
        assert repo_id == "vlnbench/out"
        return cls(root)
    def add_frame(self, frame):
        (self.root / "data").write_text("half")
    def save_episode(self):
        self.episodes += 1
        if self.episodes == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
    def finalize(self):
        (self.root / "info").write_text("whole")

lerobot._dataset_type = lambda: Library
lerobot.write_lerobot(Path(sys.argv[1]), Path(sys.argv[2]), 3, False)
"""


def test_a_kill_leaves_no_dataset_and_the_same_command_writes_it(walks: Path, tmp_path: Path) -> None:
    out = tmp_path / "written" / "out"
    for killed_at in (2, 0):
        command = [sys.executable, "-c", KILLED, str(walks), str(out), str(killed_at)]
        found = subprocess.run(command, check=False, capture_output=True, text=True)
        assert found.returncode == (-signal.SIGKILL if killed_at else 0), found.stderr
        assert out.exists() is not bool(killed_at)
    assert (out / "info").read_text() == "whole"
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_without_the_library_that_is_said(walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lerobot.datasets.lerobot_dataset", None)
    with pytest.raises(UsageError, match="it needs an environment of its own"):
        write_lerobot(walks, tmp_path / "out", 3, videos=False)
    assert not (tmp_path / "out").exists()
