"""One thing to do otherwise in a setting, so that it needs less memory. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

Fields = tuple[tuple[str, object], ...]
"""Fields of planning options with their new values."""


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
