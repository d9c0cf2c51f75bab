"""The command `vlnbench list`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OWN = "vlnbench"
"""Where those come from that no other distribution adds."""


@dataclass(frozen=True)
class List:
    """List agents, model families, benchmarks, environments, trackers and rewards, and where each comes from."""

    def run(self) -> None:
        print(list_names())


def list_names() -> str:
    """Table of what can be named on the command line. Other distributions' part of it is imported."""
    from tabulate import tabulate

    from vlnbench.rollout.env_names import ENVS
    from vlnbench.util.trackers import TRACKERS

    trackers = {name: target for name, (target, _) in TRACKERS.items()}
    classes = [_classes("envs", ENVS), _classes("trackers", trackers)]
    tables = [_agents(), _families(), _benchmarks(), *classes, *_of_objectives(), _formats()]
    return "\n\n".join(tabulate(rows, headers=[*headers, "from"]) for headers, rows in tables)


_Table = tuple[Sequence[str], list[list[str]]]


def _agents() -> _Table:
    from vlnbench.util.loading import import_module

    own = import_module("agents.table").AGENTS
    rows = [[name, listed.family, listed.summary, OWN] for name, listed in own.items()]
    rows += [[name, "", _first_line(made), whose] for name, made, whose in _added("agents", own)]
    return ("agent", "family", "what it does"), rows


def _families() -> _Table:
    from vlnbench.training.family.find import every_family
    from vlnbench.training.family.sources import PRESET
    from vlnbench.util.loading import import_module

    own = import_module("agents.table").FAMILIES
    whose = _whose("families", own)
    rows = [
        [
            each.name,
            ", ".join(each.training.PARTS) if each.training else "",
            ", ".join(PRESET + preset for preset in each.presets),
            whose.get(each.name, OWN),
        ]
        for each in every_family()
    ]
    return ("family", "tunable parts", "presets"), rows


def _benchmarks() -> _Table:
    from vlnbench.data.benchmarks import BENCHMARKS, every_benchmark

    whose = _whose("benchmarks", BENCHMARKS)
    rows = [
        [each.name, ", ".join(each.splits), each.fingerprint, each.summary, whose.get(each.name, OWN)]
        for each in every_benchmark()
    ]
    return ("benchmark", "splits", "fingerprint", "what it is"), rows


def _formats() -> _Table:
    from vlnbench.importing.formats import every_format
    from vlnbench.util.loading import import_module

    whose = _whose("results", import_module("agents.table").RESULTS)
    return ("format of results", "what writes it"), [
        [each.name, each.source, whose.get(each.name, OWN)] for each in every_format()
    ]


def _classes(group: str, own: Mapping[str, str]) -> _Table:
    """Rows of a table of import strings; those of vlnbench are read and not imported, as they load much."""
    from vlnbench.util.loading import first_line
    from vlnbench.util.plugins import KINDS

    rows = [[name, first_line(target), OWN] for name, target in own.items()]
    rows += [[name, _first_line(made), whose] for name, made, whose in _added(group, own)]
    return (KINDS[group], "what it does"), rows


def _of_objectives() -> Iterator[_Table]:
    """What objectives have names for."""
    from vlnbench.training.objectives import OBJECTIVES
    from vlnbench.util.loading import import_string

    for objective in OBJECTIVES.values():
        if objective.listed:
            group, headers, own = import_string(objective.listed)()
            rows = [[*row, OWN] for row in own]
            blank = [""] * (len(headers) - 2)
            added = _added(group, [row[0] for row in own])
            rows += [[name, *blank, _first_line(made), whose] for name, made, whose in added]
            yield headers, rows


def _added(group: str, own: Collection[str]) -> Iterator[tuple[str, Any, str]]:
    """Name, object and distribution of what others add and can be loaded."""
    from vlnbench.util.plugins import readable

    for name, (made, whose) in readable(group, own, lambda each: (each.load(), each.distribution)).items():
        yield name, made, whose


def _whose(group: str, own: Collection[str]) -> dict[str, str]:
    """Names of all that others add, with their distributions."""
    from vlnbench.util.plugins import plugins

    return {name: each.distribution for name, each in plugins(group, own).items()}


def _first_line(made: Any) -> str:
    return str(getattr(made, "__doc__", None) or "").strip().partition("\n")[0]
