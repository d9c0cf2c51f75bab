"""Conditions on episodes as `--where` takes them: `length<8, turns>=2`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.shape import SHAPES

if TYPE_CHECKING:  # the command line has a choice, and numpy is heavy
    from vlnbench.interfaces import Episode

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_CONDITION = re.compile(r"([a-z]+)\s*(<=|>=|<|>|=)\s*(\d{1,9}(?:\.\d{1,9})?)")


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a shape of an episode (see `shape.SHAPES`) with a number."""

    name: str
    comparison: str
    number: float

    def holds(self, episode: Episode) -> bool:
        """Whether an episode meets it. Raises UsageError if the dataset does not tell."""
        value = SHAPES[self.name](episode)
        if value is None:
            raise UsageError(f"--where {self}: episode {episode.episode_id} has no {self.name} in its dataset")
        return _OPERATORS[self.comparison](value, self.number)

    def __str__(self) -> str:
        return f"{self.name}{self.comparison}{self.number:g}"


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Conditions separated by commas, all of which have to hold; none in an empty text. Raises UsageError."""
    found = []
    for part in (part.strip() for part in text.split(",")) if text.strip() else ():
        match = _CONDITION.fullmatch(part)
        if match is None or match[1] not in SHAPES:
            raise UsageError(
                f"--where {text!r}: cannot read {part!r}; expected conditions such as 'length<8, turns>=2' on "
                f"{', '.join(SHAPES)}"
            )
        found.append(Condition(match[1], match[2], float(match[3])))
    return tuple(found)
