"""What an optimizer step minimizes, and on what: the contract between the trainer and its objectives.

The trainer knows how to take steps, record and resume them; an objective knows where their losses come from. What
draws at random draws from the step's number and the seed, so that a resumed run is the run that was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from vlnbench.training.data import Schedule
from vlnbench.training.run.log import Phases
from vlnbench.util.measure import Vram


@dataclass(frozen=True)
class Begun:
    """A run whose network DeepSpeed has taken: its engine, how many optimizer steps are done already, and what
    watches this process's memory."""

    engine: Any
    done: int
    memory: Vram


class Objective(Protocol):
    """Made once per process from (options, trains, process), before anything is written or any weight is read.

    The constructor reads what the run depends on and raises UsageError where that cannot be. Then the trainer
    calls the methods in the order in which they are written here, `losses` once for every optimizer step.
    """

    schedule: Schedule

    def manifest(self) -> Mapping[str, Any]:
        """What of it can change the result, for the run's manifest."""
        ...

    def describe(self) -> str:
        """What will be done, for people."""
        ...

    def counts(self) -> Mapping[str, Any]:
        """How much data there is, for the run's counts."""
        ...

    def texts(self) -> Iterator[str]:
        """What is said in the data, for tokenizers that are learned."""
        ...

    def prepare(self, model: nn.Module, base: Path, phases: Phases) -> None:
        """Look at the network of the checkpoint folder `base`, whole and with parts frozen, before DeepSpeed does.

        This is the moment to keep a copy of it, or to have its forward passes timed.
        """
        ...

    def begin(self, begun: Begun) -> None:
        """Get ready for the first step to come."""
        ...

    def losses(self, step: int) -> Iterator[Tensor]:
        """The losses of optimizer step `step` (from 1), `--accumulation` scalars on this process's device.

        They may be more or fewer where the engine is told, before each, whether it is the last
        (`set_gradient_accumulation_boundary`); it divides them by `--accumulation` all the same.
        Each is differentiated before the next is asked for. What goes before them, forward passes without gradient
        or rollouts, may happen before any of them.
        """
        ...

    def notes(self) -> Mapping[str, Any]:
        """What the next line of the log says beside the loss. All processes ask at the same time."""
        ...

    def summary(self) -> str:
        """A line about the whole run, empty if there is nothing to say."""
        ...


@runtime_checkable
class Rehearses(Protocol):
    """Trait of an objective that can show what its steps take before the first of them."""

    def rehearsal(self, model: nn.Module, base: Path) -> Mapping[str, Any]:
        """A batch like those to come, for `Trains.loss`; comes before `prepare` and changes nothing."""
        ...
