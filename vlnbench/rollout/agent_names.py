"""Finds agents and their options by name, without loading the agents of the table. Imports nothing heavy."""

from __future__ import annotations

from vlnbench.errors import UsageError, unknown
from vlnbench.rollout.agent_options import AgentOptions, TakesOptions
from vlnbench.util.loading import import_module, import_string
from vlnbench.util.plugins import plugins


def agent_names() -> list[str]:
    """Names of the agents that ship with vlnbench, and of those that other distributions add."""
    own = import_module("agents.table").AGENTS
    return [*own, *plugins("agents", own)]


def find_agent(name: str) -> tuple[str, str | None]:
    """The import strings of an agent's class and, if it is one of the table, of its options' type.

    Raises UsageError for a name that is neither in the table nor another distribution's nor an import string
    `package.module:Class`, and for what of another distribution cannot be imported.
    """
    table = import_module("agents.table")
    scheme, addressed, _ = name.partition("://")
    listed = scheme if addressed else name
    if listed in table.AGENTS:
        return table.AGENTS[listed].agent, table.AGENTS[listed].options
    if ":" in listed:
        return name, None
    added = plugins("agents", table.AGENTS)
    if listed not in added:
        what = f"--agent {name}: " if addressed else ""
        also = "" if addressed else "; or give an import string package.module:Class"
        raise UsageError(f"{what}{unknown('agent', listed, [*table.AGENTS, *added])}{also}")
    added[listed].load()
    return added[listed].target, None


def is_small(name: str) -> bool:
    """Whether an agent brings a model so small that an agent on each core is faster than one on all."""
    listed = import_module("agents.table").AGENTS.get(name)
    return listed is not None and listed.small


def family_of(name: str) -> str:
    """The model family of an agent's checkpoints. Raises UsageError for an agent that loads none."""
    find_agent(name)
    listed = import_module("agents.table").AGENTS.get(name)
    if listed is None or not listed.family:
        raise UsageError(f"--agent {name}: loads no checkpoint of a family; give --family or --model")
    family: str = listed.family
    return family


def options_type(name: str) -> type[AgentOptions]:
    """The type of an agent's options. An agent of the table is not loaded for it.

    Raises UsageError as `find_agent` does, and for an import string that cannot be imported.
    """
    agent, options = find_agent(name)
    found: type[AgentOptions] = (
        declared_options(import_string(agent)) if options is None else import_string(options)
    )
    return found


def declared_options(factory: object) -> type[AgentOptions]:
    """The options that a class of agents names itself; those of every agent for one that names none."""
    return factory.options_type if isinstance(factory, TakesOptions) else AgentOptions
