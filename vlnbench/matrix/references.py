"""What is evaluated beside the settings of a matrix, on the same episodes, so that its numbers can be read.

Section `references` of a matrix file: a list of agents by name, or of mappings with `agent`, options of it and a
`label`; `untuned` is what the trainings start from. Without the section: the agents that `agents.table` calls
references, and `untuned`; an empty list for none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.evaluation.options import EvalOptions
from vlnbench.matrix.fields import check_evaluation, check_known, checked, convert, digest, eval_types, mapping
from vlnbench.util.loading import import_module

UNTUNED = "untuned"
"""The name of what the trainings start from."""
OWN = {"told"}
"""Options of an evaluation that a reference may have other than the settings."""
EXECUTION = ("envs", "max_batch", "episode_timeout", "max_errors", "tracker")
"""Options of an evaluation that do not change its rows."""


@dataclass(frozen=True)
class Reference:
    """What is evaluated beside the settings. evaluate: options of `vlnbench eval` that are set, and `splits`."""

    name: str
    evaluate: Mapping[str, Any]

    def eval_key(self, split: str) -> str:
        """Hash of the evaluation of a split."""
        return digest(["reference", _plain(self.evaluate), split])


def read_references(
    given: Any, settings: Sequence[tuple[str, Mapping[str, Any]]], path: Path
) -> tuple[Reference, ...]:
    """The references of a matrix, each once for every protocol among its settings.

    settings: of each the checkpoint it trains from, empty where that has random weights, and its evaluation.
    Raises UsageError for what is no agent.
    """
    entries = [*import_module("agents.table").REFERENCES, UNTUNED] if given is None else given
    where = f"{path}: references"
    if not isinstance(entries, list):
        raise UsageError(f"{where}: expected a list of agents, [] for none")
    found: list[Reference] = []
    for number, entry in enumerate(entries, start=1):
        if entry == UNTUNED:
            found += _untuned(settings)
            continue
        given = {"agent": entry} if isinstance(entry, str) else mapping(entry, f"{where}: entry {number}")
        found += _agent(given, f"{where}: entry {number}", [evaluate for _, evaluate in settings])
    distinct = {(each.name, digest(_plain(each.evaluate))): each for each in found}
    return tuple(_named(list(distinct.values())))


def _agent(given: Mapping[str, Any], where: str, evaluations: Sequence[Mapping[str, Any]]) -> list[Reference]:
    """An agent on the episodes of the settings."""
    options = {name: value for name, value in given.items() if name != "label"}
    agent, label = options.get("agent"), given.get("label", options.get("agent"))
    if not isinstance(agent, str) or not isinstance(label, str):
        raise UsageError(f"{where}: expected the name of an agent, or a mapping with agent and label")
    types = checked(lambda: eval_types(agent, trained=False), where)
    shared = {each.name for each in fields(EvalOptions)} - OWN | {"splits"}
    check_known(options, [name for name in types if name not in shared or name == "agent"], f"{where}: option")
    own = convert(options, types, where)
    found = []
    for evaluation in evaluations:
        kept = {name: value for name, value in evaluation.items() if name in shared and name in types}
        reference = Reference(label, {**kept, **own})
        checked(lambda: check_evaluation(reference.evaluate), where)  # noqa: B023  # called at once
        found.append(reference)
    return found


def _untuned(settings: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Reference]:
    """What the trainings start from, where that has been trained before."""
    return [
        Reference(f"{UNTUNED} {Path(checkpoint).name}", {**evaluation, "checkpoint": checkpoint})
        for checkpoint, evaluation in settings
        if checkpoint
    ]


def _named(found: Sequence[Reference]) -> list[Reference]:
    """References with different names: those of several protocols are told apart by what they differ in."""
    result = []
    for each in found:
        others = [other.evaluate for other in found if other.name == each.name]
        differing = [
            name
            for name in dict.fromkeys(name for other in others for name in other if name not in EXECUTION)
            if len({str(other.get(name)) for other in others}) > 1
        ]
        shown = ", ".join(f"{name}={each.evaluate.get(name)}" for name in differing)
        result.append(Reference(f"{each.name} ({shown})" if shown else each.name, each.evaluate))
    return result


def _plain(evaluate: Mapping[str, Any]) -> dict[str, Any]:
    """Options that can change a row, without the splits, each of which is an evaluation of its own."""
    return {name: value for name, value in evaluate.items() if name not in (*EXECUTION, "splits")}
