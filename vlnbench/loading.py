"""Loads agents, environments and generators by name or import string, so that the core imports none of them."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Agent
from vlnbench.model_options import ModelOptions, RemoteOptions, ServedOptions

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
