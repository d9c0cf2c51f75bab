"""What is served and where: the options of `vlnbench serve`, and checks of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from vlnbench.errors import UsageError
from vlnbench.rollout.agent_options import AgentOptions

TOKEN = "VLNBENCH_TOKEN"
"""Environment variable with the token that a served agent and its clients share."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServeOptions:
    """Which agent is served, where, and what clients may ask for."""

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
    agent_options: AgentOptions = field(default_factory=AgentOptions)
    """Options of the agent, of its own type."""

    def check(self) -> None:
        """Raise UsageError for numbers that make no sense and for an open door."""
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port {self.port}: expected 0 (any free one) to 65535")
        for name, value in (("max-slots", self.max_slots), ("max-message-mb", self.max_message_mb)):
            if value < 1:
                raise UsageError(f"--{name} {value}: expected 1 or more")
        self.agent_options.check()
        if not self.answer_timeout > 0:
            raise UsageError(f"--answer-timeout {self.answer_timeout:g}: expected more than 0 seconds")
        if self.host not in LOOPBACK and not os.environ.get(TOKEN):
            raise UsageError(f"--host {self.host}: others can reach it; set a token in the environment as {TOKEN}")
