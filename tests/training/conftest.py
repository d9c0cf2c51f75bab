from __future__ import annotations

from pathlib import Path

import pytest

from envs.houses.dataset import generate
from vlnbench.houses_config import HousesConfig


@pytest.fixture(scope="session")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data root with a small houses benchmark."""
    root = tmp_path_factory.mktemp("houses")
    generate(
        root,
        HousesConfig(
            train_houses=2,
            val_unseen_houses=1,
            train_episodes=12,
            val_seen_episodes=4,
            val_unseen_episodes=4,
        ),
    )
    return root
