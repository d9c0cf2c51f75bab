"""The checkpoints that come with vlnbench."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.streamvln import network as checkpoint
from agents.streamvln.agent import Prompts
from agents.streamvln.options import FAMILY, StreamVLNOptions
from tests.training.geometry import config_of
from vlnbench.errors import UsageError
from vlnbench.rollout.agents import load_agent
from vlnbench.training.family.sources import find_checkpoint, shipped

NAMES = ("streamvln-tiny", "streamvln-tiny-base")


@pytest.mark.parametrize("name", NAMES)
def test_shipped_checkpoints_are_small_whole_and_safe(name: str) -> None:
    folder = shipped()[name]
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".md"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10e6
    model = checkpoint.load(folder)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert len(Prompts(checkpoint.load_tokenizer(folder)).action_ids()) == 4
    assert (model.config.num_frames, model.config.num_history, model.config.num_future_steps) == (128, 8, 4)


def test_names_stand_for_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(shipped()) == ("cma-tiny", "cma-tiny-base", "seq2seq-tiny", "seq2seq-tiny-base", *NAMES)
    assert find_checkpoint(NAMES[1], FAMILY) == shipped()[NAMES[1]]
    assert config_of(NAMES[1]).vocab_size == checkpoint.load(find_checkpoint(NAMES[1], FAMILY)).config.vocab_size
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAMES[0]).mkdir()
    assert find_checkpoint(NAMES[0], FAMILY) == Path(NAMES[0])  # a folder of the user's comes first
    with pytest.raises(UsageError, match="--checkpoint elsewhere: no such file or folder, and unknown checkpoint"):
        find_checkpoint("elsewhere", FAMILY)


def test_the_small_agent_brings_its_checkpoint() -> None:
    agent = load_agent("streamvln-tiny", StreamVLNOptions())
    assert agent.sensors == {"rgb"}
    with pytest.raises(UsageError, match="has its own checkpoint: use --agent streamvln for another"):
        load_agent("streamvln-tiny", StreamVLNOptions(checkpoint=Path("other")))
