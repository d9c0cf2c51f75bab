"""Agents served on this machine, for tests of both ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agents.remote import RemoteAgent
from agents.remote_options import RemoteOptions
from vlnbench.interfaces import Agent
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.serving.options import ServeOptions
from vlnbench.serving.serve import AgentServer


@contextmanager
def serving(agent: Agent, name: str = "random", token: str = "", port: int = 0, **options: Any) -> Iterator[str]:
    """Serve an agent in a thread; yields its address. Connections are closed at the end."""
    asked = ServeOptions(
        name, port=port, agent_options=AgentOptions(max_batch=options.pop("max_batch", 8)), **options
    )
    with AgentServer(agent, asked, token) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server.address
        finally:
            server.stop()
            thread.join(10)


def connected(address: str, timeout: float = 20.0, reconnect: float = 20.0) -> RemoteAgent:
    return RemoteAgent(address, RemoteOptions(remote_timeout=timeout, reconnect=reconnect))
