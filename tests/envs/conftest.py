from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data root with the smallest houses benchmark: two houses, six episodes per split."""
    from envs.houses.dataset import generate
    from vlnbench.houses_config import HousesConfig

    root = tmp_path_factory.mktemp("houses")
    config = HousesConfig(
        train_houses=1, val_unseen_houses=1, train_episodes=6, val_seen_episodes=6, val_unseen_episodes=6
    )
    generate(root, config)
    return root
