"""What a model is asked to answer, and how its answer is read."""

from __future__ import annotations

import json
import re
from typing import Any

from vlnbench.interfaces import Action

NAMES = {action.name: action for action in (Action.STOP, Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT)}

AS_SCHEMA = 'Answer with JSON: {"actions": ["..."]}, each action one of ' + ", ".join(NAMES) + "."
AS_TEXT = f"Answer with the names of the actions ({', '.join(NAMES)}), separated by spaces, and nothing else."


def schema(max_actions: int) -> dict[str, Any]:
    """The `response_format` of a request."""
    actions = {"type": "array", "items": {"enum": [*NAMES]}, "minItems": 1, "maxItems": max_actions}
    answer = {
        "type": "object",
        "properties": {"actions": actions},
        "required": ["actions"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "actions", "strict": True, "schema": answer}}


def read_answer(text: str, max_actions: int) -> list[Action]:
    """The actions of an answer.

    It is either a JSON object whose only field `actions` holds names, or names separated by spaces, line ends or
    commas, in any case, with nothing else around. What follows a STOP is left out. Raises ValueError, with a
    sentence for the model, for anything else and for more than `max_actions` names.
    """
    names = _names_in_json(text) if text.lstrip().startswith("{") else re.split(r"[\s,]+", text.strip(" \t\r\n,"))
    if not 1 <= len(names) <= max_actions or names == [""]:
        count = 0 if names == [""] else len(names)
        raise ValueError(f"there are {count} actions in it, and 1 to {max_actions} are expected.")
    actions: list[Action] = []
    for name in names:
        if name.upper() not in NAMES:
            raise ValueError(f"{name[:40]!r} is no action.")
        actions.append(NAMES[name.upper()])
        if actions[-1] is Action.STOP:
            break
    return actions


def _names_in_json(text: str) -> list[str]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is no complete JSON.") from None
    names = answer.get("actions")
    if answer.keys() != {"actions"} or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ValueError("it is not an object with the field actions, a list of names.")
    return names
