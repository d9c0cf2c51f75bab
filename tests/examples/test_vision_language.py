"""A model of transformers in one file: it answers, is asked with the frames that it was told, and is evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.examples.test_examples import EXAMPLES, run
from tests.examples.tiny_idefics3 import write_tiny
from tests.fakes import make_episode
from vlnbench.conformance import AgentConformance
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Observation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import vision_language

    return vision_language


def agent_of(example: Any, folder: Path, **options: Any) -> Any:
    return example.VisionLanguageAgent(example.VisionLanguageOptions(checkpoint=folder, device="cpu", **options))


class TestVisionLanguage(AgentConformance):
    @pytest.fixture(autouse=True)
    def _made(self, example: Any, folder: Path) -> None:
        self._agent = agent_of(example, folder, max_new_tokens=4)

    def make_agent(self) -> Agent:
        made: Agent = self._agent
        return made


def test_it_does_what_the_model_answers(example: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(example, folder, history=1, actions_per_answer=2)
    episode = make_episode(0)
    answers, asked = ["TURN_LEFT MOVE_FORWARD", "TURN_RIGHT", "no action"], []

    def generate(input_ids: torch.Tensor, **given: Any) -> torch.Tensor:
        asked.append((agent.processor.decode(input_ids[0]), given["pixel_values"].shape[1]))
        answer = agent.processor.tokenizer(answers[len(asked) - 1], return_tensors="pt")["input_ids"]
        return torch.cat([input_ids, answer], dim=1)

    monkeypatch.setattr(agent.model, "generate", generate)
    agent.reset(0, episode, 0)
    done = []
    for step in range(4):
        seen = Observation(episode.instruction, step, rgb=np.full((48, 64, 3), step, np.uint8))
        done.append(agent.act({0: seen})[0])
    assert done == [Action.TURN_LEFT, Action.MOVE_FORWARD, Action.TURN_RIGHT, Action.STOP]
    assert [images for _, images in asked] == [1, 2, 2]
    assert all(episode.instruction in text for text, _ in asked)
    assert "TURN_LEFT, MOVE_FORWARD" in asked[1][0]
    assert agent.remarks == "1 answers could not be read and counted as STOP"


def test_what_is_no_model_is_a_line(example: Any, folder: Path, tmp_path: Path) -> None:
    for checkpoint, line in ((None, "--checkpoint"), (tmp_path / "none", str(tmp_path / "none"))):
        with pytest.raises(UsageError, match=line):
            agent_of(example, checkpoint)
    (tmp_path / "broken").mkdir()
    for each in folder.iterdir():
        (tmp_path / "broken" / each.name).write_bytes(each.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "unheard-of"}
    (tmp_path / "broken" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="unheard-of"):
        agent_of(example, tmp_path / "broken")


def test_it_is_one_file_of_at_most_150_lines() -> None:
    assert len((EXAMPLES / "vision_language.py").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.slow
def test_it_is_evaluated(houses: Path, folder: Path, tmp_path: Path) -> None:
    """The whole way, from the command line to rows, with a network of random weights."""
    agent = ("--agent", "vision_language:VisionLanguageAgent", "--checkpoint", folder, "--max-new-tokens", "4")
    where = ("--data-root", houses, "--episodes", "2", "--envs", "1", "--device", "cpu", "--out", tmp_path / "run")
    run("-m", "vlnbench", "eval", *agent, *where, cwd=tmp_path)
    identity = json.loads((tmp_path / "run" / "manifest.json").read_text())["identity"]
    assert identity["agent_identity"]["max_new_tokens"] == 4
    rows = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(row)["status"] for row in rows] == ["ok", "ok"]
