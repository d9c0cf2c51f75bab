"""What an objective says to the planner: what its steps take beside, or in place of, the loss of labels.

An objective of one's own derives from `StepMemory`, which is the supervised one's, and overrides what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vlnbench.training.family.changes import Change
from vlnbench.training.family.trains import Trains
from vlnbench.training.memory.trace import Loss, Trace
from vlnbench.training.memory.zero import Sharding, Usage


class StepMemory:
    """Steps on labels: a forward and a backward pass of the family's own loss, and nothing beside. No state.

    All bytes are those of one GPU, or of one process where it says host. `options`: of planning, with the
    objective's own.
    """

    def loss(self, trains: Trains) -> Loss:
        """What is differentiated."""
        return trains.loss

    def cache(self, trains: Trains, config: Any, options: Any) -> int:
        """Bytes of keys and values of one position, where the network acts; else 0."""
        return 0

    def moments(self, found: Iterable[Usage], trace: Trace, sharding: Sharding, options: Any) -> Iterator[Usage]:
        """The moments of an optimizer step, with what is held beside them, and the moments before it."""
        yield from found

    def host(self, trace: Trace, options: Any) -> int:
        """Host memory beside weights and offloaded states."""
        return 0

    def rows(self, usage: Usage) -> list[tuple[str, int]]:
        """Further lines of the plan's table: what it is called, bytes."""
        return []

    def describe(self, options: Any, gpus: int) -> str:
        """A line on how much an update takes; empty for none."""
        return ""

    def changes(self, options: Any) -> Iterator[Change]:
        """What could be done otherwise to need less."""
        yield from ()
