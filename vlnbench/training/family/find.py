"""The model families there are: by name, by import string, or by what a checkpoint is. Loads nothing heavy."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from vlnbench.errors import UsageError, unknown
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.sources import find_source, other_content
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.options import TrainOptions
from vlnbench.util.loading import import_module, import_string
from vlnbench.util.plugins import Plugin, plugins, readable, warn


class Chosen(NamedTuple):
    """What a command works on, found once and handed on: a family, and where its network comes from."""

    family: FamilySpec
    source: Source


def find_family(name: str, checkpoint: str, option: str = "--checkpoint") -> Chosen:
    """The family called `name`, or where that is empty the one that a checkpoint is of; and what the latter is.

    Raises UsageError for unknown names and where no family, or more than one, takes the checkpoint. `option` is
    what the user gave the checkpoint to.
    """
    if name:
        family = get_family(name)
        return Chosen(family, find_source(checkpoint, [family], option))
    families = every_family()
    source = find_source(checkpoint, families, option)
    if source.path is not None:
        found = [family for family in families if _recognizes(family, source.path)]
    else:
        found = [family for family in families if source.name in (*family.presets, *family.sizes)]
    if len(found) == 1:
        return Chosen(found[0], source)
    if found:
        names = ", ".join(each.name for each in found)
        raise UsageError(f"{option} {checkpoint}: may be of the families {names}; say which with --family")
    if source.path is not None and (content := other_content(source.path)):
        raise UsageError(content)
    known = ", ".join(listed())
    raise UsageError(
        f"{option} {checkpoint}: no checkpoint of a family known here ({known}); name its family with --family"
    )


def get_family(name: str) -> FamilySpec:
    """A family by its name or import string. Raises UsageError for what is none."""
    own = _own()
    if ":" in name or name in own:
        return _load(own.get(name, name))
    added = plugins("families", own)
    if name not in added:
        raise UsageError(unknown("family", name, listed()) + "; or give an import string package.module:OBJECT")
    return _added(added[name])


def listed() -> list[str]:
    """Names of the families that ship with vlnbench, and of those that other distributions add."""
    own = _own()
    return [*own, *plugins("families", own)]


def default_family() -> FamilySpec:
    """The family whose options are shown where nothing says which."""
    return get_family(import_module("agents.table").DEFAULT_FAMILY)


def every_family() -> list[FamilySpec]:
    """The families that have a name, but for those of other distributions that cannot be loaded."""
    own = _own()
    return [*map(_load, own.values()), *readable("families", own, _added).values()]


def _own() -> dict[str, str]:
    families: dict[str, str] = import_module("agents.table").FAMILIES
    return families


def _added(plugin: Plugin) -> FamilySpec:
    found: FamilySpec = plugin.load()
    fits = isinstance(found, FamilySpec) and found.name == plugin.name
    kind = found.training if fits else None
    if not fits or not (kind is None or (isinstance(kind, type) and issubclass(kind, TrainOptions))):
        raise plugin.error(f"expected a vlnbench.training.family.spec.FamilySpec of the name {plugin.name!r}")
    return found


def _recognizes(family: FamilySpec, path: Path) -> bool:
    """Whether a path is a checkpoint of a family; one of another distribution may fail to say."""
    try:
        return family.recognizes(path)
    except Exception as error:
        plugin = plugins("families", _own()).get(family.name)
        if plugin is None:
            raise
        warn(plugin.error(f"cannot say whether {path} is a checkpoint of it ({type(error).__name__}: {error})"))
        return False


@cache
def _load(text: str) -> FamilySpec:
    found = import_string(text)
    if not isinstance(found, FamilySpec):
        raise UsageError(f"family {text!r}: expected a vlnbench.training.family.spec.FamilySpec")
    return found
