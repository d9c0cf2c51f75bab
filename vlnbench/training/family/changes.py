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

    `cost` orders changes: up to 10 it is speed or hardware, above that other results, too.
    """

    kind: str
    text: str
    cost: int
    fields: Fields
    price: str


def cheapest_first(possible: Sequence[Change]) -> list[tuple[Change, ...]]:
    """Sets of at most `MAX_CHANGES` changes, none with two of a kind."""
    sets = [some for size in range(1, MAX_CHANGES + 1) for some in combinations(possible, size)]
    unlike = [some for some in sets if len({change.kind for change in some}) == len(some)]
    return sorted(unlike, key=lambda some: sum(change.cost for change in some))
