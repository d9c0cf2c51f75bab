"""The JSON lists of records with which folders of training data begin. Imports nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular

TRAJECTORIES, CONVERSATIONS = "annotations.json", "conversations.json"
"""What a folder of walks and one of questions holds: StreamVLN's and LLaVA's layouts."""
CATEGORIES = "categories.json"
"""Names by channel of semantic images."""


def holds_questions(folder: Path) -> bool:
    """Whether a folder holds questions, not walks. Raises UsageError for one that holds both."""
    walks, questions = ((folder / name).is_file() for name in (TRAJECTORIES, CONVERSATIONS))
    if walks and questions:
        raise UsageError(f"{folder}: holds both {TRAJECTORIES} and {CONVERSATIONS}; move one to another folder")
    return questions


def read_list(path: Path, records: str, absent: str) -> list[Any]:
    """A file's list of records, in order; it is not empty.

    records: what they are, in the plural. absent: what to do where the file is not there. Raises UsageError.
    """
    try:
        found = json.loads(regular(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: not there; {absent}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(found, list) or not found:
        raise UsageError(f"{path}: expected a list of {records}")
    return found
