"""What fields of a matrix file may hold, and which of them go into a setting's hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import UsageError, unknown
from vlnbench.evaluation.options import EvalOptions
from vlnbench.rollout.agent_names import options_type
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.objectives.spec import ObjectiveSpec
from vlnbench.training.options import TrainOptions
from vlnbench.util.durable.fields import short
from vlnbench.util.names import split_names

_T = TypeVar("_T")
_LONGEST = 200
"""Characters of what an error line quotes."""
HASHED = 3
"""Version of how trainings are hashed, and of files with such hashes; those of before: `work.older`."""


def digest(value: Any) -> str:
    """Twelve hexadecimal digits for a value that JSON can write; paths count as text."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check_evaluation(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options of `vlnbench eval`, and `splits`, that make no evaluation."""
    benchmark = get_benchmark(options["benchmark"])
    if len(set(options["splits"])) < len(options["splits"]):
        raise UsageError("splits: expected each split once")
    for split in options["splits"]:
        if split not in benchmark.splits:
            raise UsageError(unknown(f"split of {benchmark.name}", split, benchmark.splits))
    kind = options_type(options["agent"])
    own = {each.name for each in fields(kind)}
    agent_options = kind(**{key: value for key, value in options.items() if key in own})
    asked = {key: value for key, value in options.items() if key not in own and key != "splits"}
    for split in options["splits"]:
        EvalOptions(**asked, split=split, agent_options=agent_options).check()


def eval_types(agent: str, trained: bool = True) -> dict[str, Any]:
    """Options of an evaluation, those of its agent included.

    trained: raise UsageError for an agent that loads no checkpoint, which itself is not among the options then.
    """
    own = options_type(agent)
    if trained and "checkpoint" not in {each.name for each in fields(own)}:
        raise UsageError(f"agent {agent!r} loads no checkpoint, so nothing that is trained would be evaluated")
    places = ("gpus", "agents", "ray")  # the matrix divides the machine among settings
    named = ("as_published",)  # a matrix names the benchmark that it evaluates on
    single = ("split", "out", "video", "retry_errors", "until", "agent_options")
    common = types_of(EvalOptions, without=(*single, *places, *named))
    return {**common, **types_of(own, without=("checkpoint",) if trained else ()), "splits": tuple[str, ...]}


def types_of(kind: type, without: Sequence[str] = ()) -> dict[str, Any]:
    """Types of the fields of options."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind) if each.name not in without}


def make(kind: Callable[..., _T], options: Mapping[str, Any], where: str) -> _T:
    """Options of a kind from a mapping of a file. Raises UsageError naming the field that cannot be."""
    types = get_type_hints(kind)
    check_known(options, types, f"{where}: option")
    return kind(**convert(options, types, where))


def convert(options: Mapping[str, Any], types: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values as the types of their options: YAML reads 1e-5 as text, and a single set is a list of one."""
    result = {}
    for name, value in options.items():
        if isinstance(value, list) and types[name] is str:
            value = ",".join(map(str, value))
        elif isinstance(value, str) and types[name] == tuple[str, ...]:
            value = split_names(value)
        try:
            if isinstance(value, bool) and types[name] in (int, float, int | None, float | None):
                raise UsageError(f"{where}: {name} {short(value)}: expected a number")
            result[name] = TypeAdapter(types[name]).validate_python(value)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            said = f"{message[0].lower()}{message[1:]}"[:_LONGEST]
            raise UsageError(f"{where}: {name} {_quoted(value)}: {said}") from None
    return result


def checked(check: Callable[[], _T], where: str) -> _T:
    """What `check` returns; its UsageError says where it was raised."""
    try:
        return check()
    except UsageError as error:
        said = str(error)
        raise UsageError(
            f"{where}: {said if len(said) <= 2 * _LONGEST else said[: 2 * _LONGEST] + '...'}"
        ) from None


def _quoted(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_known(found: Iterable[Any], known: Iterable[str], what: str) -> None:
    """Raise UsageError for a name that is none of the known. what: place and kind, "file: section: option"."""
    before, _, kind = what.rpartition(": ")
    names = list(known)
    for name in found:
        if name not in names:
            raise UsageError(f"{before}: {unknown(kind, str(name), names)}")


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A section that holds names; one that is empty holds none. Raises UsageError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{where}: expected a mapping of names")
    return value


def hashed(options: TrainOptions, family: FamilySpec) -> dict[str, Any]:
    """What of a training goes into its hash: the family, and whatever is not at its default.

    So an option that is added leaves the hashes of older settings alone. A default that comes to mean something
    else does not: then `HASHED` has to grow, and `work.older` to learn what was before.
    """
    counted = [each for each in fields(options) if each.name not in ("out", "family")]
    chosen = {each.name: value for each in counted if (value := getattr(options, each.name)) != each.default}
    return {"version": HASHED, "family": family.name, **chosen}


def train_types(families: Iterable[FamilySpec], objectives: Iterable[ObjectiveSpec]) -> dict[str, Any]:
    """The options of training that a file may name, with their types: of families and of objectives."""
    kinds = [*(each.training for each in families if each.training), *(each.training for each in objectives)]
    return {name: kind for each in kinds for name, kind in types_of(each, without=("out",)).items()}
