"""The command `vlnbench eval`."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import ClassVar

from vlnbench.cli.selected import AGENT, Selection
from vlnbench.evaluation.options import EvalOptions


@dataclass(frozen=True)
class Eval(EvalOptions):
    """Evaluate an agent on a split. Running the same command again resumes it."""

    selections: ClassVar[tuple[Selection, ...]] = (AGENT,)

    def run(self) -> None:
        from vlnbench.evaluation.session import run_eval

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as after Ctrl-C
        run_eval(self)
