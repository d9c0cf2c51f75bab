"""Looks at a matrix whose seeds come one after another, and what they cost.

Who computes effects after two seeds, again after three and again after four, and believes the first that stands
out, errs in about 17 of 100 cases and not in 5. Section `looks` of a matrix file says beforehand after how many
seeds effects are computed, such as `[2, 4]`; in between there are none. Of the 5 % every look spends a share:
after k of K seeds, a(k) = 2 - 2 Phi(z / sqrt(k / K)) is spent in all (Lan and DeMets 1983, like O'Brien and
Fleming), so that early looks ask for much and the last one for little more than a single one. The shares add up
to 5 %, whatever looks have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.matrix.statistics.contrasts import SEED

ALPHA = 0.05
"""How often a matrix without any effect may show one."""


@dataclass(frozen=True)
class Look:
    """number: of `of` looks; 0 before the first. seeds: whose trainings count. alpha: the share spent here."""

    number: int
    of: int
    seeds: tuple[str, ...]
    alpha: float


def read_looks(given: Any, axes: Mapping[str, Sequence[str]], where: str) -> tuple[int, ...]:
    """Numbers of seeds after which effects are computed. Raises UsageError for what is none."""
    if given is None:
        return ()
    seeds = len(axes.get(SEED, ()))
    valid = isinstance(given, list) and given and all(type(each) is int and each > 0 for each in given)
    if not valid or sorted(set(given)) != given or given[-1] != seeds:
        raise UsageError(
            f"{where}: looks: expected numbers of seeds that rise to all {seeds} of the axis {SEED}, e.g. [2, 4]"
        )
    return tuple(given)


def spent(part: float) -> float:
    """The share of mistakes that may be made until this part of the seeds is there."""
    from scipy.special import ndtr, ndtri  # loaded late: scipy costs more than the rest of the start-up

    return 2.0 * float(ndtr(-float(ndtri(1.0 - ALPHA / 2.0)) / part**0.5))


def look_at(document: Mapping[str, Any]) -> Look | None:
    """The last look that a document has come to; None where none are planned, and everything counts."""
    planned = document.get("looks") or ()
    if not planned:
        return None
    seeds = document["axes"][SEED]
    unfinished = {
        row["labels"][SEED] for row in document["rows"] if row["status"] in ("pending", "running", "unfinished")
    }
    there = next((i for i, seed in enumerate(seeds) if seed in unfinished), len(seeds))
    number = sum(each <= there for each in planned)
    if not number:
        return Look(0, len(planned), (), ALPHA)
    before = planned[number - 2] if number > 1 else 0
    alpha = spent(planned[number - 1] / planned[-1]) - (spent(before / planned[-1]) if before else 0.0)
    return Look(number, len(planned), tuple(seeds[: planned[number - 1]]), alpha)


def of_look(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], float]:
    """The document with the rows that count in its last look, and the share of mistakes that it may make."""
    look = look_at(document)
    if look is None:
        return document, ALPHA
    return {**document, "rows": [row for row in document["rows"] if row["labels"][SEED] in look.seeds]}, look.alpha
