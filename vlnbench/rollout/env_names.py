"""Finds what makes environments by name, without loading what ships with vlnbench. Imports nothing heavy."""

from __future__ import annotations

from vlnbench.defaults import ENVS as ENVS
from vlnbench.errors import UsageError, unknown
from vlnbench.util.plugins import plugins


def find_env(name: str) -> str:
    """Import string of the environments called `name`: one of `ENVS`, of another distribution, or itself one.

    Raises UsageError for a name that is none of these, and for what of another distribution cannot be imported.
    """
    if ":" in name or name in ENVS:
        return ENVS.get(name, name)
    added = plugins("envs", ENVS)
    if name not in added:
        text = unknown("environment", name, [*ENVS, *added])
        raise UsageError(f"--env: {text}; or give an import string package.module:Class")
    added[name].load()
    return added[name].target
