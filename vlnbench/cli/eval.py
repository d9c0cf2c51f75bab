"""The command `vlnbench eval`."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import ClassVar

from vlnbench.cli.selected import AGENT, Selection
from vlnbench.errors import UsageError
from vlnbench.evaluation.options import EvalOptions


@dataclass(frozen=True)
class Eval(EvalOptions):
    """Evaluate an agent on a split. Running the same command again resumes it."""

    selections: ClassVar[tuple[Selection, ...]] = (AGENT,)

    def run(self) -> None:
        from vlnbench.evaluation.session import run_eval

        if int(os.environ.get("WORLD_SIZE") or 1) > 1 and "LOCAL_RANK" in os.environ:
            raise UsageError(
                "eval: torchrun starts it several times, and each would run every episode: leave torchrun out and "
                "name the GPUs, such as --gpus 0,1"
            )
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as after Ctrl-C
        run_eval(self)
