"""Collected walks as a dataset of LeRobot, written by its own library: frames, actions, instructions as tasks.

Written for lerobot 0.4 (dataset format 3.0), whose libraries are others than habitat-lab's: this module runs
without those, in an environment where only LeRobot is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from agents.common.sets.trajectories import Trajectory, read_trajectories
from vlnbench.errors import UsageError
from vlnbench.util.durable.folder import appearing
from vlnbench.util.progress import Progress

CAMERA = "observation.images.front"


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: an episode for every instruction of every walk."""

    episodes: int
    frames: int


def write_lerobot(folder: Path, out: Path, fps: int, videos: bool) -> Written:
    """Write the walks below `folder` (StreamVLN's layout) to `out` as a LeRobot dataset named like that folder.

    Features of a frame: `observation.images.front` (height, width, 3; uint8), `action` (1; what is to be done at
    it: 0 STOP, 1 FORWARD, 2 LEFT, 3 RIGHT), `is_example` (1; 0 where what was done is not to be learned), and the
    instruction as `task`. fps: steps have no clock; timestamps are the number of the step over this. videos:
    frames as compressed videos, which change them, instead of images. The dataset is there as a whole or not at
    all. Raises UsageError, with nothing written, without the library, for walks that break their format, for
    pictures of several sizes and for an `out` that exists.
    """
    if fps < 1:
        raise UsageError(f"--fps {fps}: expected at least 1")
    if out.exists():
        raise UsageError(f"{out}: exists already; choose another --out")
    dataset_type = _dataset_type()
    walks = read_trajectories(folder, shortest=1)
    width, height = _size(walks)
    image = {"dtype": "video" if videos else "image", "shape": (height, width, 3)}
    features = {
        CAMERA: {**image, "names": ["height", "width", "channels"]},
        "action": {"dtype": "int64", "shape": (1,), "names": ["action"]},
        "is_example": {"dtype": "int64", "shape": (1,), "names": ["is_example"]},
    }
    total = sum(len(walk.instructions) for walk in walks)
    episodes = frames = 0
    with appearing(out, "dataset") as made, Progress("writing episodes") as progress:
        made.rmdir()  # the library makes it itself
        dataset = dataset_type.create(
            repo_id=f"vlnbench/{out.name}", fps=fps, features=features, root=made, use_videos=videos
        )
        for walk in walks:
            for instruction in walk.instructions:
                frames += _add(dataset, walk, instruction)
                episodes += 1
                progress.update(episodes, total)
        dataset.finalize()
    return Written(episodes, frames)


def _dataset_type() -> Any:
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise UsageError(
            f"LeRobot's library cannot be imported ({error}); it needs an environment of its own, see "
            "docs/how-to/collect.md"
        ) from error
    return LeRobotDataset


def _size(walks: list[Trajectory]) -> tuple[int, int]:
    """Width and height of all pictures, told from the first of every walk."""
    sizes: dict[tuple[int, int], Path] = {}
    for walk in walks:
        first = walk.frames()[0]
        with Image.open(first) as image:
            sizes.setdefault(image.size, first)
    if len(sizes) > 1:
        (one, here), (other, there) = list(sizes.items())[:2]
        raise UsageError(f"{there}: {other[0]} x {other[1]} pixels, but {here} has {one[0]} x {one[1]}")
    return next(iter(sizes))


def _add(dataset: Any, walk: Trajectory, instruction: str) -> int:
    """Add an episode; returns its frames."""
    actions = walk.taught
    for i, (path, action) in enumerate(zip(walk.frames(), actions, strict=True)):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        example = np.array([i not in walk.strays], np.int64)
        dataset.add_frame(
            {CAMERA: pixels, "action": np.array([action], np.int64), "is_example": example, "task": instruction}
        )
    dataset.save_episode()
    return len(actions)
