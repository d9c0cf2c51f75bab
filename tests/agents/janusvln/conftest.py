from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agents.common.qwen2_5_vl import checkpoint
from agents.janusvln.agent import Prompts
from agents.janusvln.network import JanusVLN, load


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """As the recordings were made; and models this small only lose by sharing their work out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def goldens(shared: Path) -> Path:
    """Recordings of the published code, with the small checkpoint they were made with."""
    return shared / "goldens" / "janusvln"


@pytest.fixture(scope="session")
def recorded_model(goldens: Path) -> JanusVLN:
    return load(goldens / "checkpoint")


@pytest.fixture(scope="session")
def prompts(goldens: Path, recorded_model: JanusVLN) -> Prompts:
    return Prompts(checkpoint.load_tokenizer(goldens / "checkpoint", recorded_model.config))
