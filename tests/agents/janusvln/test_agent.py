"""The agent: with the small checkpoint by formula, and what the user may get wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.janusvln import agent as module
from agents.janusvln.agent import JanusVLNAgent, Prompts
from agents.janusvln.options import JanusVLNOptions
from tests.agents.janusvln.tiny import write_tiny
from tests.agents.readable import by_tokens
from vlnbench.conformance import AgentConformance
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Agent, Observation, Scalar


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> JanusVLNOptions:
    folder = tmp_path_factory.mktemp("janusvln") / "checkpoint"
    write_tiny(folder)
    return JanusVLNOptions(checkpoint=folder, device="cpu", max_new_tokens=4)


@pytest.fixture(scope="module")
def agent(options: JanusVLNOptions) -> Iterator[JanusVLNAgent]:
    with closing(JanusVLNAgent(options)) as agent:
        yield agent


class TestJanusVLN(AgentConformance):
    @pytest.fixture(autouse=True)
    def _options(self, options: JanusVLNOptions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options = replace(options, max_steps=3)  # every frame takes its time
        monkeypatch.setattr(Prompts, "read", by_tokens)

    def make_agent(self) -> Agent:
        return JanusVLNAgent(self.options)


def test_it_fits_the_benchmarks_it_was_trained_for(agent: JanusVLNAgent) -> None:
    for name in ("r2r-ce", "rxr-ce", "houses-r2r"):
        assert not agent.expects.conflicts(get_benchmark(name).body)
    for name in ("r2r-vlnce", "rxr-habitat"):
        assert agent.expects.conflicts(get_benchmark(name).body)


def test_the_description_says_what_was_loaded_and_what_it_takes(agent: JanusVLNAgent) -> None:
    """A frame: 2 of 3 blocks, keys and values of 1613 tokens of 16 numbers of 4 bytes."""
    for part in (
        "mm_vision 0.0 M, mm_mlp 0.0 M, vggt 0.0 M, geometry_merger 0.0 M, mm_llm 0.0 M",
        "float32 on cpu, sdpa attention",
        "geometry 0.4 MB per frame, at most 0.024 GB",
        "images 0.01 GB of the host's after 400 steps",
    ):
        assert part in agent.description


def test_forced_and_unreadable_stops_are_told(options: JanusVLNOptions) -> None:
    with closing(JanusVLNAgent(replace(options, max_steps=1))) as agent:
        assert agent.remarks == ""
        seen = TestJanusVLN()
        agent.reset(0, seen.make_episode(), 0)
        observations = [seen.observe(agent, step) for step in range(2)]
        assert agent.act({0: observations[0]}) == {0: Action.STOP}
        assert agent.remarks == "1 answers were none of the four actions and counted as STOP"
        assert agent.act({0: observations[1]}) == {0: Action.STOP}
        assert agent.remarks.endswith("1 episodes were stopped at --max-steps 1")


def identity(options: JanusVLNOptions, **changes: Any) -> dict[str, Scalar]:
    with closing(JanusVLNAgent(replace(options, **changes))) as agent:
        return dict(agent.identity)


def test_identity_changes_with_what_decides_answers_and_with_nothing_else(
    options: JanusVLNOptions, tmp_path: Path
) -> None:
    own = identity(options)
    copy = tmp_path / "elsewhere"
    write_tiny(copy)
    assert identity(options, max_batch=1, checkpoint=copy) == own
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": 258, "repetition_penalty": 1.1}))
    changed = {
        "checkpoint": identity(options, checkpoint=copy),
        "attn": identity(options, attn="eager"),
        "dtype": identity(options, dtype="bfloat16"),
        "max_new_tokens": identity(options, max_new_tokens=9),
        "num_history": identity(options, history=4),
        "max_steps": identity(options, max_steps=500),
    }
    for name, other in changed.items():
        assert {key for key in own if own[key] != other[key]} == {name}
    assert own["max_steps"] == 400


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": None}, "agent 'janusvln' needs a trained model: name its folder with --checkpoint"),
        ({"checkpoint": Path("nowhere")}, "--checkpoint nowhere: no such file or folder"),
        ({"max_batch": 0}, "--max-batch 0: expected 1 or more"),
        ({"max_new_tokens": 0}, "--max-new-tokens 0: expected 1 or more"),
        ({"history": 0}, "--history 0: expected 1 or more"),
        ({"max_steps": 0}, "--max-steps 0: expected 1 or more"),
        ({"dtype": "float16"}, "--dtype float16: not on the CPU"),
        ({"device": "cuda:99"}, "--device cuda:99: this machine has . CUDA devices"),
        ({"tokenizer": Path("nowhere")}, None),
    ],
)
def test_options_that_cannot_be_met_are_one_line(
    options: JanusVLNOptions, changes: dict[str, Any], message: str | None
) -> None:
    if message is None:  # the checkpoint has a tokenizer, another is not looked at
        JanusVLNAgent(replace(options, **changes)).close()
        return
    with pytest.raises(UsageError, match=message) as caught:
        JanusVLNAgent(replace(options, **changes))
    assert "\n" not in str(caught.value)


def test_a_version_with_wrong_positions_is_refused(
    options: JanusVLNOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.transformers, "__version__", "5.5.1")
    with pytest.raises(UsageError, match=r"transformers 5\.5\.1 gives the images of Qwen2\.5-VL wrong positions"):
        JanusVLNAgent(options)


def test_slots_may_come_and_go(agent: JanusVLNAgent) -> None:
    """A new episode in a slot has forgotten the old one, whatever runs beside it."""
    seen = TestJanusVLN()

    def act(slots: list[int], step: int) -> None:
        observation: Observation = seen.observe(agent, step)
        agent.act(dict.fromkeys(slots, observation))

    for slot in (0, 1):
        agent.reset(slot, seen.make_episode(), 0)
    act([0, 1], 0)
    act([1], 1)
    agent.reset(0, seen.make_episode(), 0)
    act([1, 0], 2)
    counts = [len(agent._decoder.memory(slot).images) for slot in (0, 1)]
    assert counts == [1, 3]
