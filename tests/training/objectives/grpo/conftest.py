from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agents.streamvln.presets import create
from tests.fakes import make_episode
from tests.runs import write_dataset
from tests.training.objectives.grpo.test_learner import SMALL, TEXTS


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small checkpoint, a set of walks, and episodes on a plane."""
    root = tmp_path_factory.mktemp("post-training")
    create(SMALL, root / "base", TEXTS * 20, seed=0)
    records = []
    rng = np.random.default_rng(0)
    for number, length in enumerate((20, 12)):
        video = f"images/scan_r2r_{number:06d}"
        folder = root / "trajectories" / "R2R" / video / "rgb"
        folder.mkdir(parents=True)
        for i in range(length):
            Image.fromarray(np.full((24, 32, 3), rng.integers(256, size=3), dtype=np.uint8)).save(
                folder / f"{i:03d}.jpg"
            )
        actions = [-1, *(int(rng.integers(1, 4)) for _ in range(length - 1))]
        records.append({"id": number, "video": video, "instructions": list(TEXTS), "actions": actions})
    (root / "trajectories" / "R2R" / "annotations.json").write_text(json.dumps(records))
    (root / "trajectories" / "Questions").mkdir()
    (root / "trajectories" / "Questions" / "conversations.json").write_text("[]")
    episodes = [replace(make_episode(i, distance=4.0), instruction=TEXTS[i % 2]) for i in (1, 2, 8)]
    write_dataset(root / "data", "rxr-ce", [replace(each, instruction_id=each.episode_id) for each in episodes])
    for each in episodes:
        (root / "data" / "scene_datasets" / "mp3d" / each.scene_id).parent.mkdir(parents=True, exist_ok=True)
        (root / "data" / "scene_datasets" / "mp3d" / each.scene_id).touch()
    return root
