"""What rewards need beside a training step: the reference, keys and values while the network acts, what it saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from vlnbench.training.family.changes import Change
from vlnbench.training.memory.objective import StepMemory
from vlnbench.training.memory.trace import Loss, Trace
from vlnbench.training.memory.zero import Sharding, Usage, state_bytes
from vlnbench.training.objectives.grpo.options import GRPOPlanning
from vlnbench.training.parts import LORA

AT_ONCE = 16
"""Answers that are made side by side at most."""
DURING_A_TURN = 2
"""Keys and values lie in the windows and in the batch of the turn."""


class RolloutMemory(StepMemory):
    """`StepMemory` of rewards."""

    def loss(self, trains: Any) -> Loss:
        return lambda network, batch: trains.log_probabilities(network, batch, 1.0).log_probabilities.sum()

    def cache(self, trains: Any, config: Any, options: Any) -> int:
        found: int = trains.cache_bytes(config, options)
        return found

    def moments(
        self, found: Iterable[Usage], trace: Trace, sharding: Sharding, options: GRPOPlanning
    ) -> Iterator[Usage]:
        """The moments of an optimizer step with the reference beside them, and the rollouts before it.

        While the network acts its weights are whole with any ZeRO stage, and there are no gradients. The reference
        is whole on every GPU, too; beside adapters it is what else trains, as it was.
        """
        weights = trace.parameters * sharding.weight_bytes
        beside = trace.trainable - trace.parts.get(LORA, 0)
        held = (weights if options.keeps_a_copy else beside * sharding.weight_bytes) if options.beta else 0
        if getattr(options, "as_published", False) and sharding.stage == 3:  # there the reference is sharded
            held //= sharding.ranks
        for usage in found:
            yield replace(usage, reference=held)
        count = min(AT_ONCE, options.completions(1))
        cache = DURING_A_TURN * count * trace.tokens * trace.cache
        yield Usage("rollouts", weights, state_bytes(trace, sharding), 0, 0, 0, 0, 0, held, cache)

    def host(self, trace: Trace, options: GRPOPlanning) -> int:
        """What the answers of an update were shown; walks have a window or several."""
        return options.completions(1) * trace.sample

    def rows(self, usage: Usage) -> list[tuple[str, int]]:
        return [("reference (--beta)", usage.reference), ("keys and values of rollouts", usage.cache)]

    def describe(self, options: GRPOPlanning, gpus: int) -> str:
        """The units of an update, which are easily mistaken for one another."""
        total, size = options.completions(gpus), options.group_size(gpus)
        return (
            f"grpo: {options.completions(1)} answers or walks per GPU, {total} in an update: {total // size} "
            f"prompts with {size} each; {options.batch} windows in a forward pass"
        )

    def changes(self, options: GRPOPlanning) -> Iterator[Change]:
        if options.beta:
            free = (("beta", 0.0),)
            yield Change("reference", "--beta 0", 6, free, "no reference: nothing holds the network back")
