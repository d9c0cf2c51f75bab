"""What a matrix says beyond its rows: means over seeds, paired effects of an axis, settings against references.

Intervals are for other episodes and other trainings at once, see `crossed`. What is compared was evaluated on the
same episodes; only like pairs are pooled, and each context, which is a choice of labels of the other axes, counts
the same however many pairs it has.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.stats import Estimate, holm
from vlnbench.matrix.statistics import crossed
from vlnbench.matrix.statistics.contrasts import SEED, Contrast, comparisons, contrasts_of
from vlnbench.matrix.statistics.crossed import Array, Spreading, contrast, spreading
from vlnbench.matrix.statistics.looks import ALPHA, of_look

COMPARED = ("SR", "SPL")
"""Metrics whose differences between settings get an interval."""

Row = Mapping[str, Any]
"""A row of matrix.json."""

Over = Literal["episodes and trainings", "episodes"]
"""What an interval is over; episodes alone where the matrix has too few seeds to tell how trainings differ."""


@dataclass(frozen=True)
class Spread:
    """Mean over `n` values and their standard deviation (n - 1), which is None for a single one."""

    n: int
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Effect:
    """A label's differences to another of its axis, each with all other labels equal, the seed included.

    label, reference: of a contrast its name and what it is against. context: the labels of the other axes, where
    they are the same in all pairs; None for a mean over contexts. estimate: their mean, of equally many parts
    for each context, with its 95 % interval; None where they were not all evaluated on the same episodes. p: of
    no difference; adjusted: by Holm's method for all that stand in a table together. together: the interval of
    this one among intervals of all these that hold at once in 95 % of cases (Bonferroni). rest: S - R of
    `crossed`, the variance by scene that more trainings would not lower.
    """

    axis: str
    label: str
    reference: str
    differences: tuple[float, ...]
    estimate: Estimate | None
    context: str | None = None
    contexts: int = 1
    over: Over = "episodes"
    p: float | None = None
    adjusted: float | None = None
    together: tuple[float, float] | None = None
    rest: float | None = None

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


def effects(document: Mapping[str, Any], split: str, label: str, *, by_context: bool = False) -> list[Effect]:
    """Pair by pair, what every label of an axis changes against its first one, and what the contrasts ask for.

    label: a metric whose sums by scene the rows hold (`COMPARED`, all between 0 and 1). by_context: one
    effect for each choice of labels of the other axes, rather than their mean.
    """
    done = {_place(row["labels"]): row for row in document["rows"] if mean(row, split, label) is not None}
    found, settings = [], [row["labels"] for row in document["rows"]]
    for asked in comparisons(document["axes"], contrasts_of(document), settings):
        contexts = _contexts(asked, done)
        chosen = [{context: pairs} for context, pairs in contexts.items()] if by_context else [contexts]
        for pairs in chosen:
            context = next(iter(pairs)) if by_context else None
            spreads_of = partial(trainings_of, others=list(done.values()), by_draw=bool(document.get("drawn")))
            found.append(
                _effect((asked.axis, asked.name, asked.against), context, pairs, spreads_of, (split, label))
            )
    return found


def _contexts(
    asked: Contrast, done: Mapping[tuple[tuple[str, str], ...], Row]
) -> dict[str, list[tuple[Row, Row]]]:
    """The pairs of rows that answer a question, by the labels that are the same in them."""
    contexts: dict[str, list[tuple[Row, Row]]] = {}
    for name, against in asked.pairs:
        for row in done.values():
            other = done.get(_place({**row["labels"], asked.axis: against}))
            if row["labels"][asked.axis] == name and other is not None and asked.counts(row["labels"]):
                compared = [f"{name} - {against}"] if len(asked.pairs) > 1 else []
                rest = [label for axis, label in row["labels"].items() if axis not in (asked.axis, SEED)]
                contexts.setdefault(", ".join([*compared, *rest]), []).append((row, other))
    return contexts


def findings(
    document: Mapping[str, Any], label: str, *, by_context: bool = False
) -> tuple[dict[str, list[Effect]], int]:
    """The effects by split, p-values adjusted for all of them together, and how many these are.

    Those of the last planned look, if any are planned (`looks`); together they hold at every look.
    """
    seen, alpha = of_look(document)
    found = {split: effects(seen, split, label, by_context=by_context) for split in document["splits"]}
    every = [effect for each in found.values() for effect in each]
    adjusted, count = _adjusted([effect.p for effect in every], alpha), sum(e.p is not None for e in every)
    corrected = iter(
        replace(effect, adjusted=p, together=None if p is None else simultaneous(effect.estimate, count, alpha))
        for effect, p in zip(every, adjusted, strict=True)
    )
    return {split: [next(corrected) for _ in each] for split, each in found.items()}, count


def _adjusted(values: Sequence[float | None], alpha: float) -> list[float | None]:
    """p-values by Holm's method, in which 0.05 stands for the share of mistakes that a look may make."""
    return [p if p is None else min(1.0, p * ALPHA / alpha) for p in holm(values)]


