"""The record of an objective: its name, its options, and where its code is. Loads nothing heavy.

What an objective needs beyond labels is asked of this record; no module outside its folder knows it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from vlnbench.errors import UsageError
from vlnbench.training.options import PlanOptions, StepOptions, TrainOptions


@dataclass(frozen=True)
class NoOptions:
    """The options of an objective that has none of its own."""


@dataclass(frozen=True)
class ObjectiveSpec:
    """What an optimizer step can minimize: a name of the table, or an import string package.module:OBJECT of one.

    implementation: import string of the class that fulfills `objectives.protocol.Objective`.
    training: dataclass of its own options, keyword-only, to be mixed into a family's: its `check` calls that of
    `super()`, its `learns_from` says what it learns from. planning: those of them that memory depends on.
    memory: import string of a class derived from `memory.objective.StepMemory`; empty, and it cannot be planned.
    needs_policy: whether the network has to act by chance (`training.policy.GivesLogProbabilities`).
    listed: import string of a function that returns a group of entry points, headers and rows of a table of what
    has a name there, for `vlnbench list`; empty for none.
    """

    name: str
    implementation: str
    training: type = NoOptions
    planning: type = NoOptions
    memory: str = ""
    needs_policy: bool = False
    listed: str = ""

    def train_options(self, family: type[TrainOptions]) -> type[TrainOptions]:
        """A family's options of training with those of the objective."""
        made: type[TrainOptions] = _mixed(self.training, cast(Any, family))
        return made

    def plan_options(self, family: type[PlanOptions]) -> type[PlanOptions]:
        """A family's options of planning and the objective's. Raises UsageError where it cannot be planned."""
        if not self.memory:
            raise UsageError(
                f"--objective {self.name}: does not say what memory its steps take; it is not planned"
            )
        made: type[PlanOptions] = _mixed(self.planning, cast(Any, family))
        return made

    def check_options(self, options: StepOptions) -> None:
        """Raise UsageError for options that lack those of the objective, as only code can make them."""
        if not isinstance(options, (self.training, self.planning)) and self.training is not NoOptions:
            raise UsageError(f"--objective {self.name}: the options are not its own; see `train_options`")

    def check_trains(self, trains: Any) -> None:
        """Raise UsageError for a family that cannot be trained so."""
        from vlnbench.training.family.policy import GivesLogProbabilities

        if self.needs_policy and not isinstance(trains, GivesLogProbabilities):
            raise UsageError(
                f"--objective {self.name}: models of this family give no log-probabilities of what they do; use "
                "--objective supervised"
            )


@cache
def _mixed(own: type, family: Any) -> Any:
    """One dataclass of both, the family's fields first; a mixin's `check` comes before the family's."""
    if own is NoOptions or issubclass(family, own):
        return family
    body: dict[str, Any] = {"__doc__": family.__doc__, "__module__": family.__module__, "__annotations__": {}}
    return dataclass(frozen=True, kw_only=True)(type(family.__name__, (own, family), body))
