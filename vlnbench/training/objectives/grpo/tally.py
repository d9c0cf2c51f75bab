"""What an update's rollouts and losses were like, added up between two lines of the log, over all processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from vlnbench.training.setup import Process

SUMS = ("unreachable", "failed", "resampled", "simulator_s", "rollout_s", "update_s")
"""Names of what is added up; everything else is a mean."""


class Tally:
    """Sums and counts by name."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self.before: dict[str, float] = {}
        """What `take` returned last."""

    def add(self, name: str, total: float, count: int = 1) -> None:
        """Add `count` values whose sum is `total`."""
        self._sums[name] += total
        self._numbers[name] += count

    def take(self) -> dict[str, float]:
        """Means, and sums of `SUMS`, since the last call; all processes ask at the same time."""
        found: list[Any] = [None] * self._process.world_size
        mine = (dict(self._sums), dict(self._numbers))
        if self._process.world_size == 1:
            found = [mine]
        else:
            torch.distributed.all_gather_object(found, mine)
        self._sums.clear()
        self._numbers.clear()
        self.before = _together(found)
        return self.before


def _together(found: list[tuple[Mapping[str, float], Mapping[str, int]]]) -> dict[str, float]:
    names = sorted({name for sums, _ in found for name in sums})
    together = {}
    for name in names:
        total = sum(sums.get(name, 0.0) for sums, _ in found)
        number = sum(numbers.get(name, 0) for _, numbers in found)
        together[name] = round(total, 6) if name in SUMS else round(total / max(1, number), 6)
    return together
