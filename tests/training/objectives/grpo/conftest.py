from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agents.streamvln.family import create
from tests.fakes import make_episode
from tests.runs import write_dataset
from tests.training.workshop import SMALL, TEXTS, write_walks


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small checkpoint, a set of walks, and episodes on a plane."""
    root = tmp_path_factory.mktemp("post-training")
    create(SMALL, root / "base", TEXTS * 20, seed=0)
    write_walks(root / "trajectories/R2R", (20, 12))
    (root / "trajectories" / "Questions").mkdir()
    (root / "trajectories" / "Questions" / "conversations.json").write_text("[]")
    episodes = [replace(make_episode(i, distance=4.0), instruction=TEXTS[i % 2]) for i in (1, 2, 8)]
    write_dataset(root / "data", "rxr-ce", [replace(each, instruction_id=each.episode_id) for each in episodes])
    for each in episodes:
        (root / "data" / "scene_datasets" / "mp3d" / each.scene_id).parent.mkdir(parents=True, exist_ok=True)
        (root / "data" / "scene_datasets" / "mp3d" / each.scene_id).touch()
    return root