def simultaneous(estimate: Estimate | None, count: int, alpha: float = ALPHA) -> tuple[float, float] | None:
    """The interval of a difference among `count` that hold together but for alpha; None where it has none."""
    if estimate is None or estimate.se is None or estimate.degrees is None:
        return None
    from scipy.special import stdtrit  # loaded late: scipy costs more than the rest of the start-up

    half = float(stdtrit(estimate.degrees, 1.0 - alpha / 2.0 / count)) * estimate.se
    return max(-1.0, estimate.mean - half), min(1.0, estimate.mean + half)


@dataclass(frozen=True)
class Standing:
    """How many settings, over their seeds, are above, below and not told apart from a reference.

    By p-values that are adjusted for all comparisons of a table (Holm, 5 %).
    """

    reference: str
    above: int
    below: int
    unclear: int


def standings(document: Mapping[str, Any], label: str) -> tuple[dict[str, list[Standing]], int]:
    """Where the settings stand beside every reference, by split, and the number of comparisons."""
    seen, alpha = of_look(document)
    compared: list[tuple[str, str, float, float | None]] = []
    for split in document["splits"]:
        done = [row for row in seen["rows"] if mean(row, split, label) is not None]
        for reference in document.get("references", ()):
            if mean(reference, split, label) is None:
                continue
            for _, members in over_seeds(done):
                beside = _beside(members, reference, done, (split, label))
                if beside is not None:
                    compared.append((split, reference["name"], *beside))
    adjusted = _adjusted([p for *_, p in compared], alpha)
    found: dict[str, list[Standing]] = {split: [] for split in document["splits"]}
    for split, name in dict.fromkeys((split, name) for split, name, _, _ in compared):
        own = [
            difference if p is not None and p < 0.05 else 0.0
            for (s, n, difference, _), p in zip(compared, adjusted, strict=True)
            if (s, n) == (split, name)
        ]
        above, below = sum(each > 0 for each in own), sum(each < 0 for each in own)
        found[split].append(Standing(name, above, below, len(own) - above - below))
    return found, len(compared)


def trainings_of(
    rows: Sequence[Row], split: str, label: str, others: Sequence[Row], by_draw: bool = False
) -> Spreading | None:
    """How trainings of the settings of `rows` spread; of all `others` where these have too few seeds.

    by_draw: rows of one seed share more than it, and are compared with one another. Without degrees of freedom
    where those have too few, too. None where they were not all evaluated on the same episodes.
    """
    settings = {_setting(row) for row in rows}
    first = rows[0]["results"][split]
    alike = [row for row in others if same_episodes(row["results"][split], first, label)]
    spreads = _spreading([row for row in alike if _setting(row) in settings], split, label, by_draw)
    if spreads is not None and spreads.degrees < crossed.ENOUGH_DEGREES:
        spreads = _spreading(alike, split, label, by_draw)
    return spreads and _known(spreads)


def _known(spreads: Spreading) -> Spreading:
    """Without degrees of freedom where there are too few to say anything."""
    return spreads if spreads.degrees >= crossed.LEAST_DEGREES else replace(spreads, degrees=0)


