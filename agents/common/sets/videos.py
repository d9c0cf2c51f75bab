"""Folders of questions about videos and pictures, in the layout of video LLaVA's training files.

A JSON file lists records with `id`, `video` or `image` or neither (the path of a file below the folder) and
`conversations`, turns of "human" and "gpt" by turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.common.sets.records import Records
from vlnbench.errors import UsageError
from vlnbench.util.durable.json_stream import elements


@dataclass(frozen=True, slots=True)
class Record:
    """(question, answer) of every turn, about a video, a picture or nothing."""

    name: str
    file: Path | None
    is_video: bool
    turns: tuple[tuple[str, str], ...]


def read_records(
    file: Path, odd: Callable[[Record], str | None], example: str
) -> tuple[list[Record], tuple[str, ...]]:
    """The records of a file in order, and lines on those that are left out.

    odd: the answer of a record that is in another form than `example`, None where none is. Raises UsageError for
    records that break the format, and where nothing is left.
    """
    records, kept = Records(file, file.parent), list[Record]()
    for number, each in enumerate(elements(file)):
        record = _record(records, number, each)
        if (answer := odd(record)) is not None:
            records.odd.append((number, answer))
        elif record.file is not None and not records.has(str(record.file.relative_to(file.parent))):
            records.lost.append(str(record.file.relative_to(file.parent)))
        else:
            kept.append(record)
    left_out = records.left_out(example, "are left out")
    if not kept:
        raise UsageError(left_out[-1] if left_out else f"{file}: expected a list of records")
    return kept, left_out


def _record(records: Records, number: int, record: Any) -> Record:
    record = records.fields(number, record, " with id, video or image, and conversations")
    kind = "video" if "video" in record else "image"
    file = None if record.get(kind) is None else records.root / records.below(number, kind, record[kind])
    if file is not None and file.suffix == ".pkl":
        raise records.fail(number, kind, "a video: features in pickle files are not read")
    turns = records.turns(number, record.get("conversations"))
    return Record(str(record.get("id", number)), file, kind == "video" and file is not None, turns)
