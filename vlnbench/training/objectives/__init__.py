"""What an optimizer step can minimize: a record of each objective, a folder or a module for its code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlnbench.errors import UsageError, unknown
from vlnbench.training.objectives.grpo.options import GRPOOptions, GRPOPlanning
from vlnbench.training.objectives.spec import ObjectiveSpec
from vlnbench.training.options import TrainOptions
from vlnbench.util.loading import import_string

if TYPE_CHECKING:
    from vlnbench.training.family.trains import Trains
    from vlnbench.training.objectives.protocol import Objective
    from vlnbench.training.setup import Process

_HERE = "vlnbench.training.objectives"

OBJECTIVES = {
    each.name: each
    for each in (
        ObjectiveSpec(
            "supervised", f"{_HERE}.supervised:Supervised", memory="vlnbench.training.memory.objective:StepMemory"
        ),
        ObjectiveSpec(
            "grpo",
            f"{_HERE}.grpo.objective:GRPO",
            GRPOOptions,
            GRPOPlanning,
            memory=f"{_HERE}.grpo.memory:RolloutMemory",
            needs_policy=True,
            listed=f"{_HERE}.grpo.rewards:listed",
        ),
    )
}
"""By name."""


def get_objective(name: str) -> ObjectiveSpec:
    """An objective by name or import string. Raises UsageError for what is none."""
    if ":" not in name and name not in OBJECTIVES:
        raise UsageError(
            unknown("objective", name, OBJECTIVES) + "; or give an import string package.module:OBJECT"
        )
    found = OBJECTIVES.get(name) or import_string(name)
    if not isinstance(found, ObjectiveSpec):
        raise UsageError(f"--objective {name}: expected a vlnbench.training.objectives.spec.ObjectiveSpec")
    return found


def make_objective(options: TrainOptions, trains: Trains, process: Process) -> Objective:
    """The objective that the options name, made for this process.

    Raises UsageError for a name that is none, and for a family or data that it cannot learn from.
    """
    spec = get_objective(options.objective)
    spec.check_options(options)
    spec.check_trains(trains)
    made: Objective = import_string(spec.implementation)(options, trains, process)
    return made
