"""The checkpoints that come with vlnbench."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.streamvln import checkpoint
from agents.streamvln.options import StreamVLNOptions
from agents.streamvln.prompt import Prompts
from vlnbench.errors import UsageError
from vlnbench.rollout.agents import load_agent
from vlnbench.training.memory.trace import model_config

NAMES = ("streamvln-tiny", "streamvln-tiny-base")


@pytest.mark.parametrize("name", NAMES)
def test_shipped_checkpoints_are_small_whole_and_safe(name: str) -> None:
    folder = checkpoint.shipped()[name]
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10e6
    model = checkpoint.load(folder)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert len(Prompts(checkpoint.load_tokenizer(folder)).symbol_ids()) == 4
    assert (model.config.num_frames, model.config.num_history, model.config.num_future_steps) == (64, 8, 4)


def test_names_stand_for_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(checkpoint.shipped()) == NAMES
    assert checkpoint.find(NAMES[1]) == checkpoint.shipped()[NAMES[1]]
    assert model_config(NAMES[1]).vocab_size == checkpoint.load(checkpoint.find(NAMES[1])).config.vocab_size
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAMES[0]).mkdir()
    assert checkpoint.find(NAMES[0]) == Path(NAMES[0])  # a folder of the user's comes first
    assert checkpoint.find("elsewhere") == Path("elsewhere")


def test_the_small_agent_brings_its_checkpoint() -> None:
    agent = load_agent("streamvln-tiny", StreamVLNOptions())
    assert agent.sensors == {"rgb"}
    with pytest.raises(UsageError, match="has its own checkpoint: use --agent streamvln for another"):
        load_agent("streamvln-tiny", StreamVLNOptions(checkpoint=Path("other")))
