"""Makes agents by name or import string, and says by what name and code a record knows them."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Agent, Represents
from vlnbench.rollout.model_options import ModelOptions, RemoteOptions, ServedOptions
from vlnbench.util.loading import import_module, import_string


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
    return agent.stands_for.name if isinstance(agent, Represents) else asked


def code_digest(agent: Agent) -> str | None:
    """Hash of the code that defines the agent, so that an edited agent does not resume its former self's run.

    That is its file, or all files of its package unless the package is the common one, `agents`.
    """
    if isinstance(agent, Represents):
        return agent.stands_for.code
    try:
        path = Path(inspect.getfile(type(agent)))
        package = type(agent).__module__.rpartition(".")[0]
        files = [path] if package in ("", "agents") else sorted(path.parent.glob("*.py"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    except (TypeError, OSError):  # defined in an interactive session
        return None
