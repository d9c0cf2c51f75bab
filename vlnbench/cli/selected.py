"""Options that depend on another one: those of the agent that `--agent` names, of the model family, and the like.

A command shows them beside its own, without a prefix. Which they are is known before the command line is parsed,
from the one option that names their owner; so the help of a command lists what this agent takes and nothing else,
and an option of another agent is refused in one line that says whose it is.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Union, get_args

import tyro
from tyro.conf import OmitArgPrefixes
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from vlnbench.errors import UsageError
from vlnbench.rollout.agent_names import agent_names, options_type
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.training.family.find import Chosen, default_family, find_family, get_family, listed
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.objectives import OBJECTIVES, get_objective
from vlnbench.training.options import StepOptions
from vlnbench.util.names import split_names


@dataclass(frozen=True)
class Selection:
    """An option of a command that decides which further options it has.

    kind: what is chosen, which is also the option's name: `agent` for --agent. field: field of the command that
    holds the options of the chosen one. base: their type while nothing is chosen. options_of: their type by name;
    raises UsageError for an unknown name and must load nothing heavy for names of the table. names: of the table.
    A command lists its selections in a class variable `selections`.
    """

    kind: str
    field: str
    base: type
    options_of: Callable[[str], type]
    names: Callable[[], Iterable[str]]


AGENT = Selection("agent", "agent_options", AgentOptions, options_type, agent_names)
"""The agent of a command, and its options."""


def parse(commands: Any, arguments: Sequence[str], description: str | None = None) -> Any:
    """The command that the arguments name, one of a union of annotated dataclasses, with its options.

    Exits as tyro does for help and for options that nobody has. Raises UsageError for an unknown owner of options,
    and for options of another one.
    """
    members: list[Any] = []
    annotated: Any = Annotated
    original: type | None = None
    for member in get_args(commands):
        command, named = get_args(member)[:2]
        if hasattr(command, "variant") and arguments and named.name == arguments[0]:
            command = command.variant(arguments)
            member = annotated[(command, *member.__metadata__)]
        if arguments and named.name == arguments[0] and hasattr(command, "selections"):
            original = command
            member = annotated[(_narrowed(command, arguments), *member.__metadata__)]
        if arguments and named.name == arguments[0] and hasattr(command, "of_family"):
            member = annotated[(_of_family(command, arguments), *member.__metadata__)]
        members.append(member)
    union: Any = Union[tuple(members)]  # noqa: UP007
    found = tyro.cli(union, prog="vlnbench", description=description, args=arguments, registry=_RULES)
    return (
        found if original is None else original(**{each.name: getattr(found, each.name) for each in fields(found)})
    )


_RULES = ConstructorRegistry()


def _names_spec(read: Callable[[str], Sequence[str]]) -> PrimitiveConstructorSpec[tuple[str, ...]]:
    """Any number of names; `read` takes them out of a word."""
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="[NAME ...]",
        instance_from_str=lambda texts: tuple(name for text in texts for name in read(text)),
        is_instance=lambda value: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
        str_from_instance=list,
    )


WholeNames = Annotated[tuple[str, ...], _names_spec(lambda text: [text])]
"""Names in which a comma is a letter like others."""


@_RULES.primitive_rule
def _names_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[tuple[str, ...]] | None:
    """Lists of names: separated by spaces or by commas."""
    return _names_spec(split_names) if info.type == tuple[str, ...] else None


def _narrowed(command: Any, arguments: Sequence[str]) -> type:
    """The command with its selected options in place of their base type."""
    annotations: dict[str, Any] = {}
    body: dict[str, Any] = {"__doc__": command.__doc__, "__module__": command.__module__}
    defaults = {each.name: each.default for each in fields(command)}
    names = {each.kind: _given(arguments, each.kind) or defaults[each.kind] for each in command.selections}
    known = _flags(command)
    for selection in command.selections:
        name = names[selection.kind]
        kind = selection.base if name is MISSING else selection.options_of(name)
        known |= _flags(kind)
        other = f"vlnbench {arguments[0]} --{selection.kind} NAME --help"
        note = f"Options of {selection.kind} {name!r}; those of another: {other}"
        if name is MISSING:
            note = f"Options of every {selection.kind}; those of one: {other}"
        shown = tyro.conf.arg(name=selection.kind, help=note)
        annotations[selection.field] = Annotated[kind, OmitArgPrefixes, shown]
        body[selection.field] = field(default_factory=kind)
    for selection in command.selections:
        _refuse_others(
            selection, names[selection.kind], [flag for flag in _mentioned(arguments) if flag not in known]
        )
    return dataclass(frozen=True)(type(command.__name__, (command,), {**body, "__annotations__": annotations}))


def _of_family(command: Any, arguments: Sequence[str]) -> type:
    """The command with the options of the model family that --family names or that the checkpoint is of, and with
    those of the objective.

    They are the command's own: a family's class of options derives from the one that all families share. `chosen`
    of the class is what the options name, so that nobody has to find it again.
    """
    family, chosen = _family_and_source(command, arguments)
    name = _given(arguments, "objective") or StepOptions.objective
    kind: type = command.of_family(family, get_objective(name))
    known = _flags(kind) | _flags(command)
    strange = [flag for flag in _mentioned(arguments) if flag not in known]
    objectives = Selection(
        "objective", "", kind, lambda other: command.of_family(family, get_objective(other)), OBJECTIVES.keys
    )
    _refuse_others(objectives, name, strange)
    plain = get_objective(StepOptions.objective)
    others = Selection("family", "", kind, lambda other: command.of_family(get_family(other), plain), listed)
    _refuse_others(others, family.name, strange)
    bases = (kind, *(base for base in command.__bases__ if not issubclass(kind, base)))
    body = {"__doc__": command.__doc__, "__module__": command.__module__, "__annotations__": {}, "chosen": chosen}
    return dataclass(frozen=True, kw_only=True)(type(command.__name__, bases, body))


def _family_and_source(command: Any, arguments: Sequence[str]) -> tuple[FamilySpec, Chosen | None]:
    """The family that is named, or that the checkpoint is of; and both, where the checkpoint is there."""
    name, source = _given(arguments, "family") or "", _given(arguments, command.checkpoint_option)
    agent = _given(arguments, "agent") if hasattr(command, "family_of") else None
    if agent and not name:
        name = command.family_of(agent)
    try:
        family = get_family(name) if name else default_family()
        if source is None:
            return family, None
        chosen = find_family(name, source, f"--{command.checkpoint_option}")
        return chosen.family, chosen
    except UsageError:
        if not name and "--help" not in arguments:
            raise
        return get_family(name) if name else default_family(), None


def _refuse_others(selection: Selection, chosen: Any, strange: Sequence[str]) -> None:
    """Raise UsageError for flags that the command does not know now, but would with another one chosen."""
    owners: dict[str, list[str]] = {}
    for name in selection.names() if strange else ():
        try:
            flags = _flags(selection.options_of(name))
        except UsageError:  # one of another distribution that cannot be loaded
            continue
        for flag in strange:
            if flag in flags and name not in owners.setdefault(flag, []):
                owners[flag].append(name)
    owners = {flag: names for flag, names in owners.items() if names}
    if not owners:
        return
    whose = "; ".join(f"{flag} is an option of {' and '.join(names)}" for flag, names in owners.items())
    if chosen is MISSING:
        raise UsageError(f"--{selection.kind} NAME is missing: {whose}")
    raise UsageError(f"{selection.kind} {chosen!r} takes other options: leave out {', '.join(owners)} ({whose})")


def _flags(kind: type) -> set[str]:
    """The flags of a dataclass, those of parts without a prefix included."""
    found: set[str] = set()
    for each in fields(kind):
        flag = each.name.replace("_", "-")
        found |= {f"--{flag}", f"--no-{flag}"}
        made = each.default_factory
        if isinstance(made, type) and is_dataclass(made):
            found |= _flags(made)
    return found | {"--help"}


def _mentioned(arguments: Sequence[str]) -> list[str]:
    flags = (argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
    return [flag.replace("_", "-") for flag in flags]


def _given(arguments: Sequence[str], name: str) -> str | None:
    """The value of --name, the last one as tyro takes it; None if it is not there."""
    first = ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument(f"--{name}", nargs="?")
    value: str | None = getattr(first.parse_known_args(arguments)[0], name)
    return value
