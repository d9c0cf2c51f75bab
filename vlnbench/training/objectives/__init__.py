"""What an optimizer step can minimize: an `Objective` in a module each, and their names."""

from __future__ import annotations

from vlnbench.errors import UsageError, unknown
from vlnbench.training.family import ModelFamily
from vlnbench.training.objectives.protocol import Objective
from vlnbench.training.options import TrainOptions
from vlnbench.training.setup import Process
from vlnbench.util.loading import import_string

OBJECTIVES = {
    "supervised": "vlnbench.training.objectives.supervised:Supervised",
    "grpo": "vlnbench.training.objectives.grpo.objective:GRPO",
}
"""Import strings by name."""


def make_objective(options: TrainOptions, family: ModelFamily, process: Process) -> Objective:
    """The objective that the options name. Raises UsageError for a name that is none."""
    name = options.objective
    if ":" not in name and name not in OBJECTIVES:
        raise UsageError(
            unknown("objective", name, OBJECTIVES) + "; or give an import string package.module:Class"
        )
    made: Objective = import_string(OBJECTIVES.get(name, name))(options, family, process)
    return made
