"""Rounds of a run that may stop early, and whether it knows enough after one of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.columns.table import Table
from vlnbench.evaluation.identity import SHARED, Identity, read_identity
from vlnbench.evaluation.records import KIND, MANIFEST, Row, read_manifest, read_rows
from vlnbench.evaluation.summary import METRICS, Metric, values_of
from vlnbench.evaluation.until.rule import Rule
from vlnbench.evaluation.until.sequence import LOOK, always_valid
from vlnbench.rollout.episode import digest
from vlnbench.util.durable.folder import find_manifest

ROUNDS, FEWEST = 20, 20
"""A run that may stop is looked at this many times, after so many episodes at least."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of all planned episodes after `count` of them. low, high: in points; 95 %, at any time.

    count: episodes that came in their order without a gap; more may have been run.
    """

    rule: Rule
    low: float
    high: float
    count: int
    planned: int

    @property
    def decided(self) -> bool:
        """Whether the run may stop."""
        if self.rule.points is not None:
            return (self.high - self.low) / 2.0 <= self.rule.points + 1e-9
        return self.low > 1e-6 or self.high < -1e-6  # a difference of 0 may be off by rounding

    def __str__(self) -> str:
        rule = self.rule
        what = rule.metric if rule.against is None else f"{rule.metric} minus that of {rule.against}"
        state = "decided" if self.decided else "not decided"
        return (
            f"{state} after {self.count} of {self.planned} planned episodes in random order: over all of them, "
            f"{what} lies in [{self.low:.1f}, {self.high:.1f}] points (95 %, whenever one stops)"
        )


def in_random_order(ids: Iterable[str]) -> list[str]:
    """Episodes in the order of a hash of their ids; another one than that by which `--episodes N` draws, so that
    the first rounds are no part that settings may have been chosen on."""
    return sorted(ids, key=lambda name: digest("until", name))


def rounds(ids: Sequence[str]) -> list[list[str]]:
    """The episodes of each round, all of them in the end."""
    ordered = in_random_order(ids)
    size = max(FEWEST, LOOK * math.ceil(len(ordered) / ROUNDS / LOOK))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def read_against(rule: Rule | None, identity: Identity) -> list[Row] | None:
    """Rows so far of the run that a rule compares with, None if it has none.

    An empty folder is a run that is still to begin. identity: of the run that asks. Raises UsageError unless both
    are of the same episodes.
    """
    if rule is None or rule.against is None:
        return None
    folder = rule.against
    if not folder.is_dir():
        raise UsageError(f"--until: {folder}: no such folder; if a run is still to begin there, mkdir {folder}")
    try:
        begun = find_manifest(folder, KIND) is not None
    except UsageError as error:
        raise UsageError(f"--until: {folder}: not a run folder") from error
    if not begun:
        return []
    other = read_identity(read_manifest(folder)["identity"], str(folder / MANIFEST))
    found = other.differences(identity)
    differing = [name for name in SHARED if name in found]
    if differing:
        changes = ", ".join(f"{name} {found[name][0]!r} / {found[name][1]!r}" for name in differing)
        raise UsageError(f"--until: {folder} cannot be compared with this run: {changes}")
    return read_rows(folder)


def judge(
    rule: Rule, ids: Sequence[str], repeats: int, rows: Iterable[Row], other: Iterable[Row] | None = None
) -> Verdict:
    """What the rows so far say of all planned episodes. ids: of these; other: rows of the run that it is against.

    An episode counts once all its repeats are there, and only if all before it in the random order do: those that
    end first are not a fair draw.
    """
    metric = next(metric for metric in METRICS if metric.label == rule.metric)
    sides = [by_episode(metric, table_of(each), repeats) for each in (rows, other) if each is not None]
    names = beginning(ids, sides)
    if other is None:
        low, high = always_valid([sides[0][name] for name in names], len(ids), outcomes(metric, ids, repeats))
    else:
        low, high = difference_interval(metric, ids, repeats, [sides[0][name] - sides[1][name] for name in names])
    return Verdict(rule, 100.0 * low, 100.0 * high, len(names), len(ids))


def difference_interval(
    metric: Metric, ids: Sequence[str], repeats: int, differences: Sequence[float]
) -> tuple[float, float]:
    """Of the mean difference over all episodes, from those of the first of them in random order; in [-1, 1]."""
    steps = outcomes(metric, ids, repeats)
    halves = [(1.0 + difference) / 2.0 for difference in differences]
    low, high = always_valid(halves, len(ids), steps and 2 * steps)
    return 2.0 * low - 1.0, 2.0 * high - 1.0


def outcomes(metric: Metric, ids: Sequence[str], repeats: int) -> int | None:
    """How many outcomes of 0 or 1 a mean is made of, None if it is made of others."""
    return len(ids) * repeats if metric.kind == "rate" else None


def beginning(ids: Sequence[str], sides: Sequence[Mapping[str, float]]) -> list[str]:
    """The episodes of the random order up to the first that one of the sides lacks."""
    return list(takewhile(lambda name: all(name in side for side in sides), in_random_order(ids)))


def by_episode(metric: Metric, table: Table, repeats: int) -> Mapping[str, float]:
    """Mean over the repeats of every episode that has them all."""
    known = zip(table.names(), values_of(metric, table).tolist(), strict=True)
    if repeats == 1:
        return {name: value for name, value in known if value == value}
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in known:
        if value == value:
            found[name].append(value)
    return {name: math.fsum(each) / repeats for name, each in found.items() if len(each) == repeats}
