"""Agents served on this machine, for tests of both ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.remote import RemoteAgent
from agents.remote_options import RemoteOptions
from tests.fakes import make_set
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.evaluation.evaluate import Execution, Plan, evaluate, make_plan
from vlnbench.evaluation.records import ROWS, TRAJECTORIES
from vlnbench.interfaces import Agent
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.processes import Processes
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


def connected(address: str, timeout: float = 60.0, reconnect: float = 60.0) -> RemoteAgent:
    return RemoteAgent(address, RemoteOptions(remote_timeout=timeout, reconnect=reconnect))


def plan(agent: str = "random", count: int = 6) -> Plan:
    return make_plan(get_benchmark("houses-r2r"), make_set("set", count), agent, count=None, seed=0, repeats=1)


def run(folder: Path, agent: Agent, envs: int = 2, factory: str = "tests.faulty:FaultyEnv", **limits: Any) -> None:
    with processes(agent, envs, factory) as executor:
        evaluate(plan(), executor, folder, execution=Execution(Limits(**limits)))


def processes(agent: Agent, envs: int, factory: str = "tests.faulty:FaultyEnv") -> Processes:
    executor = Processes(envs)
    executor.use(agent)
    executor.set_up(EnvSetup(factory, (), agent.sensors))
    return executor


def timeless(folder: Path) -> list[str]:
    rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    lines = [json.dumps({**row, "seconds": {}}) for row in rows]
    return sorted(lines) + sorted((folder / TRAJECTORIES).read_text().splitlines())
