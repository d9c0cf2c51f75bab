from __future__ import annotations

from pathlib import Path

import pytest

from agents.streamvln import checkpoint
from agents.streamvln.model import StreamVLN


@pytest.fixture(scope="session")
def recorded_folder(shared: Path) -> Path:
    """Recordings of the published code, with the small checkpoint they were made with."""
    return shared / "goldens" / "streamvln"


@pytest.fixture(scope="session")
def recorded_model(recorded_folder: Path) -> StreamVLN:
    return checkpoint.load(recorded_folder / "checkpoint", vision_tower=recorded_folder / "vision_tower")
