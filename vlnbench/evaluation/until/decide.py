"""Rounds of a run that may stop early, and whether it knows enough after one of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vlnbench.errors import UsageError
from vlnbench.evaluation.identity import SHARED, Identity, read_identity
from vlnbench.evaluation.records import MANIFEST, Row, read_manifest, read_rows
from vlnbench.evaluation.summary import METRICS, Metric, values
from vlnbench.evaluation.until.rule import Rule
from vlnbench.evaluation.until.sequence import ConfidenceSequence
from vlnbench.rollout.episode import digest

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
        return self.low > 0.0 or self.high < 0.0

    def __str__(self) -> str:
        rule = self.rule
        what = rule.metric if rule.against is None else f"{rule.metric} minus that of {rule.against}"
        state = "decided" if self.decided else "not decided"
        return (
            f"{state} after {self.count} of {self.planned} planned episodes in random order: over all of them, "
            f"{what} lies in [{self.low:.1f}, {self.high:.1f}] points (95 %, whenever one stops)"
        )


def in_random_order(ids: Iterable[str]) -> list[str]:
    """Episodes in the order of a hash of their ids, the one by which `--episodes N` draws."""
    return sorted(ids, key=lambda name: digest("subset", name))


def rounds(ids: Sequence[str]) -> list[list[str]]:
    """The episodes of each round, all of them in the end."""
    ordered = in_random_order(ids)
    size = max(FEWEST, math.ceil(len(ordered) / ROUNDS))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def read_against(rule: Rule | None, identity: Identity) -> list[Row] | None:
    """Rows of the finished run that a rule compares with, None if it has none.

    identity: of the run that is to come. Raises UsageError unless both are of the same episodes.
    """
    if rule is None or rule.against is None:
        return None
    folder = rule.against
    other = read_identity(read_manifest(folder)["identity"], str(folder / MANIFEST))
    rows, found = read_rows(folder), other.differences(identity)
    differing = [name for name in SHARED if name in found]
    if differing:
        changes = ", ".join(f"{name} {found[name][0]!r} / {found[name][1]!r}" for name in differing)
        raise UsageError(f"--until: {folder} cannot be compared with this run: {changes}")
    if len(rows) < identity.planned:
        raise UsageError(
            f"--until: {folder}: finish it first, {len(rows)} of {identity.planned} episodes are done"
        )
    return rows


def judge(
    rule: Rule, ids: Sequence[str], repeats: int, rows: Iterable[Row], other: Iterable[Row] | None = None
) -> Verdict:
    """What the rows so far say of all planned episodes. ids: of these; other: rows of the run that it is against.

    An episode counts once all its repeats are there, and only if all before it in the random order do: those that
    end first are not a fair draw.
    """
    metric = next(metric for metric in METRICS if metric.label == rule.metric)
    ours = _by_episode(metric, rows, repeats)
    theirs = None if other is None else _by_episode(metric, other, repeats)
    whole = len(ids) * repeats if metric.kind == "rate" else None
    if theirs is not None and whole is not None:
        whole *= 2
    sequence = ConfidenceSequence(len(ids), whole)
    for name in in_random_order(ids):
        if name not in ours or (theirs is not None and name not in theirs):
            break
        sequence.add(ours[name] if theirs is None else (1.0 + ours[name] - theirs[name]) / 2.0)
    low, high = (100.0 * x if theirs is None else 100.0 * (2.0 * x - 1.0) for x in sequence.interval())
    return Verdict(rule, low, high, sequence.count, len(ids))


def _by_episode(metric: Metric, rows: Iterable[Row], repeats: int) -> Mapping[str, float]:
    """Mean over the repeats of every episode that has them all."""
    found: dict[str, list[float]] = defaultdict(list)
    for row, value in values(metric, list(rows)):
        found[row.episode_id].append(value)
    return {name: math.fsum(each) / repeats for name, each in found.items() if len(each) == repeats}
