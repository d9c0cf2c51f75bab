"""The command `vlnbench train`."""

from __future__ import annotations

from dataclasses import dataclass

from vlnbench.training.options import TrainOptions


@dataclass(frozen=True, kw_only=True)
class Train(TrainOptions):
    """Train parts of a model on collected trajectories, with DeepSpeed. Running the same command resumes it.

    Several GPUs: torchrun --nproc-per-node 8 -m vlnbench train ..., or deepspeed --module vlnbench train ...
    """

    def run(self) -> None:
        from vlnbench.training.trainer import train

        trained = train(self)
        print(f"checkpoint: {trained.model}")
