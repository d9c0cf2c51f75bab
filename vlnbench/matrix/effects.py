"""What a matrix says beyond its rows: means over seeds, paired effects of an axis, the Pareto front."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlnbench.evaluation.stats import Estimate, estimate_sums

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
    """A label's differences to the first label of its axis, each with all other labels equal.

    estimate: their mean with an interval clustered by scene, which takes the trainings as given; None where they
    were not all evaluated on the same episodes.
    """

    axis: str
    label: str
    reference: str
    differences: tuple[float, ...]
    estimate: Estimate | None

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
    """For every axis but the seeds, what each of its labels changes against its first one, pair by pair.

    label: a metric whose sums by scene the rows hold (`rows.COMPARED`, all between 0 and 1).
    """
    done = {_place(row["labels"]): row for row in document["rows"] if mean(row, split, label) is not None}
    found = []
    for axis, names in document["axes"].items():
        for name in names[1:] if axis != SEED else []:
            own = [row for row in done.values() if row["labels"][axis] == name]
            others = [done.get(_place({**row["labels"], axis: names[0]})) for row in own]
            results = [
                (row["results"][split], other["results"][split])
                for row, other in zip(own, others, strict=True)
                if other is not None
            ]
            differences = tuple(a["metrics"][label]["mean"] - b["metrics"][label]["mean"] for a, b in results)
            scenes = [(a["scenes"][label], b["scenes"][label]) for a, b in results]
            found.append(Effect(axis, name, names[0], differences, _mean_difference(scenes)))
    return found


Scenes = Mapping[str, Sequence[float]]
"""Number of episodes and sum of a metric in [0, 1] by scene."""


def _mean_difference(pairs: Sequence[tuple[Scenes, Scenes]]) -> Estimate | None:
    """The mean over pairs of the difference of first and second, paired by scene; of a metric in [0, 1]."""
    sizes = [{scene: int(n) for scene, (n, _) in scenes.items()} for pair in pairs for scenes in pair]
    if not sizes or any(each != sizes[0] for each in sizes):
        return None
    sums = [sum(first[scene][1] - second[scene][1] for first, second in pairs) / len(pairs) for scene in sizes[0]]
    # One pair is two runs. Over several, what was not seen would have to go the same way in all of them.
    return estimate_sums(sums, list(sizes[0].values()), "difference" if len(pairs) == 1 else "free")


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (cost, gain) that no other one beats in one and equals in the other, by cost."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front


def _place(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
