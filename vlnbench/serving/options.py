"""What is served and where: the options of `vlnbench serve`, and checks of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Gt, Interval

from vlnbench.errors import UsageError
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.util.bounds import Count, check_bounds
from vlnbench.util.machine import LOOPBACK

TOKEN = "VLNBENCH_TOKEN"
"""Environment variable with the token that a served agent and its clients share."""


@dataclass(frozen=True)
class ServeOptions:
    """Which agent is served, where, and what clients may ask for."""

    agent: str
    """Name from `vlnbench list`, or an import string package.module:Class."""
    host: str = "127.0.0.1"
    """Address to listen at; any but this machine's own needs a token."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 8900
    """Port to listen at; 0: any free one, which is printed."""
    max_slots: Count = 64
    """Episodes of all clients at a time, at most."""
    max_message_mb: Count = 64
    """Larger messages are refused (MiB); a frame of 640 by 480 pixels is 0.9, with depth 2.1."""
    answer_timeout: Annotated[float, Gt(0)] = 300.0
    """Seconds that the agent may take for one answer before the server ends with exit code 124."""
    agent_options: AgentOptions = field(default_factory=AgentOptions)
    """Options of the agent, of its own type."""

    def check(self) -> None:
        """Raise UsageError for numbers that make no sense and for an open door."""
        check_bounds(self)
        self.agent_options.check()
        if self.host not in LOOPBACK and not os.environ.get(TOKEN):
            raise UsageError(f"--host {self.host}: others can reach it; set a token in the environment as {TOKEN}")
