"""What a checkpoint folder says it is, by which families recognize theirs. Loads nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path


def model_type(folder: Path) -> object:
    """`model_type` of a folder's config.json; None where there is no such file or field."""
    try:
        return json.loads((folder / "config.json").read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
