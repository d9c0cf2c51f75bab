"""What a vision-language model is asked in words, whoever runs it: a server, or this process."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.interfaces import Action
from vlnbench.util.durable.limits import regular

FORWARD_M = 0.25
LAST_ACTIONS = 8
"""Actions done that a question tells of, at most."""
_FIELDS = ("instruction", "step", "history", "actions", "max_actions", "forward_m", "turn_deg", "format")


@dataclass(frozen=True)
class Template:
    """The text of a question with fields in braces."""

    text: str
    max_actions: int
    turn_deg: float

    def question(self, instruction: str, done: Sequence[Action], shown: int, wording: str) -> str:
        """The question after the actions `done`, with `shown` earlier frames; `wording` says how to answer."""
        return self.text.format(
            instruction=instruction,
            step=len(done),
            history=shown,
            actions=", ".join(action.name for action in done[-LAST_ACTIONS:]) or "none",
            max_actions=self.max_actions,
            forward_m=f"{FORWARD_M:g}",
            turn_deg=f"{self.turn_deg:g}",
            format=wording,
        )


def read_template(path: Path | None) -> str:
    """The prompt of a file, None for the one that comes with vlnbench, with known fields only."""
    path = path or Path(__file__).with_name("navigation.txt")
    try:
        template = regular(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompt {path}: cannot be read ({error})") from error
    return checked(template, f"--prompt {path}")


def checked(template: str, where: str) -> str:
    """The template itself. Raises UsageError, which begins with `where`, for fields that are not known."""
    try:
        for _, name, spec, conversion in string.Formatter().parse(template):
            if name is not None and (name not in _FIELDS or spec or conversion):
                known = ", ".join(_FIELDS)
                raise UsageError(f"{where}: unknown field {{{name}}}; known: {known}; write {{{{ for a brace")
    except ValueError as error:
        raise UsageError(f"{where}: {error}; write {{{{ and }}}} for braces") from error
    return template


def spread(step: int, count: int) -> list[int]:
    """`count` of the steps before `step`, evenly spread from the first to the last, or all if there are fewer."""
    if step <= count:
        return list(range(step))
    if count == 1:
        return [step - 1]
    return [round(i * (step - 1) / (count - 1)) for i in range(count)]
