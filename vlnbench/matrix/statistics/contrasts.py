"""Questions to a matrix that several pairs of labels answer together, such as what training one part adds.

Section `contrasts` of a matrix file: names, each with an `axis` of it and `pairs` of that axis's labels. The
contrast is the mean over all pairs of what the first label of a pair reaches more than the second, where all other
labels are the same; `within` says of other axes which labels these have to be, such as a look. No label stands in
two pairs, so that every training counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.matrix.fields import check_known, mapping

SEED = "seed"
"""The axis over which rows are averaged."""
MOST = 100
"""Contrasts of a file."""
_LONGEST = 100
"""Characters of a name."""


@dataclass(frozen=True)
class Contrast:
    """What is compared on an axis: in every pair the first label with the second. within: labels of other axes."""

    axis: str
    name: str
    pairs: tuple[tuple[str, str], ...]
    within: tuple[tuple[str, str], ...] = ()

    @property
    def against(self) -> str:
        """The second label, where there is one pair, or how many pairs there are."""
        return self.pairs[0][1] if len(self.pairs) == 1 else f"others, in {len(self.pairs)} pairs"

    @property
    def described(self) -> str:
        """Its pairs as text."""
        where = "".join(f", {axis}: {label}" for axis, label in self.within)
        return "; ".join(f"{value} - {against}" for value, against in self.pairs) + where

    def counts(self, labels: Mapping[str, str]) -> bool:
        """Whether settings with these labels are compared."""
        return all(labels[axis] == label for axis, label in self.within)


def read_contrasts(given: Any, axes: Mapping[str, Sequence[str]], path: Path) -> tuple[Contrast, ...]:
    """The contrasts of a matrix file. Raises UsageError naming what cannot be compared."""
    where = f"{path}: contrasts"
    entries = mapping(given, where)
    if len(entries) > MOST:
        raise UsageError(f"{where}: expected at most {MOST}, found {len(entries)}")
    return tuple(_contrast(name, entry, axes, where) for name, entry in entries.items())


def _contrast(name: str, entry: Any, axes: Mapping[str, Sequence[str]], section: str) -> Contrast:
    if not name.strip() or not name.isprintable() or len(name) > _LONGEST:
        raise UsageError(f"{section}: expected names of 1 to {_LONGEST} printable characters")
    where = f"{section}.{name}"
    found = mapping(entry, where)
    check_known(found, ("axis", "pairs", "within"), f"{where}: field")
    axis, pairs = found.get("axis"), found.get("pairs")
    check_known([axis], [each for each in axes if each != SEED], f"{where}: axis")
    if (
        not isinstance(pairs, list)
        or not pairs
        or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    ):
        raise UsageError(f"{where}: pairs: expected a list of [label, label it is compared with]")
    labels = [label for pair in pairs for label in pair]
    check_known(labels, axes[str(axis)], f"{where}: pairs: label")
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UsageError(f"{where}: pairs: {twice!r} stands in them twice; expected every label once")
    within = mapping(found.get("within"), f"{where}: within")
    check_known(within, [each for each in axes if each not in (SEED, axis)], f"{where}: within: axis")
    for other, label in within.items():
        check_known([label], axes[other], f"{where}: within: {other}: label")
    return Contrast(str(axis), name, tuple((str(one), str(other)) for one, other in pairs), tuple(within.items()))


def comparisons(
    axes: Mapping[str, Sequence[str]], contrasts: Sequence[Contrast], settings: Sequence[Mapping[str, str]]
) -> Iterator[Contrast]:
    """Everything that is compared: on every axis but the seeds each label with the first, then the contrasts.

    settings: the labels of all. Where a contrast compares the same of them, in either direction, it does so alone:
    what is asked twice is corrected for once.
    """
    asked = [_compared(each, settings) for each in contrasts]
    for axis, labels in axes.items():
        for label in labels[1:] if axis != SEED else []:
            comparison = Contrast(axis, label, ((label, labels[0]),))
            if not (pairs := _compared(comparison, settings)) or pairs not in asked:
                yield comparison
    yield from contrasts


def _compared(
    asked: Contrast, settings: Sequence[Mapping[str, str]]
) -> set[frozenset[frozenset[tuple[str, str]]]]:
    """Which pairs of settings a comparison is of."""
    known = {frozenset(labels.items()) for labels in settings}
    pairs = (
        frozenset((frozenset(labels.items()), frozenset({**labels, asked.axis: against}.items())))
        for value, against in asked.pairs
        for labels in settings
        if labels[asked.axis] == value and asked.counts(labels)
    )
    return {pair for pair in pairs if pair <= known}


def contrasts_of(document: Mapping[str, Any]) -> list[Contrast]:
    """The contrasts that matrix.json holds; none in older ones."""
    return [
        Contrast(
            each["axis"],
            each["name"],
            tuple((one, other) for one, other in each["pairs"]),
            tuple((axis, label) for axis, label in each.get("within", ())),
        )
        for each in document.get("contrasts", ())
    ]
