from __future__ import annotations

from pathlib import Path

import pytest

from agents.common.qwen2_5_vl import checkpoint
from agents.janusvln.agent import Prompts
from agents.janusvln.network import JanusVLN, load
from tests.agents.recorded import goldens_of
from tests.agents.recorded import one_thread as one_thread

goldens = goldens_of("janusvln")


@pytest.fixture(scope="session")
def recorded_model(goldens: Path) -> JanusVLN:
    return load(goldens / "checkpoint")


@pytest.fixture(scope="session")
def prompts(goldens: Path, recorded_model: JanusVLN) -> Prompts:
    return Prompts(checkpoint.load_tokenizer(goldens / "checkpoint", recorded_model.config))
