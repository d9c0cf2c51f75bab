"""How a matrix is carried out, apart from what it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlnbench.errors import UsageError
from vlnbench.util.bounds import Count, Natural, Positive, check_bounds


@dataclass(frozen=True)
class Execution:
    """How a matrix is carried out. Nothing here changes a result, and it may change while a matrix is half done.

    jobs: how many settings at a time share the machine's cores evenly. gpu: memory of one GPU, such as 80GB, by
    which plans are judged; default that of the GPUs that are there. plan_as: published sizes by which a checkpoint
    is planned that is not there yet; default its family's, where that has only one. unfit: what is done with
    settings that do not fit by their plan. train_timeout_s, eval_timeout_s: for one command. tflops: what one
    device computes per second while training, in 1e12 operations; without it no time is planned. store: folder by
    which matrices share finished trainings and evaluations, see `store`.
    """

    jobs: Count = 1
    gpus_per_setting: Natural = 1
    gpu: str | None = None
    unfit: Literal["run", "skip"] = "run"
    train_timeout_s: Positive | None = None
    eval_timeout_s: Positive | None = None
    tflops: Positive | None = None
    plan_as: str | None = None
    store: Path | None = None

    def check(self, where: str) -> None:
        """Raise UsageError for numbers that make no sense."""
        check_bounds(self, f"{where}.")
        if self.gpu is not None and not re.fullmatch(r"[1-9]\d{0,3}(\.\d{1,3})?(GB|GiB)", self.gpu):
            raise UsageError(f"{where}.gpu {self.gpu}: expected a size such as 80GB or 79.2GiB")
