"""Options of the agent that is served elsewhere. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from vlnbench.errors import UsageError
from vlnbench.rollout.agent_options import AgentOptions


@dataclass(frozen=True, kw_only=True)
class RemoteOptions(AgentOptions):
    """How to wait for an agent that is served elsewhere (--agent remote://HOST:PORT)."""

    remote_timeout: float = 120.0
    """Seconds that a served agent may take for one answer; then its episodes begin anew, once, one by one."""
    reconnect: float = 60.0
    """Seconds to wait for a server that has gone before the run stops, to be resumed."""

    def check(self) -> None:
        super().check()
        self.at_least(reconnect=0)
        if not self.remote_timeout > 0:
            raise UsageError(f"--remote-timeout {self.remote_timeout:g}: expected more than 0 seconds")
