"""The command `vlnbench train`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vlnbench.training.family.find import Chosen
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.objectives.spec import ObjectiveSpec
from vlnbench.training.options import TrainOptions


@dataclass(frozen=True, kw_only=True)
class Trains:
    """Runs a training; its options are a family's."""

    checkpoint_option: ClassVar[str] = "checkpoint"
    chosen: ClassVar[Chosen | None] = None

    @staticmethod
    def of_family(family: FamilySpec, objective: ObjectiveSpec) -> type[TrainOptions]:
        """The family's options and the objective's."""
        return objective.train_options(family.check_training())

    def run(self) -> None:
        from vlnbench.training.trainer import train
        from vlnbench.util.processes.child import die_with_parent

        if (
            "LOCAL_RANK" in os.environ
        ):  # torchrun gives its ranks sessions of their own, where no signal finds them
            die_with_parent(os.getppid())
        assert isinstance(self, TrainOptions)
        trained = train(self, self.chosen)
        print(f"checkpoint: {trained.model}")


@dataclass(frozen=True)
class FromScript:
    """Print the command of this project for a published launch script, which is read and not run."""

    from_script: Path
    """Shell script with one training command."""
    family: str = ""
    """Whose script it is; default the family whose flags it has."""

    def run(self) -> None:
        from vlnbench.training.family.find import every_family
        from vlnbench.training.launch_script import find_family, format_command, read_script

        command = read_script(self.from_script)
        print(format_command(command, find_family(self.family, command, every_family())))


@dataclass(frozen=True, kw_only=True)
class Train(Trains, TrainOptions):
    """Train parts of a model on collected trajectories, with DeepSpeed. Running the same command resumes it.

    Several GPUs: torchrun --nproc-per-node 8 -m vlnbench train ..., or deepspeed --module vlnbench train ...
    `vlnbench train --from-script FILE` prints the command for a published launch script.
    """

    @staticmethod
    def variant(arguments: Sequence[str]) -> type[Train] | type[FromScript]:
        """What the arguments ask for: to train, or to read a script."""
        given = any(argument.partition("=")[0] == "--from-script" for argument in arguments)
        return FromScript if given else Train
