from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envs.houses.files.dataset import generate
from envs.houses.files.manifest import HousesManifest
from envs.houses.options import HousesConfig

TINY = HousesConfig(
    seed=3,
    train_houses=2,
    val_unseen_houses=1,
    train_episodes=36,
    val_seen_episodes=13,
    val_unseen_episodes=12,
    rooms_max=12,
    storeys_share=0.5,
    distractors=1,
)


@dataclass(frozen=True)
class Generated:
    root: Path
    config: HousesConfig
    manifest: HousesManifest

    def split(self, name: str) -> dict[str, Any]:
        return read_json(self.root / f"datasets/houses_r2r/{name}/{name}.json.gz")

    def rxr(self, name: str) -> dict[str, Any]:
        """Of a stem such as val_unseen_guide."""
        split = name.removesuffix("_gt").rpartition("_")[0]
        return read_json(self.root / f"datasets/houses_rxr/{split}/{name}.json.gz")

    def truth(self, name: str) -> dict[str, Any]:
        return read_json(self.root / f"datasets/houses_r2r/{name}/{name}_gt.json.gz")


def read_json(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        content: dict[str, Any] = json.load(file)
    return content


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    """A small benchmark: two train houses, one unseen."""
    root = tmp_path_factory.mktemp("houses")
    return Generated(root, TINY, generate(root, TINY))
