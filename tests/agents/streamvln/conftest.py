from __future__ import annotations

from pathlib import Path

import pytest

from agents.streamvln import network as checkpoint
from agents.streamvln.agent import Prompts
from agents.streamvln.network import StreamVLN, load_tokenizer
from tests.agents.recorded import goldens_of
from tests.agents.recorded import one_thread as one_thread

goldens = goldens_of("streamvln")


@pytest.fixture(scope="session")
def recorded_model(goldens: Path) -> StreamVLN:
    return checkpoint.load(goldens / "checkpoint", vision_tower=goldens / "vision_tower")


@pytest.fixture(scope="session")
def prompts(goldens: Path) -> Prompts:
    return Prompts(load_tokenizer(goldens / "checkpoint"))
