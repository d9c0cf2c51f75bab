"""How far the planner lies from a record, and the CUDA context that it should have."""

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
"""The context is rounded to a multiple of this many bytes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One setting in bytes. planned, allocated: what tensors take at their peak; held, reserved: what the
    allocator takes for them. The first of each is the plan's.
    """

    name: str
    planned: int
    allocated: int
    held: int
    reserved: int
    context: int

    @property
    def off(self) -> float:
        """How far PyTorch's own peak lies from the plan, as a share of it."""
        return self.planned / self.allocated - 1


@dataclass(frozen=True, slots=True)
class Constants:
    """context: for `vlnbench/training/memory/plan.py`. held: bytes that plans of what the allocator takes are
    off by at most, in all settings but two and in all.
    """

    context: int
    held: tuple[int, int]
    settings: int

    def __str__(self) -> str:
        most, all_ = (each / 1e9 for each in self.held)
        return f"CONTEXT_BYTES = {self.context:_}\n# held by the allocator: {most:.1f} GB off, at most {all_:.1f}"


def measured(content: Mapping[str, Any], plans: Mapping[str, Mapping[str, Any]]) -> list[Measured]:
    """The settings of a record of which all is known, beside their plans."""
    found = []
    for name, case in finished(content, "training"):
        planned, taken = plans.get(name), case.get("measured")
        if not planned or not taken or taken["reserved"] is None:
            continue
        context = taken["context"]
        if context is None:
            if taken["device"] is None:
                continue
            context = taken["device"] - taken["reserved"]
        held = planned["high"] - planned["context"]
        found.append(Measured(name, planned["allocated"], taken["allocated"], held, taken["reserved"], context))
    return found


def fit(settings: list[Measured]) -> Constants:
    """The typical context, and how far what the allocator holds is from its plans.

    Raises UsageError where there are too few.
    """
    if len(settings) < FEWEST:
        raise UsageError(f"--fit: {len(settings)} settings were measured on a GPU; expected at least {FEWEST}")
    context = EVEN * math.ceil(statistics.median(each.context for each in settings) / EVEN)
    off = sorted(abs(each.held - each.reserved) for each in settings)
    return Constants(context, (off[-3], off[-1]), len(settings))
