"""Options of the agent that is served elsewhere. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from vlnbench.rollout.agent_options import AgentOptions


@dataclass(frozen=True, kw_only=True)
class RemoteOptions(AgentOptions):
    """How to wait for an agent that is served elsewhere (--agent remote://HOST:PORT)."""

    remote_timeout: Annotated[float, Gt(0)] = 120.0
    """Seconds that a served agent may take for one answer; then its episodes begin anew, once, one by one."""
    reconnect: Annotated[float, Ge(0)] = 60.0
    """Seconds to wait for a server that has gone before the run stops, to be resumed."""
