"""What rewards need beside a training step: the reference, keys and values while the network acts, what it saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from vlnbench.training.memory.trace import Trace
from vlnbench.training.memory.zero import Sharding, Usage, state_bytes
from vlnbench.training.options import PlanOptions

AT_ONCE = 16
"""Answers that are made side by side at most."""
DURING_A_TURN = 2
"""Keys and values lie in the windows and in the batch of the turn."""


def reference_bytes(trace: Trace, sharding: Sharding, options: PlanOptions) -> int:
    """The frozen copy of the network, whole on every GPU; none without beta, and where only adapters train."""
    if not options.beta or (options.lora_rank and not options.parts):
        return 0
    return trace.parameters * sharding.weight_bytes


def with_rollouts(
    found: Iterable[Usage], trace: Trace, sharding: Sharding, options: PlanOptions
) -> Iterator[Usage]:
    """The moments of an optimizer step with the reference beside them, and the rollouts before it.

    While the network acts its weights are whole with any ZeRO stage, and there are no gradients.
    """
    held = reference_bytes(trace, sharding, options)
    for usage in found:
        yield replace(usage, reference=held)
    count = min(AT_ONCE, options.batch * options.accumulation)
    cache = DURING_A_TURN * count * trace.tokens * trace.cache
    weights = trace.parameters * sharding.weight_bytes
    yield Usage("rollouts", weights, state_bytes(trace, sharding), 0, 0, 0, 0, 0, held, cache)


def rollout_bytes(trace: Trace, options: PlanOptions) -> int:
    """Host memory of what the answers of an update were shown, in one process; walks have a window or several."""
    return options.batch * options.accumulation * trace.sample
