"""The agent with the tiny reference checkpoint: whole recorded episodes, and what the user may get wrong."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.common.decoders.loop import EpisodeLoop
from agents.common.decoders.windows import Windows
from agents.streamvln.agent import StreamVLNAgent, StreamVLNTinyAgent
from agents.streamvln.options import StreamVLNOptions
from tests.agents.recorded import recorded
from tests.agents.streamvln.recordings import replay
from tests.agents.vlnce.walks import write_walks
from vlnbench.conformance import AgentConformance
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import UsageError
from vlnbench.interfaces import Agent, Scalar


@pytest.fixture(scope="module")
def options(goldens: Path) -> StreamVLNOptions:
    return StreamVLNOptions(
        checkpoint=goldens / "checkpoint",
        vision_tower=goldens / "vision_tower",
        device="cpu",
        max_new_tokens=24,
    )


@pytest.fixture(scope="module")
def agent(options: StreamVLNOptions) -> Iterator[StreamVLNAgent]:
    with closing(StreamVLNAgent(options)) as agent:
        yield agent


class TestStreamVLN(AgentConformance):
    @pytest.fixture(autouse=True)
    def _options(self, options: StreamVLNOptions) -> None:
        self.options = options

    def make_agent(self) -> Agent:
        return StreamVLNAgent(self.options)


def test_a_recorded_episode_in_two_slots(goldens: Path, agent: StreamVLNAgent) -> None:
    (run,) = recorded(goldens, "stop_mid_turn")
    for taken in replay(agent, {3: run, 1: run}).values():
        assert taken == run.episode["executed_actions"]
    assert agent.truncated_turns == 0


@pytest.mark.slow
@pytest.mark.parametrize("max_batch", [1, 2, 5])
def test_recorded_episodes_side_by_side_in_any_order(
    goldens: Path, options: StreamVLNOptions, max_batch: int
) -> None:
    episodes = [*recorded(goldens, "main"), *recorded(goldens, "stop_mid_turn")]
    runs = dict(zip((4, 0, 7, 1, 2), [*episodes, *episodes[1:]], strict=True))
    with closing(StreamVLNAgent(replace(options, max_batch=max_batch))) as agent:
        taken = replay(agent, runs, random.Random(max_batch))
    for slot, run in runs.items():
        assert taken[slot] == run.episode["executed_actions"], f"slot {slot}"


@pytest.mark.parametrize("name", ["two_action_turns", "no_action_text", "desync_three_action_turns"])
def test_recorded_episodes_with_cut_answers(goldens: Path, options: StreamVLNOptions, name: str) -> None:
    (run,) = recorded(goldens, name)
    with closing(StreamVLNAgent(replace(options, max_new_tokens=run.settings["max_new_tokens"]))) as agent:
        taken = replay(agent, {0: run})[0]
        assert taken[: run.episode["n_steps"]] == run.episode["executed_actions"]
        assert len(taken) == (40 if name != "no_action_text" else 1)
        assert agent.truncated_turns >= len(run.steps)


def test_a_recorded_episode_with_smaller_windows(goldens: Path, agent: StreamVLNAgent) -> None:
    (run,) = recorded(goldens, "small_window")
    loop = EpisodeLoop(agent._prompts, agent._decoder, Windows(16, 4, 4), 384)
    assert replay(loop, {3: run})[3] == run.episode["executed_actions"]


def test_it_fits_the_benchmarks_it_was_trained_for(agent: StreamVLNAgent) -> None:
    for name in ("r2r-ce", "rxr-ce", "houses-r2r"):
        assert not agent.expects.conflicts(get_benchmark(name).body)
    for name in ("r2r-vlnce", "rxr-habitat"):
        assert agent.expects.conflicts(get_benchmark(name).body)


def test_a_small_network_looks_through_a_smaller_camera_of_the_same_view(agent: StreamVLNAgent) -> None:
    body = get_benchmark("houses-r2r").body
    half = replace(body, camera=replace(body.camera, width=320, height=240))
    with closing(StreamVLNTinyAgent(StreamVLNOptions(device="cpu"))) as tiny:
        assert not tiny.expects.conflicts(body)
        assert not tiny.expects.conflicts(half)
        narrow = replace(half, camera=replace(half.camera, hfov=60.0))
        assert tiny.expects.conflicts(narrow).keys() == {"hfov"}
    assert agent.expects.conflicts(half).keys() == {"width", "height"}


def test_the_description_says_what_was_loaded_and_what_it_takes(agent: StreamVLNAgent) -> None:
    for part in (
        "mm_vision_tower 0.1 M",
        "mm_language_model 0.2 M",
        "float32 on cpu, sdpa attention",
        "key-value cache: 512 bytes per token",
        "frames: 55 MB per episode of 500 steps",
        "PyTorch's threads: 1 (",
    ):
        assert part in agent.description


def identity(options: StreamVLNOptions, **changes: Any) -> dict[str, str]:
    with closing(StreamVLNAgent(replace(options, **changes))) as agent:
        return dict(agent.identity)


def test_identity_changes_with_what_decides_answers_and_with_nothing_else(
    options: StreamVLNOptions, tmp_path: Path
) -> None:
    own = identity(options)
    assert all(isinstance(value, Scalar) for value in own.values())
    copy = tmp_path / "elsewhere"
    shutil.copytree(options.checkpoint or Path(), copy)
    assert identity(options, max_batch=1, checkpoint=copy) == own
    settings = json.loads((copy / "generation_config.json").read_text()) | {"repetition_penalty": 1.1}
    (copy / "generation_config.json").chmod(0o644)
    (copy / "generation_config.json").write_text(json.dumps(settings))
    changed = {
        "checkpoint": identity(options, checkpoint=copy),
        "attn": identity(options, attn="eager"),
        "dtype": identity(options, dtype="bfloat16"),
        "max_new_tokens": identity(options, max_new_tokens=99),
    }
    for name, other in changed.items():
        assert {key for key in own if own[key] != other[key]} == {name}


def test_identity_and_files_say_which_frames_are_shown_instead(options: StreamVLNOptions, tmp_path: Path) -> None:
    walks = write_walks(tmp_path, "R2R") / "R2R"
    own = identity(options)
    assert identity(options, frames="gray") == {**own, "frames": "gray"}
    with closing(StreamVLNAgent(replace(options, frames="other", frames_from=walks))) as agent:
        assert set(agent.identity) - set(own) == {"frames", "frames_from"}
        assert walks / "annotations.json" in agent.files


def test_a_closed_agent_says_so(options: StreamVLNOptions) -> None:
    agent = TestStreamVLN()
    agent.options = options
    closed = agent.make_agent()
    closed.close()
    with pytest.raises(RuntimeError, match="the agent is closed"):
        closed.reset(0, agent.make_episode(), 0)


def with_config(options: StreamVLNOptions, folder: Path, **fields: Any) -> StreamVLNOptions:
    """The checkpoint with other fields in its config.json."""
    source = options.checkpoint or Path()
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)
    content = json.loads((source / "config.json").read_text()) | fields
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(content))
    return replace(options, checkpoint=folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": None}, "needs a trained model: name its folder with --checkpoint"),
        ({"checkpoint": Path("nowhere")}, "--checkpoint nowhere: no such file or folder"),
        ({"vision_tower": None}, "mm_hidden_size is 48, the vision tower .* has width 1152: give --vision-tower"),
        ({"frames": "other"}, "--frames other and --frames-from: one needs the other"),
        ({"max_batch": 0}, "--max-batch 0: expected 1 or more"),
        ({"max_new_tokens": 0}, "--max-new-tokens 0: expected 1 or more"),
        ({"dtype": "float16"}, "--dtype float16: not on the CPU"),
        ({"attn": "flash_attention_2"}, "--attn flash_attention_2: needs a CUDA device; expected sdpa or eager"),
        ({"device": "gpu"}, "--device gpu: expected auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:x"}, "--device cuda:x: expected auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:99"}, "--device cuda:99: this machine has . CUDA devices"),
    ],
)
def test_options_that_cannot_be_met_are_one_line(
    options: StreamVLNOptions, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        StreamVLNAgent(replace(options, **changes))
    assert "\n" not in str(caught.value)


def test_a_memory_that_does_not_divide_the_window_is_refused(options: StreamVLNOptions, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config.json: num_history 5: expected a divisor of num_frames, 32"):
        StreamVLNAgent(with_config(options, tmp_path, num_history=5))


def test_a_config_without_history_means_eight_frames(options: StreamVLNOptions, tmp_path: Path) -> None:
    with closing(StreamVLNAgent(with_config(options, tmp_path, num_history=None))) as agent:
        assert agent.identity["num_history"] == 8
