from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agents.streamvln import network as checkpoint
from agents.streamvln.agent import Prompts
from agents.streamvln.network import StreamVLN, load_tokenizer


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
    return shared / "goldens" / "streamvln"


@pytest.fixture(scope="session")
def recorded_model(goldens: Path) -> StreamVLN:
    return checkpoint.load(goldens / "checkpoint", vision_tower=goldens / "vision_tower")


@pytest.fixture(scope="session")
def prompts(goldens: Path) -> Prompts:
    return Prompts(load_tokenizer(goldens / "checkpoint"))
