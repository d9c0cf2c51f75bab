"""The loop against the recorded runs and against made-up answers; no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.common.decoders.loop import EpisodeLoop
from agents.common.decoders.turns import Turn
from agents.common.decoders.windows import Windows
from agents.common.sight.instead import GRAY, Instead
from agents.common.sight.options import FramesOptions
from agents.streamvln.agent import Prompts
from tests.agents.recorded import Recorded, recorded
from tests.agents.streamvln.recordings import RUNS, pixels, replay
from tests.agents.streamvln.test_prompt import Letters
from tests.agents.vlnce.walks import write_walks
from tests.fakes import make_episode
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Observation

SIZE = 4


class Script:
    """A decoder that says what it is told to say and writes down what it was asked."""

    max_new_tokens = 512

    def __init__(self, answer: Callable[[Turn], list[int]]) -> None:
        self.answer = answer
        self.asked: list[Turn] = []
        self.calls = 0
        self.dropped: list[int] = []

    def run(self, turns: Sequence[Turn]) -> list[list[int]]:
        self.calls += 1
        self.asked += turns
        return [self.answer(turn) for turn in turns]

    def drop(self, slot: int) -> None:
        self.dropped.append(slot)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def numbered(step: int) -> Observation:
    """A frame of one color that tells its step."""
    rgb = np.empty((6, 8, 3), np.uint8)
    rgb[:] = (step % 250, step // 250, 7)
    return Observation("", step, rgb=rgb)


def shown(turn: Turn) -> list[int]:
    """Steps of the frames of a turn that saw `numbered` observations."""
    levels = ((turn.images[:, :, 0, 0] + 1) * 127.5).round().int()
    assert (levels[:, 2] == 7).all()
    return [int(low + 250 * high) for low, high, _ in levels]


def drive(loop: EpisodeLoop, steps: int, slot: int = 0) -> list[Action]:
    """Act on `numbered` observations until STOP or the end."""
    loop.reset(slot, make_episode(1), seed=3)
    taken: list[Action] = []
    while len(taken) < steps and Action.STOP not in taken[-1:]:
        taken += loop.act({slot: numbered(len(taken))}).values()
    return taken


def looping(answer: Callable[[Turn], list[int]], windows: Windows | None = None) -> tuple[EpisodeLoop, Script]:
    script = Script(answer)
    return EpisodeLoop(Prompts(Letters()), script, windows or Windows(), SIZE), script


def replayed(run: Recorded, prompts: Prompts) -> tuple[list[Action], list[Turn]]:
    """One recorded episode with the recorded answers; afterwards the decoder goes straight on."""
    answers = iter([turn["output_ids"] for turn in run.steps if "output_ids" in turn])
    forward = run.steps[0].get("output_ids", [])
    script = Script(lambda turn: next(answers, forward))
    names = ("num_frames", "num_history", "num_future_steps")
    loop = EpisodeLoop(prompts, script, Windows(**{name: run.settings[name] for name in names}), 384)
    return replay(loop, {0: run})[0], script.asked


@pytest.mark.parametrize("name", RUNS)
def test_recorded_episodes_are_asked_and_acted_alike(goldens: Path, prompts: Prompts, name: str) -> None:
    for run in recorded(goldens, name):
        taken, asked = replayed(run, prompts)
        done = run.episode["n_steps"]
        assert taken[:done] == run.episode["executed_actions"]
        assert (taken[-1] is Action.STOP) == run.episode["ended_by_stop"]
        if name != "desync_three_action_turns":
            assert len(taken) == done
            assert len(asked) == len(run.steps)
        for turn, expected in zip(asked, run.steps, strict=False):
            assert turn.input_ids == expected["input_ids"]
            assert turn.opens_window == expected["opens_window"]
            steps = [*expected["memory_frame_steps"], expected["current_frame_step"]]
            if "output_ids" not in expected:  # where the published code fails: the memory of the boundary
                steps = [*range(0, 32, 4), 33]
            key = (run.episode["frame_seed"], run.episode["frame_episode"])
            assert torch.equal(turn.images, torch.cat([pixels(*key, step) for step in steps]))


def test_turns_that_straddle_a_boundary_go_on_where_the_published_code_fails() -> None:
    loop, script = looping(lambda turn: letters("↑←→"))
    assert len(drive(loop, 100)) == 100
    opened = {shown(turn)[-1]: shown(turn)[:-1] for turn in script.asked if turn.opens_window}
    assert opened == {
        0: [],
        33: list(range(0, 32, 4)),
        66: list(range(0, 64, 8)),
        96: list(range(0, 96, 12)),
    }


def test_an_answer_may_be_longer_than_windows() -> None:
    loop, script = looping(lambda turn: letters("↑" * 70))
    drive(loop, 200)
    assert [shown(turn) for turn in script.asked] == [
        [0],
        [*range(0, 64, 8), 70],
        [*range(0, 128, 16), 140],
    ]


def test_nothing_after_stop_is_used_and_the_cache_is_freed() -> None:
    loop, script = looping(lambda turn: letters("←STOP→↑"))
    assert drive(loop, 50) == [Action.TURN_LEFT, Action.STOP]
    assert script.dropped == [0, 0]
    assert drive(loop, 50) == [Action.TURN_LEFT, Action.STOP]


def test_an_overruled_turn_is_forgotten_and_the_next_opens_its_window_with_all_frames() -> None:
    loop, script = looping(lambda turn: letters("STOP" if shown(turn)[-1] == 12 else "→↑STOP"))
    loop.reset(0, make_episode(1), seed=3)
    overruled = {0, *range(2, 38)}
    for step in range(40):
        if step not in overruled or step % 10 == 2:  # asked and then told that something else was done
            loop.act({0: numbered(step)})
        if step in overruled:
            loop.watch({0: numbered(step)})
    assert [(shown(turn), turn.opens_window) for turn in script.asked] == [
        ([1], True),
        *[([step], True) for step in (12, 22)],
        ([*range(0, 32, 4), 32], True),
        ([*range(0, 32, 4), 38], True),
    ]


def test_an_answer_without_actions_ends_the_episode() -> None:
    loop, _ = looping(lambda turn: letters("assistant\n"))
    assert drive(loop, 50) == [Action.STOP]


def test_answers_at_the_token_limit_are_counted() -> None:
    loop, script = looping(lambda turn: letters("↑↑→"))
    script.max_new_tokens = 3
    drive(loop, 9)
    assert loop.truncated_turns == 3


def test_slots_ask_together_and_do_not_mix() -> None:
    loop, script = looping(lambda turn: letters("↑" * (turn.slot + 1)))
    for slot in (0, 1, 3):
        loop.reset(slot, replace(make_episode(slot), instruction=f"Task {slot}."), seed=slot)
    for step in range(4):
        assert loop.act({slot: numbered(step) for slot in (3, 0, 1)}) == dict.fromkeys((3, 0, 1), 1)
    assert script.calls == 4
    assert [turn.slot for turn in script.asked] == [3, 0, 1, 0, 0, 1, 0]
    for turn in script.asked[:3]:
        assert f"Your task is to Task {turn.slot}. Devise" in "".join(
            map(chr, filter(lambda id_: id_ > 0, turn.input_ids))
        )


def test_the_episode_seed_decides_the_phrases() -> None:
    prompts_of = []
    for seed in (1, 1, 2):
        loop, script = looping(lambda turn: letters("↑"))
        loop.reset(0, make_episode(1), seed)
        for step in range(12):
            loop.act({0: numbered(step)})
        prompts_of.append([turn.input_ids for turn in script.asked])
    assert prompts_of[0] == prompts_of[1] != prompts_of[2]


def test_only_frames_that_can_become_memory_are_kept() -> None:
    loop, _ = looping(lambda turn: letters("↑↑↑"))
    drive(loop, 500)
    frames = loop._slots[0].frames
    assert list(frames) == list(range(0, 500, 4))
    assert sum(image.nbytes for image in frames.values()) == 125 * SIZE * SIZE * 3


@settings(max_examples=50)
@given(
    st.integers(1, 6).flatmap(lambda history: st.tuples(st.just(history), st.integers(1, 6))),
    st.lists(st.integers(0, 40), min_size=1, max_size=40),
    st.integers(1, 150),
)
def test_any_lengths_of_answers_work_and_memory_is_always_full(
    sizes: tuple[int, int], lengths: list[int], steps: int
) -> None:
    history, stride = sizes
    windows = Windows(num_frames=history * stride, num_history=history, num_future_steps=1)
    spoken = iter(lengths)
    loop, script = looping(lambda turn: letters("↑" * next(spoken, 3)), windows)
    taken = drive(loop, steps)
    assert len(taken) == steps or taken[-1] is Action.STOP
    previous = -1
    for turn in script.asked:
        *memory, step = shown(turn)
        boundary = step - step % windows.num_frames
        assert turn.opens_window == (previous < boundary or step == 0)
        assert memory == (list(windows.memory_steps(boundary)) if turn.opens_window else [])
        assert len(memory) in ((0,) if boundary == 0 or not turn.opens_window else (history,))
        assert memory == sorted(set(memory))
        assert all(earlier < boundary for earlier in memory)
        previous = step


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_history": 0}, "num_history 0: expected a divisor of num_frames, 32"),
        ({"num_history": 5}, "num_history 5: expected a divisor of num_frames, 32"),
        ({"num_future_steps": 5}, "num_future_steps 5: expected a divisor of num_frames, 32"),
    ],
)
def test_windows_that_cannot_be_cut_evenly_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Windows(**fields)


def watching(frames: FramesOptions, seed: int, steps: int) -> list[torch.Tensor]:
    """Images of every turn of an episode, frame by frame, of an agent that is shown these frames."""
    script = Script(lambda turn: letters("↑"))
    loop = EpisodeLoop(Prompts(Letters()), script, Windows(), SIZE, Instead(frames))
    loop.reset(0, make_episode(1), seed)
    for step in range(steps):
        loop.act({0: numbered(step)})
    return [image for turn in script.asked for image in turn.images]


def test_gray_frames_hide_what_is_observed() -> None:
    images = watching(FramesOptions(frames="gray"), 1, 40)
    assert len(images) > 40  # those of the memory too
    gray = torch.full((3, SIZE, SIZE), GRAY / 127.5 - 1)
    assert all(torch.allclose(image, gray, atol=1e-6) for image in images)


def test_other_frames_are_those_of_one_walk_step_by_step(tmp_path: Path) -> None:
    other = FramesOptions(frames="other", frames_from=write_walks(tmp_path, "R2R") / "R2R")
    images = watching(other, 1, 12)
    same = [torch.equal(image, after) for image, after in pairwise(images)]
    assert not any(same[:3])
    assert all(same[9:])  # no walk is longer than nine frames, and its last one stays
    drawn = {watching(other, seed, 1)[0].sum().item() for seed in range(30)}
    assert len(drawn) == 3  # as many as there are walks
    assert torch.equal(watching(other, 1, 1)[0], images[0])
