"""The planner's constants as a record has them: CUDA context, fragmentation, and the margin that both leave."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_evidence.record import finished
from vlnbench.errors import UsageError

FEWEST = 4
"""Settings without which nothing is fitted."""
EVEN = 10_000_000
"""The context is rounded up to a multiple of this many bytes, shares to hundredths."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One setting in bytes. allocated, static, changing: as planned; the rest was measured."""

    name: str
    planned: int
    static: int
    changing: int
    allocated: int
    reserved: int
    context: int

    @property
    def off(self) -> float:
        """How far PyTorch's own peak lies from the plan, as a share of it."""
        return self.planned / self.allocated - 1


@dataclass(frozen=True, slots=True)
class Constants:
    """For `vlnbench/training/memory/plan.py`, with how many settings they are from."""

    context: int
    fragmentation: float
    margin: float
    settings: int

    def __str__(self) -> str:
        return "\n".join(
            (
                f"CONTEXT_BYTES = {self.context:_}",
                f"FRAGMENTATION = {self.fragmentation:.2f}",
                f"MARGIN = {self.margin:.2f}",
            )
        )


def measured(content: Mapping[str, Any]) -> list[Measured]:
    """The settings of a record of which all is known."""
    found = []
    for name, case in finished(content, "training"):
        planned, taken = case.get("planned"), case.get("measured")
        if not planned or not taken or taken["reserved"] is None:
            continue
        context = taken["context"]
        if context is None:
            if taken["device"] is None:
                continue
            context = taken["device"] - taken["reserved"]
        sizes = (planned["allocated"], planned["static"], planned["changing"])
        found.append(Measured(name, *sizes, taken["allocated"], taken["reserved"], context))
    return found


def fit(settings: list[Measured]) -> Constants:
    """The largest context, the typical fragmentation, and the smallest margin within which all settings then lie.

    Raises UsageError where there are too few.
    """
    if len(settings) < FEWEST:
        raise UsageError(f"--fit: {len(settings)} settings were measured on a GPU; expected at least {FEWEST}")
    context = EVEN * math.ceil(max(each.context for each in settings) / EVEN)
    shares = [(each.reserved - each.allocated) / each.changing for each in settings]
    fragmentation = max(0.0, _up(statistics.median(shares)))
    margin = 0.0
    for each in settings:
        changing = each.changing * (1 + fragmentation) + context
        off = abs(each.static + changing - each.reserved - each.context)
        margin = max(margin, off / changing)
    return Constants(context, fragmentation, _up(margin), len(settings))


def _up(share: float) -> float:
    """Rounded up to hundredths; what is a hundredth but for rounding stays."""
    return math.ceil(100 * share - 1e-9) / 100
