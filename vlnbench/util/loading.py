"""Loads agents, environments and generators by name or import string, so that the core imports none of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from vlnbench.errors import UsageError

_OWN_PACKAGES = ("agents", "envs")


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
