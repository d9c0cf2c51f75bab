"""The loop over an episode, with a decoder that only notes what it is asked."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agents.common.checkpoints.tokenizer import Tokenizer, load_tokenizer
from agents.common.qwen2_5_vl.tokens import TOKENS, generation_settings
from agents.janusvln.agent import EpisodeLoop, Prompts
from agents.janusvln.network import Decoder, JanusVLN, Memory, Question
from tests.agents.janusvln.recordings import replay
from tests.agents.janusvln.tiny import write_tokenizer
from tests.agents.recorded import recorded
from vlnbench.interfaces import Action, Episode, Observation

EPISODE = Episode(
    episode_id="1",
    trajectory_id="1",
    scene_id="scene.glb",
    start_position=(0.0, 0.0, 0.0),
    start_rotation=(0.0, 0.0, 0.0, 1.0),
    instruction="Go.",
)


class Scripted:
    """Answers every question with the next of `answers`, as token ids."""

    def __init__(self, tokenizer: Tokenizer, answers: Sequence[str]) -> None:
        self._tokenizer, self._answers = tokenizer, iter(answers)
        self._memories: dict[int, Memory] = {}
        self.asked: list[Question] = []

    def begin(self, slot: int) -> None:
        self._memories[slot] = Memory()

    def memory(self, slot: int) -> Memory:
        return self._memories[slot]

    def see(self, frames: Mapping[int, NDArray[np.uint8]]) -> None:
        for slot, frame in frames.items():
            assert frame.shape == (490, 644, 3)
            self._memories[slot].images.append(torch.zeros(1))

    def run(self, questions: Sequence[Question]) -> list[list[int]]:
        self.asked += questions
        return [self._tokenizer.encode(next(self._answers), add_special_tokens=False) for _ in questions]


def make(folder: Path, *answers: str, num_history: int = 2, max_steps: int = 400) -> tuple[EpisodeLoop, Scripted]:
    write_tokenizer(folder)
    tokenizer = load_tokenizer(folder, TOKENS, "another")
    decoder = Scripted(tokenizer, answers)
    return EpisodeLoop(Prompts(tokenizer), decoder, num_history, max_steps), decoder


def seen(step: int) -> Observation:
    return Observation("Go.", step, rgb=np.zeros((480, 640, 3), np.uint8))


def test_an_answer_is_an_action_and_anything_else_stops(tmp_path: Path) -> None:
    loop, decoder = make(tmp_path, "TURN_LEFT", "MOVE_FORWARD", " TURN_LEFT")
    loop.reset(4, EPISODE, seed=0)
    taken = [loop.act({4: seen(step)})[4] for step in range(3)]
    assert taken == [Action.TURN_LEFT, Action.MOVE_FORWARD, Action.STOP]
    assert loop.unreadable == 1
    assert [question.steps for question in decoder.asked] == [[0], [0, 1], [0, 1, 2]]


def test_from_the_cap_on_every_action_is_stop_and_nothing_is_asked(tmp_path: Path) -> None:
    loop, decoder = make(tmp_path, *["MOVE_FORWARD"] * 5, max_steps=3)
    loop.reset(0, EPISODE, seed=0)
    taken = [loop.act({0: seen(step)})[0] for step in range(4)]
    assert taken == [Action.MOVE_FORWARD] * 3 + [Action.STOP]
    assert len(decoder.asked) == 3
    assert (loop.forced_stops, loop.unreadable) == (1, 0)


def test_frames_that_somebody_else_acts_on_are_remembered_once(tmp_path: Path) -> None:
    """Also the frame on which the model said STOP before another went on."""
    loop, decoder = make(tmp_path, "STOP", "MOVE_FORWARD", "TURN_LEFT")
    loop.reset(0, EPISODE, seed=0)
    assert loop.act({0: seen(0)})[0] is Action.STOP
    for step in (0, 1, 2):
        loop.watch({0: seen(step)})
    assert loop.act({0: seen(3)})[0] is Action.MOVE_FORWARD
    assert decoder.asked[-1].steps == [0, 1, 3]
    loop.reset(0, EPISODE, seed=0)
    loop.act({0: seen(0)})
    assert decoder.asked[-1].steps == [0]


def test_an_environment_without_rgb_and_a_closed_agent_are_errors(tmp_path: Path) -> None:
    loop, _ = make(tmp_path)
    loop.reset(0, EPISODE, seed=0)
    with pytest.raises(ValueError, match="no RGB frame"):
        loop.act({0: Observation("Go.", 0)})
    loop.close()
    loop.close()
    with pytest.raises(RuntimeError, match="the agent is closed"):
        loop.reset(0, EPISODE, seed=0)


def recorded_loop(goldens: Path, model: JanusVLN, prompts: Prompts, name: str, max_batch: int) -> EpisodeLoop:
    settings = recorded(goldens, name)[0].settings
    decoder = Decoder(
        model,
        generation_settings(goldens / "checkpoint", prompts.tokenizer),
        max_new_tokens=settings["max_new_tokens"],
        max_batch=max_batch,
    )
    return EpisodeLoop(prompts, decoder, settings["num_history"], settings["max_steps"])


@pytest.mark.parametrize(("name", "limit"), [("main", 4), ("small_history", 5), ("cut_output", 1)])
def test_recorded_actions(
    goldens: Path, recorded_model: JanusVLN, prompts: Prompts, name: str, limit: int
) -> None:
    loop = recorded_loop(goldens, recorded_model, prompts, name, 2)
    runs = dict(zip((3, 1), recorded(goldens, name), strict=False))
    for slot, taken in replay(loop, runs, random.Random(0), limit).items():
        assert taken == runs[slot].episode["executed_actions"][:limit]


@pytest.mark.slow
@pytest.mark.parametrize(("max_batch", "limit"), [(1, 12), (2, 20), (5, 12)])
def test_recorded_episodes_side_by_side_in_any_order(
    goldens: Path, recorded_model: JanusVLN, prompts: Prompts, max_batch: int, limit: int
) -> None:
    first, second = recorded(goldens, "main")
    runs = {4: first, 0: second, 7: first}
    loop = recorded_loop(goldens, recorded_model, prompts, "main", max_batch)
    for slot, taken in replay(loop, runs, random.Random(max_batch), limit).items():
        assert taken == runs[slot].episode["executed_actions"][:limit], f"slot {slot}"


@pytest.mark.long
@pytest.mark.slow
def test_whole_recorded_episodes_to_their_ends(goldens: Path, recorded_model: JanusVLN, prompts: Prompts) -> None:
    """The first ends at the cap, the second by a STOP of the model."""
    runs = dict(enumerate(recorded(goldens, "main")))
    loop = recorded_loop(goldens, recorded_model, prompts, "main", 8)
    for slot, taken in replay(loop, runs).items():
        assert taken == runs[slot].episode["executed_actions"]
    assert (loop.forced_stops, loop.unreadable) == (1, 0)
