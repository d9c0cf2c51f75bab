"""What models say is kept within bounds, and changes nothing of how an episode ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agents.base import EpisodeAgent
from tests.fakes import PlaneEnv, make_episode
from vlnbench.evaluation.answers.file import decode_answers, encode_answers
from vlnbench.interfaces import Action, Answer, Observation
from vlnbench.rollout.answers import STEP_BYTES, Answered, Kept
from vlnbench.rollout.episode import Outcome, Task
from vlnbench.rollout.executor import Limits
from vlnbench.rollout.inline import Inline

FORWARD = Action.MOVE_FORWARD


class Speaker(EpisodeAgent):
    """Says something at every second step, twice at the fourth, and walks two meters."""

    def act_one(self, observation: Observation) -> Action:
        if observation.step == 4:
            self.say("up?", unparsable=True, note="no such action")
        if observation.step % 2 == 0:
            self.say(f"step {observation.step}", actions=[FORWARD] * 2, prompt_tokens=9, log_probability=-0.5)
        return FORWARD if observation.step < 8 else Action.STOP


class Odd(EpisodeAgent):
    """Tells what is given, and walks."""

    given: Any = None

    def act_one(self, observation: Observation) -> Action:
        return FORWARD if observation.step < 3 else Action.STOP

    def answered(self, slot: int) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def run(agent: EpisodeAgent, answers: bool = True) -> Outcome:
    task = Task(make_episode(0), 0, 1, 20)
    (outcome,) = Inline(agent, PlaneEnv()).run([task], Limits(answers=answers))
    return outcome


def test_what_is_said_is_kept_by_the_step_at_which_it_is_said() -> None:
    told = [(each.step, each.answer.text, each.answer.unparsable) for each in run(Speaker()).answers]
    assert told == [
        (0, "step 0", False),
        (2, "step 2", False),
        (4, "up?", True),
        (4, "step 4", False),
        (6, "step 6", False),
        (8, "step 8", False),
    ]
    first = run(Speaker()).answers[0]
    assert first.answer == Answer("step 0", (FORWARD, FORWARD), prompt_tokens=9, log_probability=-0.5)
    assert first.seconds > 0


def test_nothing_is_kept_where_nobody_asks() -> None:
    assert run(Speaker(), answers=False).answers == ()


def test_what_was_said_before_an_error_is_kept() -> None:
    class Breaks(Speaker):
        def act_one(self, observation: Observation) -> Action:
            if observation.step == 3:
                raise RuntimeError("no more")
            return super().act_one(observation)

    outcome = run(Breaks())
    assert (outcome.status, [each.step for each in outcome.answers]) == ("error", [0, 2])


@pytest.mark.parametrize(
    "given",
    [
        None,
        3,
        ["text"],
        [None],
        RuntimeError("broken"),
        [Answer(log_probability=math.nan)],
        [Answer(prompt_tokens=-1)],
        [Answer(prompt_tokens="many")],  # type: ignore[arg-type]
        [Answer(actions=(17,))],  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_told_is_a_note_and_no_error(given: Any) -> None:
    agent = Odd()
    agent.given = given
    outcome = run(agent)
    assert outcome.rollout is not None
    assert outcome.rollout.trajectory.actions == run(Odd(), answers=False).rollout.trajectory.actions  # type: ignore[union-attr]
    assert [each.answer.note[:9] for each in outcome.answers] == ["not told:"] * 4


@pytest.mark.parametrize(
    "text", ["x" * 10**6, "↑" * 4000, "\x00\x1b" * 2000, '"\\\n' * 3000, "\ud800" * 3000, "🙂" * 900]
)
@pytest.mark.parametrize("tries", [1, 2, 3, 7])
def test_a_step_takes_two_kilobytes_at_most(text: str, tries: int) -> None:
    agent = Odd()
    long = Answer(text, [FORWARD] * 500, True, text, 10**15, 10**15, 10**15, -1 / 3e9)
    agent.given = [long] * (tries - 1) + [
        Answer(f"{text}the end", [FORWARD] * 500, False, text, 10**15, 1, 1, -1 / 3)
    ]
    kept = Kept()
    kept.add(agent, 0, [FORWARD], 1 / 3)
    assert len(msgspec.json.encode(encode_answers(kept.all))) <= STEP_BYTES
    assert kept.all[-1].answer.text.endswith("the end")
    if text[0] not in "\x00\ud800":
        assert text[:20] == kept.all[-1].answer.text[:20]


def test_written_and_read_it_is_the_same() -> None:
    told: Sequence[Answered] = run(Speaker()).answers
    written = msgspec.json.decode(msgspec.json.encode(encode_answers(told)))
    read = decode_answers(written)
    assert [each.answer for each in read] == [each.answer for each in told]
    assert decode_answers({"key": []}) == []
    assert encode_answers([]) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", None),
        ("step", [0, -1]),
        ("texts", ["a", 3]),
        ("text", [0, 9]),
        ("actions", ["1", "8"]),
        ("actions", ["1"]),
        ("unparsable", {}),
        ("note", {"0": 3}),
        ("log_probability", ["x", 0]),
        ("seconds", [1e300, 0]),
    ],
)
def test_a_line_that_is_none_names_its_field(field: str, value: Any) -> None:
    good = encode_answers([Answered(0, 0.1, Answer("a", (FORWARD,))), Answered(1, 0.1, Answer("b", (FORWARD,)))])
    assert len(decode_answers(good)) == 2
    with pytest.raises(ValueError, match=f"field '{field}'"):
        decode_answers({**good, field: value})
