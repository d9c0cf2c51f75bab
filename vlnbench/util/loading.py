"""Loads agents, environments and generators by name or import string, so that the core imports none of them."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Agent, StandsFor
from vlnbench.rollout.model_options import ModelOptions, RemoteOptions, ServedOptions

_OWN_PACKAGES = ("agents", "envs")


def load_agent(name: str, options: ModelOptions | None = None) -> Agent:
    """Make the agent called `name`: a name from the agent table or an import string `package.module:Class`.

    Raises UsageError for unknown names, import failures, classes that are no agent, and options that the agent
    does not take.
    """
    table: dict[str, tuple[str, str]] = import_module("agents.table").AGENTS
    scheme, served, _ = name.partition("://")
    if served and scheme not in table:
        raise UsageError(f"--agent {name}: {unknown('agent', scheme, table)}")
    if ":" not in name and name not in table:
        raise UsageError(unknown("agent", name, table) + "; or give an import string package.module:Class")
    listed = table.get(scheme if served else name)
    factory = import_string(listed[0] if listed else name)
    if not inspect.isclass(factory):
        raise UsageError(f"agent {name!r}: expected a class")
    agent = _make_agent(name, factory, options or ModelOptions())
    if not isinstance(agent, Agent):
        members = ("sensors", "privileged", "expects", "identity", "reset", "act", "close")
        missing = ", ".join(member for member in members if not hasattr(agent, member))
        raise UsageError(
            f"agent {name!r}: not an agent, it lacks {missing}; derive it from agents.base.EpisodeAgent"
        )
    return agent


def _make_agent(name: str, factory: type, options: ModelOptions) -> Any:
    takes = inspect.signature(factory).parameters
    if "://" in name and "address" not in takes:
        raise UsageError(f"agent {name!r}: leave out what follows its name; only remote:// has an address")
    parts: dict[str, ServedOptions | RemoteOptions] = {"served": options.served, "remote": options.remote}
    refused = [flag for part, value in parts.items() if part not in takes for flag in _given(value)]
    if "options" not in takes:
        refused = [flag for flag in _given(options) if flag != "--max-batch"] + refused
    if refused:
        what = "takes other options" if takes else "loads no model"
        raise UsageError(f"agent {name!r} {what}: leave out {', '.join(refused)}")
    offered = {"options": options, "address": name, **parts}
    return factory(**{key: value for key, value in offered.items() if key in takes})


def _given(options: ModelOptions | ServedOptions | RemoteOptions) -> list[str]:
    """The flags of the options that were set, parts left out."""
    return [
        "--" + field.name.replace("_", "-")
        for field in fields(options)
        if field.default is not MISSING and getattr(options, field.name) != field.default
    ]


def recorded_name(agent: Agent, asked: str) -> str:
    """The name of an agent in records: as it was asked for, or that of the agent it stands for."""
    stands_for: StandsFor | None = getattr(agent, "stands_for", None)
    return asked if stands_for is None else stands_for.name


def code_digest(agent: Agent) -> str | None:
    """Hash of the code that defines the agent, so that an edited agent does not resume its former self's run.

    That is its file, or all files of its package unless the package is the common one, `agents`.
    """
    stands_for: StandsFor | None = getattr(agent, "stands_for", None)
    if stands_for is not None:
        return stands_for.code
    try:
        path = Path(inspect.getfile(type(agent)))
        package = type(agent).__module__.rpartition(".")[0]
        files = [path] if package in ("", "agents") else sorted(path.parent.glob("*.py"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    except (TypeError, OSError):  # defined in an interactive session
        return None


def import_string(text: str) -> Any:
    """The object behind `package.module:attribute`; the module may lie in the working folder."""
    module_name, _, attribute = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that what lies there shadows nothing
    module = import_module(module_name)
    if not hasattr(module, attribute):
        raise UsageError(f"import string {text!r}: module {module_name} has no {attribute!r}")
    return getattr(module, attribute)


def import_module(name: str) -> ModuleType:
    """Import a module; vlnbench's own top-level packages must not be shadowed by another distribution's."""
    package = name.partition(".")[0]
    try:
        if package in _OWN_PACKAGES:
            check_own_package(importlib.import_module(package))
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"import string {name!r}: there is no module {error.name!r}") from error
        raise


def check_own_package(package: ModuleType) -> None:
    """Refuse a top-level `agents` or `envs` that belongs to another distribution."""
    if not getattr(package, "VLNBENCH", False):
        where = getattr(package, "__file__", None) or next(iter(getattr(package, "__path__", "?")))
        raise UsageError(
            f"the package {package.__name__!r} that Python finds is not vlnbench's ({where}): another "
            "distribution or folder of that name comes first; uninstall or rename it, or use a fresh environment"
        )
