"""The command `vlnbench list`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class List:
    """List agents and benchmarks."""

    def run(self) -> None:
        print(list_names())


def list_names() -> str:
    """Table of the agents and benchmarks that can be named on the command line."""
    from tabulate import tabulate

    from vlnbench.data.benchmarks import BENCHMARKS
    from vlnbench.util.loading import import_module

    agents: dict[str, tuple[str, str]] = import_module("agents.table").AGENTS
    agent_rows = [[name, summary] for name, (_, summary) in agents.items()]
    benchmark_rows = [[b.name, ", ".join(b.splits), b.fingerprint, b.summary] for b in BENCHMARKS.values()]
    return "\n\n".join(
        [
            tabulate(agent_rows, headers=["agent", "what it does"]),
            tabulate(benchmark_rows, headers=["benchmark", "splits", "fingerprint", "what it is"]),
        ]
    )