def results_of(rows: Sequence[Row], split: str, label: str) -> list[Mapping[str, Any]]:
    """The results of the rows that have a metric on a split."""
    return [row["results"][split] for row in rows if mean(row, split, label) is not None]


def pooled(rows: Sequence[Row], split: str, label: str) -> Spreading | None:
    """How trainings of one setting spread, over all settings; None where their episodes are not the same."""
    return _spreading([row for row in rows if mean(row, split, label) is not None], split, label)


def evenness(rows: Sequence[Row], split: str, label: str) -> crossed.Evenness | None:
    """Whether all settings spread alike; None where episodes are not the same, or no setting has two seeds."""
    rows = [row for row in rows if mean(row, split, label) is not None]
    found = _sums(rows, split, label)
    if found is None:
        return None
    sums, _, groups = _by_training(rows, found[0], np.ones(len(rows)))
    return crossed.evenness(sums, found[1], _settings(rows, groups))


def _spreading(rows: Sequence[Row], split: str, label: str, by_draw: bool = False) -> Spreading | None:
    """The same of these rows. A training that was evaluated in several ways is one, by its mean over them."""
    found = _sums(rows, split, label)
    if found is None:
        return None
    sums, _, groups = _by_training(rows, found[0], np.ones(len(rows)))
    draws = [rows[each[0]]["labels"][SEED] for each in groups] if by_draw else None
    return spreading(sums, found[1], _settings(rows, groups), draws)


def same_episodes(a: Mapping[str, Any], b: Mapping[str, Any], label: str) -> bool:
    """Whether two results are of one protocol, data version, simulator and choice of episodes."""
    mine, other = a.get("identity", {}), b.get("identity", {})
    sizes = [{scene: n for scene, (n, _) in each["scenes"][label].items()} for each in (a, b)]
    return sizes[0] == sizes[1] and all(mine.get(name) == other.get(name) for name in SHARED)


def _effect(
    names: tuple[str, str, str],
    context: str | None,
    contexts: Mapping[str, Sequence[tuple[Row, Row]]],
    spreads_of: Callable[[Sequence[Row], str, str], Spreading | None],
    what: tuple[str, str],
) -> Effect:
    split, label = what
    pairs = [pair for each in contexts.values() for pair in each]
    differences = tuple(
        row["results"][split]["metrics"][label]["mean"] - other["results"][split]["metrics"][label]["mean"]
        for row, other in pairs
    )
    effect = Effect(*names, differences, None, context, len(contexts))
    rows = [row for pair in pairs for row in pair]
    found = _sums(rows, split, label)
    if not rows or found is None:
        return effect
    parts = [1.0 / (len(contexts) * len(each)) for each in contexts.values() for _ in each]
    weights = np.array([sign * part for part in parts for sign in (1.0, -1.0)])
    sums, shares, groups = _by_training(rows, found[0], weights)
    if any(len(set(np.sign(weights[each]))) > 1 for each in groups):
        # Ways to evaluate are compared: what a training does in both of them alike cancels out.
        spreads: Spreading | None = _known(spreading(sums, found[1], _settings(rows, groups)))
    else:
        spreads = spreads_of(rows, split, label)
    return replace(effect, **_estimated(sums, found[1], shares, spreads, len(pairs) == 1))


def _by_training(rows: Sequence[Row], sums: Array, weights: Array) -> tuple[Array, Array, list[list[int]]]:
    """Of every training the signed mean of its rows' sums, what it counts, and which rows these are.

    Settings that differ in how they are evaluated alone have their trainings in common.
    """
    found: dict[Hashable, list[int]] = {}
    for number, row in enumerate(rows):
        found.setdefault(row.get("train_key") or _place(row["labels"]), []).append(number)
    groups = list(found.values())
    shares = np.array([np.abs(weights[each]).sum() for each in groups])
    return np.array([weights[each] @ sums[each] for each in groups]) / shares[:, None], shares, groups


def _settings(rows: Sequence[Row], groups: Sequence[Sequence[int]]) -> list[Hashable]:
    return [frozenset(_setting(rows[number]) for number in each) for each in groups]


