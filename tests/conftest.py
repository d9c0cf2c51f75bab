from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of reference recordings and real episodes beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("reference data folder ../shared is not beside this checkout")
    return SHARED
