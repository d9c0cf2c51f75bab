"""The command `vlnbench train`."""

from __future__ import annotations

from dataclasses import dataclass
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

        assert isinstance(self, TrainOptions)
        trained = train(self, self.chosen)
        print(f"checkpoint: {trained.model}")


@dataclass(frozen=True, kw_only=True)
class Train(Trains, TrainOptions):
    """Train parts of a model on collected trajectories, with DeepSpeed. Running the same command resumes it.

    Several GPUs: torchrun --nproc-per-node 8 -m vlnbench train ..., or deepspeed --module vlnbench train ...
    """
