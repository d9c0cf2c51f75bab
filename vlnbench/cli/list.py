"""The command `vlnbench list`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class List:
    """List agents, model families and benchmarks."""

    def run(self) -> None:
        print(list_names())


def list_names() -> str:
    """Table of the agents, families and benchmarks that can be named on the command line."""
    from tabulate import tabulate

    from vlnbench.data.benchmarks import BENCHMARKS
    from vlnbench.training.families import every_family
    from vlnbench.training.sources import PRESET
    from vlnbench.util.loading import import_module

    agents: dict[str, tuple[str, str, str]] = import_module("agents.table").AGENTS
    agent_rows = [[name, family, summary] for name, (_, family, summary) in agents.items()]
    family_rows = [
        [each.name, ", ".join(each.training.PARTS), ", ".join(PRESET + preset for preset in each.presets)]
        for each in every_family()
    ]
    benchmark_rows = [[b.name, ", ".join(b.splits), b.fingerprint, b.summary] for b in BENCHMARKS.values()]
    return "\n\n".join(
        [
            tabulate(agent_rows, headers=["agent", "family", "what it does"]),
            tabulate(family_rows, headers=["family", "tunable parts", "presets"]),
            tabulate(benchmark_rows, headers=["benchmark", "splits", "fingerprint", "what it is"]),
        ]
    )
