"""Folders of questions about videos and pictures, in the layout of video LLaVA's training files.

`<folder>/conversations.json` lists records with `id`, `video` or `image` or neither (the path of a file below the
folder) and `conversations`, turns of "human" and "gpt" by turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.common.sets.trajectories import BELOW, stays_below
from vlnbench.data.sets import CONVERSATIONS, read_list
from vlnbench.errors import UsageError

_ROLES = ("human", "gpt")


@dataclass(frozen=True, slots=True)
class Record:
    """(question, answer) of every turn, about a video, a picture or nothing."""

    name: str
    file: Path | None
    is_video: bool
    turns: tuple[tuple[str, str], ...]


def read_records(folder: Path) -> tuple[list[Record], int]:
    """The records of a folder in order, and how many are left out because their files are missing.

    Raises UsageError for records that break the format, and where all files are missing.
    """
    path = folder / CONVERSATIONS
    found = [
        _record(path, number, each)
        for number, each in enumerate(read_list(path, "records", f"expected a set with {CONVERSATIONS}"))
    ]
    there = {file: file.is_file() for each in found if (file := each.file) is not None}
    if there and not any(there.values()):
        raise UsageError(f"{path}: none of its videos and pictures is below {folder}; extract the archives")
    kept = [each for each in found if each.file is None or there[each.file]]
    return kept, len(found) - len(kept)


def _record(path: Path, number: int, record: Any) -> Record:
    def fail(name: str, expected: str) -> UsageError:
        return UsageError(f"{path}: record {number}: field {name!r}: expected {expected}")

    if not isinstance(record, dict):
        raise UsageError(f"{path}: record {number}: expected an object with id, video or image, and conversations")
    kind = "video" if "video" in record else "image"
    file, turns = record.get(kind), record.get("conversations")
    if file is not None and not (isinstance(file, str) and file and stays_below(file)):
        raise fail(kind, f"{BELOW}, found {str(file)[:80]!r}")
    if not isinstance(turns, list) or not turns or len(turns) % 2:
        raise fail("conversations", "turns of human and gpt by turns")
    for place, turn in enumerate(turns):
        role = _ROLES[place % 2]
        if not isinstance(turn, dict) or turn.get("from") != role or not isinstance(turn.get("value"), str):
            raise fail(f"conversations[{place}]", f'an object with "from": "{role}" and a text as value')
    texts = [turn["value"] for turn in turns]
    pairs = tuple(zip(texts[::2], texts[1::2], strict=True))
    where = None if file is None else path.parent / file
    return Record(str(record.get("id", number)), where, kind == "video" and file is not None, pairs)
