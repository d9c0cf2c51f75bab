"""What a matrix says beyond its rows: means over seeds, paired effects of an axis, the Pareto front."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEED = "seed"
"""The axis over which rows are averaged."""

Row = Mapping[str, Any]
"""A row of matrix.json."""


@dataclass(frozen=True)
class Spread:
    """Mean over `n` values and their standard deviation (n - 1), which is None for a single one."""

    n: int
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Effect:
    """A label's differences to the first label of its axis, each with all other labels equal."""

    axis: str
    label: str
    reference: str
    differences: tuple[float, ...]

    @property
    def spread(self) -> Spread | None:
        return spread(self.differences)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and standard deviation of the values that there are; None for none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(len(known), statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def metric(row: Row, split: str, label: str) -> Mapping[str, Any] | None:
    """The estimate of a metric with its interval, None where it was not evaluated or has no value."""
    result = row["results"].get(split)
    return None if result is None else result["metrics"].get(label)


def mean(row: Row, split: str, label: str) -> float | None:
    """The mean of a metric, None where there is none."""
    found = metric(row, split, label)
    return None if found is None else float(found["mean"])


def over_seeds(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows that differ in their seed alone, with the name they have in common; in the order of the rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        name = ", ".join(label for axis, label in row["labels"].items() if axis != SEED)
        groups.setdefault(name or row["name"], []).append(row)
    return list(groups.items())


def effects(document: Mapping[str, Any], split: str, label: str) -> list[Effect]:
    """For every axis but the seeds, what each of its labels changes against its first one, pair by pair."""
    values = {_place(row["labels"]): mean(row, split, label) for row in document["rows"]}
    found = []
    for axis, names in document["axes"].items():
        for name in names[1:] if axis != SEED else []:
            differences = []
            for row in document["rows"]:
                if row["labels"][axis] != name:
                    continue
                own = values[_place(row["labels"])]
                other = values.get(_place({**row["labels"], axis: names[0]}))
                if own is not None and other is not None:
                    differences.append(own - other)
            found.append(Effect(axis, name, names[0], tuple(differences)))
    return found


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (cost, gain) that no other one beats in one and equals in the other, by cost."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def _place(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
