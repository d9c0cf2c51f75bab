from __future__ import annotations

import os
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers have the cores; before anything imports torch

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of reference recordings and real episodes beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("reference data folder ../shared is not beside this checkout")
    return SHARED
