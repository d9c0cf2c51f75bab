"""The command `vlnbench serve`."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from tyro.conf import OmitArgPrefixes

from vlnbench.rollout.model_options import ModelOptions


@dataclass(frozen=True)
class Serve:
    """Serve an agent to evaluations in other environments or on other machines, until Ctrl-C.

    They name it with --agent remote://HOST:PORT. A token that both sides have in the environment as VLNBENCH_TOKEN
    keeps others out; nothing is encrypted.
    """

    agent: str
    """Name from `vlnbench list`, or an import string package.module:Class."""
    host: str = "127.0.0.1"
    """Address to listen at; any but this machine's own needs a token."""
    port: int = 8900
    """Port to listen at; 0: any free one, which is printed."""
    max_slots: int = 64
    """Episodes of all clients at a time, at most."""
    max_message_mb: int = 64
    """Larger messages are refused (MiB); a frame of 640 by 480 pixels is 0.9, with depth 2.1."""
    answer_timeout: float = 300.0
    """Seconds that the agent may take for one answer before the server ends with exit code 124."""
    model: OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)
    """Trained model."""

    def run(self) -> None:
        from vlnbench.serving.serve import ServeRequest, run_serve

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as after Ctrl-C
        run_serve(ServeRequest(**vars(self)))
