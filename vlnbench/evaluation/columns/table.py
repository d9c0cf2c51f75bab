"""Rows as columns, for what is said of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]
"""Whole numbers, of as few bytes as hold them."""
Values = npt.NDArray[np.float64]
Texts = npt.NDArray[Any]
"""Texts as UTF-8, of fixed width where all are short."""

STATUSES = ("ok", "error", "timeout", "unscored")

_SHORT = 64


@dataclass(frozen=True, eq=False)
class Table:
    """One row of every episode and repeat, in the order in which they first ended; all columns have one length.

    lines: where each row lies in its file, from 1. heads: pairs of benchmark and split, to which `head` points.
    status, failure: places in `STATUSES` and `metrics.FAILURES` (-1: none). scenes: by the numbers in `scene`.
    trajectory: number of the pair of scene and trajectory. scores, seconds: by name, NaN where there is none.
    report: sums of what the agent counted. lacking: episode of the first scored row that lacks scores, and which.
    """

    lines: Numbers
    heads: tuple[tuple[str, str], ...]
    head: Numbers
    ids: Texts
    repeat: Numbers
    status: Numbers
    failure: Numbers
    scenes: tuple[str, ...]
    scene: Numbers
    trajectory: Numbers
    scores: dict[str, Values]
    seconds: dict[str, Values]
    report: dict[str, float]
    lacking: tuple[str, tuple[str, ...]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def having(self, *statuses: str, where: Numbers | None = None) -> npt.NDArray[np.bool_]:
        """Which rows have one of these statuses. where: of the rows at these places."""
        status = self.status if where is None else self.status[where]
        found = np.zeros(len(status), dtype=np.bool_)
        for name in statuses:
            found |= status == STATUSES.index(name)
        return found

    def take(self, places: Sequence[int] | Numbers) -> Table:
        """Some of the rows, in the order of `places`; `report` stays that of all."""
        taken: dict[str, Any] = {}
        for each in fields(self):
            column = getattr(self, each.name)
            if isinstance(column, np.ndarray):
                taken[each.name] = column[places]
            elif each.name in ("scores", "seconds"):
                taken[each.name] = {name: found[places] for name, found in column.items()}
        return replace(self, **taken)

    def names(self) -> list[str]:
        """Episode id of each row."""
        return [bytes(each).decode() for each in self.ids.tolist()]

    def name(self, place: int, repeats: int) -> str:
        """The episode of a row, with its repeat where there are several."""
        found = bytes(self.ids[place]).decode()
        return found if repeats == 1 else f"{found}#{self.repeat[place]}"


def pair(a: Table, b: Table) -> tuple[Numbers, Numbers]:
    """Places in both tables of the rows that both have, sorted by key."""
    heads = sorted({*a.heads, *b.heads})
    sides = [np.array([heads.index(head) for head in table.heads] or [0])[table.head] for table in (a, b)]
    head, repeat = np.concatenate(sides), np.concatenate([a.repeat, b.repeat])
    ids = np.concatenate([a.ids, b.ids])  # of the wider type
    order = by_key(head, ids, repeat)
    first, second = order[:-1], order[1:]  # stable: of two like ones that of `a` comes first
    same = (ids[first] == ids[second]) & (repeat[first] == repeat[second]) & (head[first] == head[second])
    return first[same], second[same] - len(a)


def finest(a: Numbers, b: Numbers) -> Numbers:
    """Clusters of the same rows, of the run that tells more apart: imported results may not know theirs."""
    return b if b.max(initial=0) > a.max(initial=0) else a


def by_key(head: Numbers, ids: Texts, repeat: Numbers) -> Numbers:
    """Places in the order of these three, like ones in the order in which they stand."""
    order = np.argsort(repeat, kind="stable") if np.any(repeat[1:] != repeat[:-1]) else np.arange(len(ids))
    order = order[np.argsort(ids[order], kind="stable")]
    return order[np.argsort(head[order], kind="stable")] if np.any(head[1:] != head[:-1]) else order


def texts(found: list[bytes]) -> Texts:
    """Texts as a column."""
    if max(map(len, found), default=0) <= _SHORT:
        column = np.array(found, dtype=bytes)
        if column.tolist() == found:  # numpy drops zeros at the end
            return column
    column = np.empty(len(found), dtype=object)
    column[:] = found
    return column


def numbered(found: Texts | Numbers) -> Numbers:
    """Numbers of values in the order in which these first appear."""
    _, first, place = np.unique(found, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int32)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[place]
