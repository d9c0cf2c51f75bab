"""The loop beside somebody who does other things than it says; no network."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import cast

import pytest

from agents.common.decoders.loop import FeelingLoop
from agents.common.decoders.turns import Turn
from agents.common.decoders.windows import Windows
from agents.common.sets.trajectories import Trajectory
from agents.common.sight.reader import FrameReader
from agents.streamvln.agent import PolicyAgent, Prompts, StreamVLNAgent
from agents.streamvln.samples import WindowDataset
from tests.agents.streamvln.test_loop import SIZE, Script, numbered, shown
from tests.agents.streamvln.test_prompt import Symbols
from tests.agents.streamvln.test_samples import make_folder
from tests.fakes import make_episode
from vlnbench.interfaces import Action
from vlnbench.traits import FeelsActions

STOP, FORWARD, LEFT, RIGHT = Action.STOP, Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT


def words(text: str) -> list[int]:
    return Symbols().encode(text, add_special_tokens=False)


class Taught(Script):
    """A script whose answers can be unsaid."""

    def __init__(self, answers: Sequence[str]) -> None:
        said = iter(answers)
        super().__init__(lambda turn: words(next(said)))
        self.unsaid: list[int] = []

    def unsay(self, slot: int) -> None:
        self.unsaid.append(slot)


def feeling(*answers: str) -> tuple[FeelingLoop, Taught]:
    script = Taught(answers)
    loop = FeelingLoop(Prompts(Symbols()), script, Windows(), SIZE)
    loop.reset(0, make_episode(1), seed=3)
    return loop, script


def driven(loop: FeelingLoop, done: Sequence[Action | None]) -> list[Action]:
    """What the loop says on steps from 0 on; None: that is done, otherwise this."""
    said = []
    for step, action in enumerate(done):
        said += loop.act({0: numbered(step)}).values()
        if action is not None:
            loop.feel(0, action)
    return said


def read_before(turn: Turn) -> str:
    """What a turn says that was answered before it."""
    ids = takewhile(lambda id_: id_ >= 0, turn.input_ids)
    text = Symbols().decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text.split("<|im_start|>")[0]


def test_an_overruled_stop_leaves_its_turn_to_whoever_acts_and_the_window_goes_on() -> None:
    loop, script = feeling("↑STOP.", "→→→→.")
    assert driven(loop, [None, LEFT, FORWARD, RIGHT, None]) == [FORWARD, STOP, STOP, STOP, RIGHT]
    assert [(shown(turn), turn.opens_window) for turn in script.asked] == [([0], True), ([4], False)]
    assert read_before(script.asked[1]) == "↑←↑→."
    assert (script.dropped, set(script.unsaid)) == ([0], {0})


def test_another_action_within_a_turn_stands_in_it_and_the_plan_goes_on() -> None:
    loop, script = feeling("↑↑→↑.", "↑↑↑↑.")
    assert driven(loop, [None, LEFT, None, None, None]) == [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD]
    assert read_before(script.asked[1]) == "↑←→↑."


def test_a_stop_that_nobody_overrules_frees_the_cache_with_the_next_call() -> None:
    loop, script = feeling("STOP.", "↑↑↑↑.", "↑↑↑↑.")
    loop.reset(1, make_episode(2), seed=3)
    assert loop.act({0: numbered(0)}) == {0: STOP}
    assert script.dropped == [0, 1]
    loop.act({1: numbered(0)})
    assert script.dropped == [0, 1, 0]
    loop.reset(0, make_episode(3), seed=3)
    assert loop.act({0: numbered(0)}) == {0: FORWARD}
    assert script.dropped == [0, 1, 0, 0]


def test_a_stop_in_place_of_another_action_frees_the_cache_too() -> None:
    loop, script = feeling("↑↑↑↑.", "→→→→.")
    assert driven(loop, [STOP]) == [FORWARD]
    loop.act({})
    assert script.dropped == [0, 0]


def test_a_stop_after_which_the_same_slot_begins_anew_drops_nothing_of_the_new_one() -> None:
    loop, script = feeling("STOP.", "↑↑↑↑.")
    driven(loop, [None])
    loop.reset(0, make_episode(2), seed=3)
    loop.act({0: numbered(0)})
    assert script.dropped == [0, 0]


def test_the_agent_feels_and_the_policy_does_not() -> None:
    assert issubclass(StreamVLNAgent, FeelsActions)
    assert not issubclass(cast(type, PolicyAgent), FeelsActions)


@pytest.mark.parametrize("answer", ["↑↑↑↑↑↑STOP.", "well."])
def test_answers_of_other_lengths(answer: str) -> None:
    loop, script = feeling(answer, "↑↑↑↑.")
    actions = Prompts(Symbols()).actions(words(answer))
    last = len(actions) - 1
    left = max(0, 4 - len(actions))
    said = driven(loop, [*[None] * last, *[LEFT] * (left + 1), None])
    assert said == [*actions, *[STOP] * left, FORWARD]
    assert read_before(script.asked[1])[-2:] == "←."


def test_the_conversation_is_the_window_that_the_walk_is_trained_on(tmp_path: Path) -> None:
    """Nine steps, of which the model does three: token for token what training reads, with what was done in it."""
    done = [FORWARD, LEFT, FORWARD, RIGHT, FORWARD, FORWARD, LEFT, LEFT, STOP]
    answers = [f"<|im_start|>assistant\n{told}<|im_end|>" for told in ("↑STOP", "STOP", "STOP")]
    loop, script = feeling(*answers)
    driven(loop, [None, *done[1:8], None])
    asked = [id_ for turn in script.asked for id_ in turn.input_ids] + words(answers[-1])
    make_folder(tmp_path, [len(done)])
    walked = Trajectory(tmp_path / "images/house_0/rgb", (make_episode(1).instruction,), tuple(done))
    dataset = WindowDataset([walked], Prompts(Symbols()), Windows(), FrameReader(SIZE), wording="evaluation")
    assert asked == dataset.sample(0, random.Random(3)).input_ids
