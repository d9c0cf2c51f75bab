"""Makes agents by name or import string, and says by what name and code a record knows them."""

from __future__ import annotations

import hashlib
import inspect
import socket
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args, runtime_checkable

from vlnbench.errors import RunError, UsageError, unknown
from vlnbench.interfaces import Agent, Conventions, Scalar, Sensor, StandsFor
from vlnbench.rollout import said
from vlnbench.rollout.agent_names import declared_options, find_agent
from vlnbench.rollout.agent_options import AgentOptions, TakesOptions, fitting
from vlnbench.traits import Describes, MadeOf, Reads, Remarks, Represents, Resizes, TimesBatches, Watches
from vlnbench.util.durable.json_stream import sha256
from vlnbench.util.loading import code_files, describe, import_string
from vlnbench.util.machine import hardware
from vlnbench.util.progress import say
from vlnbench.util.visible import one_line, shown
from vlnbench.version import __version__

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What records and checks have to know of an agent, wherever it is.

    name, code: what a record knows it by. place: where it runs, if it matters to a reader. watches: it can be
    overruled (`Watches`). host: the machine it is on; version: of vlnbench there. hardware: as of
    `machine.hardware`, empty for an agent that only passes on to another. files: all that it was made from, with
    its code; None where that is not known.
    """

    name: str
    code: str | None
    place: Mapping[str, str]
    sensors: frozenset[Sensor]
    privileged: bool
    expects: Conventions
    identity: Mapping[str, Scalar]
    description: str
    watches: bool
    version: str
    host: str
    hardware: Mapping[str, Any]
    files: tuple[Path, ...] | None = None

    def differences(self, other: AgentFacts) -> list[str]:
        """What would make results of the two another run."""
        ours, theirs = ({**asdict(each), **each.identity} for each in (self, other))
        own = ("place", "description", "host", "hardware", "identity", "files")
        return [
            f"{key} {ours.get(key)!r} and {theirs.get(key)!r}"
            for key in sorted({*ours, *theirs})
            if key not in own and ours.get(key) != theirs.get(key)
        ]


@runtime_checkable
class Addressed(Protocol):
    """Trait of a class of agents that live at an address, `scheme://…`, which is their name."""

    def at(self, address: str, options: Any) -> Agent:
        """The agent at an address; called on the class. Raises UsageError where there is none."""
        ...


def load_agent(name: str, options: AgentOptions | None = None) -> Agent:
    """Make the agent called `name`: a name from the agent table or an import string `package.module:Class`.

    options: of the agent's own type (`agent_options.options_type`), or others of which only those are set that the
    agent has too; default its own defaults. Raises UsageError for unknown names, import failures, classes that are
    no agent, and options that the agent does not take.
    """
    string, _ = find_agent(name)
    factory = import_string(string)
    if not inspect.isclass(factory):
        raise UsageError(f"agent {name!r}: expected a class")
    agent: Agent = _make_agent(name, factory, options or AgentOptions())
    if not _has(agent, Agent):
        members = ("sensors", "privileged", "expects", "identity", "reset", "act", "close")
        missing = ", ".join(member for member in members if not hasattr(agent, member))
        raise UsageError(
            f"agent {name!r}: not an agent, it lacks {missing}; derive it from agents.base.EpisodeAgent"
        )
    return agent


def _has(agent: object, trait: type) -> bool:
    """Whether an agent has a trait. What raises when it is looked at counts as there."""
    try:
        return isinstance(agent, trait)
    except Exception:
        return True


def _declared(agent: Agent, asked: str, name: str, plain: Callable[[Any], T]) -> T:
    """What an agent declares, as `plain` has it. Raises UsageError for what that raises ValueError for."""
    try:
        given = getattr(agent, name)
    except (UsageError, RunError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsageError(f"agent {asked!r}: {name} cannot be read: {describe(error)}") from error
    try:
        return plain(given)
    except ValueError as error:
        raise UsageError(f"agent {asked!r}: {error}") from error


def _sensors(given: Any) -> frozenset[Sensor]:
    known = get_args(Sensor)
    if not isinstance(given, Set):
        raise ValueError(f"sensors: expected a set such as frozenset({{'rgb'}}), found {shown(given)}")
    for each in given - set(known):
        raise ValueError(f"sensors: {unknown('sensor', one_line(each), known)}")
    return frozenset(given)


def _stands_for(given: Any) -> StandsFor:
    if not isinstance(given, StandsFor):
        raise ValueError(f"stands_for: expected vlnbench.interfaces.StandsFor, found {shown(given)}")
    return given


def _paths(given: Any) -> list[Path]:
    named = [given] if isinstance(given, str | Path) else given
    if not isinstance(named, Iterable) or not all(isinstance(each, str | Path) for each in named):
        raise ValueError(f"files or reads: expected paths, found {shown(given)}")
    return [Path(each) for each in named]


def _check_sizes(agent: Agent, asked: str) -> None:
    """Raise UsageError for sizes and times that are no numbers."""

    def size(given: Any) -> None:
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ValueError(f"rgb_size {shown(given)}: expected (height, width)")
        for each in given:
            said.number(each, "rgb_size")

    def times(given: Any) -> None:
        if not isinstance(given, Mapping):
            raise ValueError(f"batch_seconds {shown(given)}: expected seconds by number of episodes")
        for count, seconds in given.items():
            if said.number(count, "batch_seconds for") < 1 or said.number(seconds, "batch_seconds") < 0:
                raise ValueError(f"batch_seconds {shown(given)}: expected seconds by number of episodes")

    if _has(agent, Resizes):
        _declared(agent, asked, "rgb_size", size)
    if _has(agent, TimesBatches):
        _declared(agent, asked, "batch_seconds", times)


def _make_agent(name: str, factory: type, options: AgentOptions) -> Any:
    if "://" in name and not isinstance(factory, Addressed):
        raise UsageError(f"agent {name!r}: leave out what follows its name; only remote:// has an address")
    options = fitting(name, options, declared_options(factory))
    if isinstance(factory, Addressed):
        return factory.at(name, options)
    if isinstance(factory, TakesOptions):
        return _constructed(name, factory, options)
    missing = [each.name for each in inspect.signature(factory).parameters.values() if _is_needed(each)]
    if missing:
        raise UsageError(
            f"agent {name!r}: its constructor wants {', '.join(missing)}; an agent with options names their type: "
            "options_type = YourOptions, derived from vlnbench.rollout.agent_options.AgentOptions"
        )
    return _constructed(name, factory)


def _constructed(name: str, factory: Any, *options: AgentOptions) -> Any:
    """Call the class. What a user's own raises is their mistake; ours raise UsageError for what we know of."""
    ours = factory.__module__.partition(".")[0] == "agents"
    try:
        return factory(*options)
    except (UsageError, RunError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if ours and not isinstance(error, OSError):
            raise
        raise UsageError(f"agent {name!r} cannot be made: {describe(error)}") from error


def _is_needed(parameter: inspect.Parameter) -> bool:
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in optional


def recorded_name(agent: Agent, asked: str) -> str:
    """The name of an agent in records: as it was asked for, or that of the agent it stands for."""
    return agent.stands_for.name if isinstance(agent, Represents) else asked


def code_digest(agent: Agent) -> str | None:
    """Hash of the files that define the agent, so that an edited agent does not resume its former self's run.

    Those are all files of its package unless that is the common one, `agents`, all that they import which are
    neither installed nor vlnbench's core, and the files that the agent `Reads`. Raises UsageError if one of these
    cannot be read.
    """
    if isinstance(agent, Represents):
        return agent.stands_for.code
    try:
        found = hashlib.sha256(b"".join(file.read_bytes() for file in _code_files(agent)))
    except (TypeError, OSError):  # defined in an interactive session
        return None
    read = _read_files(agent)
    if read:
        found.update(sha256(*read).encode())
    return found.hexdigest()[:12]


def _code_files(agent: Agent) -> list[Path]:
    path, module = Path(inspect.getfile(type(agent))), type(agent).__module__
    package = module.rpartition(".")[0]
    own = [path] if package in ("", "agents") else sorted(path.parent.rglob("*.py"))
    return sorted({*own, *code_files(module, path)})


def _read_files(agent: Agent) -> list[Path]:
    return _declared(agent, type(agent).__name__, "reads", _paths) if _has(agent, Reads) else []


def facts_of(agent: Agent, asked: str) -> AgentFacts:
    """What is to be known of an agent that was asked for by a name. Raises UsageError for what it misstates."""
    read = partial(_declared, agent, asked)
    sensors = read("sensors", _sensors)
    _check_sizes(agent, asked)
    if isinstance(agent, Represents):
        read("stands_for", _stands_for)
    identity = read("identity", lambda given: said.scalars(given, "identity"))
    files = read("files", _paths) if _has(agent, MadeOf) else None
    return AgentFacts(
        name=recorded_name(agent, asked),
        code=code_digest(agent),
        place=dict(agent.stands_for.place) if isinstance(agent, Represents) else {},
        sensors=sensors,
        privileged=read("privileged", lambda given: said.truth(given, "privileged")),
        expects=read("expects", lambda given: said.conventions(given, "expects")),
        identity=identity,
        description=_lines(agent, asked, "description") if _has(agent, Describes) else "",
        watches=isinstance(agent, Watches),
        version=__version__,
        host=socket.gethostname(),
        hardware={} if isinstance(agent, Represents) else hardware(str(identity.get("device"))),
        files=None if files is None else (*files, *_code_files(agent), *_read_files(agent)),
    )


def remarks_of(agent: Agent) -> str:
    """What an agent has to say after a run; empty for nothing, and for what cannot be said, which costs a line."""
    try:
        return _lines(agent, type(agent).__name__, "remarks") if _has(agent, Remarks) else ""
    except UsageError as error:
        say(f"warning: {error}")
        return ""


def _lines(agent: Agent, asked: str, name: str) -> str:
    return _declared(agent, asked, name, lambda given: said.lines(given, name))
