from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.common.answers.names import NAMES, read_answer, schema
from vlnbench.interfaces import Action

STOP, FORWARD, LEFT, RIGHT = Action.STOP, Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("STOP", [STOP]),
        ("move_forward, turn_left", [FORWARD, LEFT]),
        (" TURN_RIGHT\nMOVE_FORWARD\n", [RIGHT, FORWARD]),
        ('{"actions": ["MOVE_FORWARD", "TURN_LEFT"]}', [FORWARD, LEFT]),
        ('\n {"actions": ["turn_left"]}', [LEFT]),
        ("MOVE_FORWARD STOP MOVE_FORWARD", [FORWARD, STOP]),
    ],
)
def test_answers_that_follow_the_grammar(text: str, actions: list[Action]) -> None:
    assert read_answer(text, 3) == actions


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there are 0 actions in it, and 1 to 3"),
        (" , ", "there are 0 actions in it, and 1 to 3"),
        ("STOP.", "'STOP.' is no action"),
        ("I go forward", "'I' is no action"),
        ("LOOK_UP", "'LOOK_UP' is no action"),
        ("MOVE_FORWARD " * 4, "there are 4 actions in it"),
        ('{"actions": []}', "there are 0 actions in it"),
        ('{"actions": ["MOVE_FORWARD"', "no complete JSON"),
        ('{"actions": ["MOVE_FORWARD"]} and more', "no complete JSON"),
        ('{"actions": "STOP"}', "not an object with the field actions"),
        ('{"actions": [1]}', "not an object with the field actions"),
        ('{"actions": ["STOP"], "why": "tired"}', "not an object with the field actions"),
        ("{" * 10, "no complete JSON"),
        ('["STOP"]', "is no action"),
        ("```json\n{}\n```", "'```json' is no action"),
    ],
)
def test_answers_that_do_not(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_answer(text, 3)


@pytest.mark.slow
@given(st.text() | st.lists(st.sampled_from([*NAMES, "{", '"actions"', ":", "[", "]", "}", ","])).map(" ".join))
def test_every_text_is_read_or_refused(text: str) -> None:
    try:
        actions = read_answer(text, 4)
    except ValueError:
        return
    assert 1 <= len(actions) <= 4
    assert STOP not in actions[:-1]


def test_the_schema_offers_the_names() -> None:
    actions = schema(5)["json_schema"]["schema"]["properties"]["actions"]
    assert (actions["items"]["enum"], actions["maxItems"]) == ([*NAMES], 5)
