"""What a checkpoint folder says it is, by which families recognize theirs. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from vlnbench.errors import UsageError
from vlnbench.util.durable.files import read_object


def model_type(folder: Path) -> object:
    """`model_type` of a folder's config.json; None where there is no such file or field."""
    try:
        return read_object(folder / "config.json").get("model_type")
    except UsageError:
        return None
