"""Loads agents, environments and generators by name or import string, so that the core imports none of them."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from difflib import get_close_matches
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.util.visible import one_line, visible

_OWN_PACKAGES = ("agents", "envs")
_LONGEST, _HALF_STACK = 400, 20_000
"""Characters of an exception in a line, and of a half of its stack."""


def import_string(text: str) -> Any:
    """The object behind `package.module:attribute` or `folder/module.py:attribute`.

    The module may lie in the working folder. Raises UsageError for what cannot be found or imported, and for a
    file in whose place Python takes another of its name.
    """
    module_name, attribute = _found(text)
    asked = Path(text.partition(":")[0]).resolve()
    module = import_module(module_name)
    found = getattr(module, "__file__", None)
    if asked.suffix == ".py" and (found is None or Path(found).resolve() != asked):
        raise UsageError(
            f"import string {text!r}: Python finds another module {module_name} ({found or 'its own'}) "
            "before this file; rename the file"
        )
    if not hasattr(module, attribute):
        near = get_close_matches(attribute, [name for name in dir(module) if not name.startswith("_")], 1)
        meant = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise UsageError(f"import string {text!r}: module {module_name} has no {attribute!r}{meant}")
    return getattr(module, attribute)


def _found(text: str) -> tuple[str, str]:
    """Module and attribute of an import string; the module's folder is one of those that Python looks into."""
    module_name, _, attribute = text.partition(":")
    folder = Path.cwd()
    if module_name.endswith(".py"):
        path = Path(module_name).absolute()
        if not path.is_file():
            raise UsageError(f"import string {text!r}: there is no file {module_name}")
        module_name, folder = path.stem, path.parent
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that what lies there shadows nothing
    return module_name, attribute


def own_code(text: str) -> tuple[str, list[Path]]:
    """By what a record knows a user's own code behind an import string, and its files (`code_files`): module,
    attribute and a digest of the files. Empty for what ships with vlnbench."""
    module, attribute = _found(text)
    top = module.partition(".")[0]
    if top in (*_OWN_PACKAGES, "vlnbench"):
        return "", []
    path = _editable(module, top)
    files = code_files(module, path) if path else []
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return f"{module}:{attribute} {digest if files else ''}".strip(), files


def first_line(text: str) -> str:
    """The first line of the docstring of a class that an import string names, without importing its module."""
    module_name, _, name = text.partition(":")
    spec = importlib.util.find_spec(module_name)
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_bytes()).body
    found = next(each for each in body if isinstance(each, ast.ClassDef) and each.name == name)
    return (ast.get_docstring(found) or "").partition("\n")[0]


def describe(error: BaseException) -> str:
    """An exception in one line, with the last file and line that is neither a library's nor vlnbench's core.

    Raises nothing, whatever the exception does.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not _is_library(each.filename)]
    last = (own or frames)[-1:]
    where = "".join(f" ({one_line(Path(each.filename).name)}:{each.lineno})" for each in last)
    return f"{one_line(type(error).__name__)}: {one_line(error, _LONGEST)}{where}"


def stack(error: BaseException) -> str:
    """Where an exception came from, as Python prints it, in text that can be kept and shown."""
    text = "".join(traceback.format_exception(error))
    if len(text) > 2 * _HALF_STACK:
        text = f"{text[:_HALF_STACK]}\n...\n{text[-_HALF_STACK:]}"
    return visible(text)


def _is_library(file: str) -> bool:
    path = Path(file)
    core, python = Path(__file__).parents[1], Path(sysconfig.get_path("stdlib"))
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or file.startswith("<") or core in path.parents or python in path.parents


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
        shadowed = error.name is not None and error.name.partition(".")[0] in _OWN_PACKAGES
        hint = "; a package of that name comes with vlnbench: rename yours" if shadowed else ""
        raise UsageError(f"import string {name!r}: {describe(error)}{hint}") from error
    except UsageError:
        raise
    except Exception as error:  # whatever runs there
        if package in _OWN_PACKAGES:
            raise
        raise UsageError(f"import string {name!r}: cannot be imported: {describe(error)}") from error


def check_own_package(package: ModuleType) -> None:
    """Refuse a top-level `agents` or `envs` that belongs to another distribution."""
    if not getattr(package, "VLNBENCH", False):
        where = getattr(package, "__file__", None) or next(iter(getattr(package, "__path__", "?")))
        owners = ", ".join(packages_distributions().get(package.__name__, ()))
        owner = owners if owners and "-packages" in str(where) else "another distribution or folder of that name"
        raise UsageError(
            f"the package {package.__name__!r} that Python finds is not vlnbench's ({where}): {owner} comes "
            "first; uninstall or rename it, or use a fresh environment"
        )


def code_files(module: str, path: Path) -> list[Path]:
    """The file of a module and those of what it imports anywhere, sorted: all that people may edit.

    Followed are its own top-level package, and what is neither installed nor Python's nor vlnbench's, which have
    versions. Nothing is imported for it; a name that is computed when the program runs is not seen.
    """
    found: set[Path] = set()
    waiting, top = [(module, path)], module.partition(".")[0]
    while waiting:
        name, file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += [(each, own) for each in _imported(name, file) if (own := _editable(each, top)) is not None]
    return sorted(found)


def _imported(module: str, file: Path) -> set[str]:
    """Full names of what a file may import, with the packages above them."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # edited since it was imported
        return set()
    above = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            near = above[: len(above) + 1 - node.level] if node.level else []
            base = ".".join([*near, *([node.module] if node.module else [])])
            names |= {base, *(f"{base}.{each.name}".strip(".") for each in node.names)}
    return {".".join(name.split(".")[:count]) for name in names for count in range(1, name.count(".") + 2)}


def _editable(name: str, top: str) -> Path | None:
    """The file of a module that `code_files` follows."""
    first = name.partition(".")[0]
    if first != top and first in (*_OWN_PACKAGES, "vlnbench", *sys.stdlib_module_names):
        return None
    where: list[str] | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), where)
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or ())
    path = Path(spec.origin) if spec is not None and spec.origin else None
    if path is None or path.suffix != ".py":  # a folder without __init__.py, or compiled
        return None
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return None if installed and first != top else path