def _estimated(
    sums: Array,
    sizes: Array,
    weights: Array,
    trainings: Spreading | None,
    single: bool,
    fixed: Array | None = None,
) -> dict[str, Any]:
    """Fields of an effect: estimate, over and p. single: the difference of two runs."""
    from scipy.special import stdtr, stdtrit  # loaded late: scipy costs more than the rest of the start-up

    n, scenes = int(sizes.sum()), len(sizes)
    if scenes < 2 or trainings is None:
        total = float(np.einsum("tg,t->", sums, weights) - (0.0 if fixed is None else fixed.sum()))
        return {"estimate": Estimate(total / n, n, scenes, None, None, None)}
    found = contrast(sums, sizes, weights, trainings, fixed)
    mean, se, degrees = float(found.mean), float(found.se), float(found.degrees)
    over: Over = "episodes and trainings" if trainings.degrees else "episodes"
    t = float(stdtrit(degrees, 0.975))
    low: float | None = mean - t * se
    high: float | None = mean + t * se
    if single:
        # Two runs that agree in all n episodes may differ in others, see `vlnbench.evaluation.stats`.
        unseen = t * t / (n + t * t)
        low = max(-1.0, min(mean - t * se, -1.0 + (mean + 1.0) * (1.0 - unseen)))
        high = min(1.0, max(mean + t * se, mean + (1.0 - mean) * unseen))
    elif se <= 1e-12:
        low = high = None
    p = None if se <= 1e-12 else 2.0 * float(stdtr(degrees, -abs(mean) / se))
    rest = float(found.scenes - found.common) if trainings.degrees else None
    return {"estimate": Estimate(mean, n, scenes, se, low, high, degrees), "over": over, "p": p, "rest": rest}


def over_trainings(rows: Sequence[Row], done: Sequence[Row], split: str, label: str) -> Estimate | None:
    """A setting's mean over its seeds, with its interval over episodes and trainings; None where episodes differ.

    rows: of the setting. done: of all that were evaluated. Without an interval where trainings are too few to tell
    how they differ.
    """
    found = _sums(rows, split, label)
    if found is None or len(found[1]) < 2:
        return None
    weights: Array = np.full(len(rows), 1.0 / len(rows))
    result = _estimated(*found, weights, trainings_of(rows, split, label, done), False)
    known: Estimate = result["estimate"]
    if result["over"] == "episodes" or known.low is None or known.high is None:
        return replace(known, low=None, high=None)
    return replace(known, low=max(0.0, known.low), high=min(1.0, known.high))


def _beside(
    members: Sequence[Row], reference: Row, done: Sequence[Row], what: tuple[str, str]
) -> tuple[float, float | None] | None:
    """A setting's mean over its seeds less a reference, and p; None where their episodes are others."""
    split, label = what
    found = _sums([*members, reference], split, label)
    if found is None or len(found[1]) < 2:
        return None
    sums, sizes = found
    weights = np.full(len(members), 1.0 / len(members))
    result = _estimated(
        sums[:-1], sizes, weights, trainings_of(members, split, label, done), len(members) == 1, sums[-1]
    )
    return result["estimate"].mean, result["p"]


def _sums(rows: Sequence[Row], split: str, label: str) -> tuple[Array, Array] | None:
    """Sums (rows, scenes) of a metric and the scenes' episodes; None where these are not the same in all rows."""
    results = [row["results"][split] for row in rows]
    if (
        not results
        or not results[0]["scenes"][label]
        or not all(same_episodes(each, results[0], label) for each in results)
    ):
        return None
    scenes = list(results[0]["scenes"][label])
    sums = np.array([[each["scenes"][label][scene][1] for scene in scenes] for each in results], dtype=np.float64)
    return sums, np.array([results[0]["scenes"][label][scene][0] for scene in scenes], dtype=np.float64)


def _setting(row: Row) -> tuple[tuple[str, str], ...]:
    return _place({axis: label for axis, label in row["labels"].items() if axis != SEED})


def _place(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
