"""One thing to do otherwise in a setting, so that it needs less memory. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

Fields = tuple[tuple[str, object], ...]
"""Fields of planning options with their new values."""

MAX_CHANGES = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to do otherwise, of each kind at most one.

    `cost` orders changes as a person would try them: what costs nothing but speed, fewer parts (4), adapters (5),
    offloading (6 to 8), hardware (from 10 on), what a model sees.
    """

    kind: str
    text: str
    cost: int
    fields: Fields
    price: str


def cheapest_first(possible: Sequence[Change]) -> list[tuple[Change, ...]]:
    """Sets of at most `MAX_CHANGES` changes, none with two of a kind or two choices of parts."""
    sets = [some for size in range(1, MAX_CHANGES + 1) for some in combinations(possible, size)]
    unlike = [some for some in sets if len({change.kind for change in some}) == len(some) and _parts(some) < 2]
    return sorted(unlike, key=lambda some: sum(change.cost for change in some))


def _parts(some: Sequence[Change]) -> int:
    return sum(name == "tunable_parts" for change in some for name, _ in change.fields)
