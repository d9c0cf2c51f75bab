"""What a checkpoint folder says it is, by which families recognize theirs. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.util.durable.files import read_object


def model_type(folder: Path) -> object:
    """`model_type` of a folder's config.json; None where there is no such file or field."""
    return _field(folder, "model_type")


def is_network(folder: Path, architecture: str) -> bool:
    """Whether a folder's config.json says that it is of this architecture and of no other."""
    return _field(folder, "architectures") == [architecture]


def _field(folder: Path, name: str) -> object:
    try:
        return read_object(folder / "config.json").get(name)
    except UsageError:
        return None
