"""The command `vlnbench serve`."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import ClassVar

from vlnbench.cli.selected import AGENT, Selection
from vlnbench.serving.options import ServeOptions


@dataclass(frozen=True)
class Serve(ServeOptions):
    """Serve an agent to evaluations in other environments or on other machines, until Ctrl-C.

    They name it with --agent remote://HOST:PORT. A token that both sides have in the environment as VLNBENCH_TOKEN
    keeps others out; without it, one in the cache folder of the user does on this machine. Nothing is encrypted.
    """

    selections: ClassVar[tuple[Selection, ...]] = (AGENT,)

    def run(self) -> None:
        from vlnbench.serving.serve import run_serve

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as after Ctrl-C
        run_serve(self)
