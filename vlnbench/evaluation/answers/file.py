"""What models said in a run: `answers.jsonl`, a line per episode, written before the row that marks it as done.

A line holds columns with a value for every answer, in their order; columns of which nothing is known are left out.
Of an episode with several lines the last one counts, as of rows. Nothing here decides on a row.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from vlnbench.errors import UsageError
from vlnbench.evaluation.records import RowKey, begins_with, read_key
from vlnbench.interfaces import Action, Answer
from vlnbench.rollout.answers import Answered
from vlnbench.util.durable.fields import COUNT, NUMBER, SECONDS, TEXT, Kind
from vlnbench.util.durable.files import decode_line, line_blocks, open_for_append, stopped, write_all

ANSWERS = "answers.jsonl"
_NUMBERS = ("prompt_tokens", "images", "answer_tokens", "log_probability")
_COLUMNS = ("step", "seconds", "text", "actions")
_DIGITS = Kind("digits of actions", lambda value: type(value) is str and set(value) <= set("012345"))
_KINDS = {"step": COUNT, "seconds": SECONDS, "text": COUNT, "actions": _DIGITS}
_KNOWN = {**dict.fromkeys(_NUMBERS, COUNT.or_null()), "log_probability": NUMBER.or_null()}


class AnswersFile:
    """Adds to the file of a run. Use as a context manager, inside that of the run's folder.

    wanted: otherwise nothing is kept; of episodes that are run again it is then forgotten what was said before.
    """

    def __init__(self, folder: Path, wanted: bool) -> None:
        self._folder, self._wanted = folder, wanted
        self._files = contextlib.ExitStack()
        self._file: int | None = None

    def __enter__(self) -> AnswersFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def append(self, key: RowKey, answers: Sequence[Answered]) -> None:
        """Keep what was said in an episode; on disk when this returns. Raises RunError if it cannot be written."""
        path = self._folder / ANSWERS
        try:
            if self._file is None:
                if not (answers and self._wanted) and not os.path.lexists(path):
                    return  # agents without a model leave no file
                self._file = self._files.enter_context(open_for_append(path))
            line = msgspec.json.encode({"key": key, **encode_answers(answers if self._wanted else ())})
            write_all(self._file, line + b"\n")
        except OSError as error:
            raise stopped(self._folder, error) from error


def encode_answers(answers: Sequence[Answered]) -> dict[str, Any]:
    """JSON form of what was said in an episode: texts that are said again and again are written once."""
    if not answers:
        return {}
    texts = {text: i for i, text in enumerate(dict.fromkeys(each.answer.text for each in answers))}
    told = [each.answer for each in answers]
    found: dict[str, Any] = {
        "texts": list(texts),
        "step": [each.step for each in answers],
        "seconds": [round(each.seconds, 4) for each in answers],
        "text": [texts[answer.text] for answer in told],
        "actions": ["".join(str(int(action)) for action in answer.actions) for answer in told],
    }
    for name in _NUMBERS:
        column = [getattr(answer, name) for answer in told]
        if any(value is not None for value in column):
            found[name] = column
    if found.get("log_probability"):
        found["log_probability"] = [x if x is None else round(x, 4) for x in found["log_probability"]]
    for name in ("unparsable", "note"):
        marked = {str(i): getattr(answer, name) for i, answer in enumerate(told) if getattr(answer, name)}
        if marked:
            found[name] = marked if name == "note" else [int(i) for i in marked]
    return found


def decode_answers(entry: dict[str, Any]) -> list[Answered]:
    """Inverse of `encode_answers`. Raises ValueError, naming the field, for anything else."""
    if "step" not in entry:
        return []
    texts, count = _list(entry, "texts", TEXT), len(_list(entry, "step", COUNT))
    columns = {name: _list(entry, name, kind, count) for name, kind in _KINDS.items()}
    for name, kind in _KNOWN.items():
        columns[name] = _list(entry, name, kind, count) if name in entry else [None] * count
    if any(place >= len(texts) for place in columns["text"]):
        raise ValueError(f"field 'text': expected places among {len(texts)} texts")
    unparsable, notes = set(_list({"unparsable": [], **entry}, "unparsable", COUNT)), entry.get("note", {})
    if type(notes) is not dict or not all(map(TEXT.fits, notes.values())):
        raise ValueError("field 'note': expected an object of texts")
    return [
        Answered(
            columns["step"][i],
            columns["seconds"][i],
            Answer(
                texts[columns["text"][i]],
                tuple(Action(int(digit)) for digit in columns["actions"][i]),
                i in unparsable,
                notes.get(str(i), ""),
                **{name: columns[name][i] for name in _NUMBERS},
            ),
        )
        for i in range(count)
    ]


def each_answers(folder: Path, only: Collection[RowKey] | None = None) -> Iterator[tuple[RowKey, list[Answered]]]:
    """Of one episode after the other, as they lie in the folder; the last of an episode counts. only: of these.

    Raises UsageError with file, line and field for what is none.
    """
    for first, lines in line_blocks(folder / ANSWERS):
        for number, line in enumerate(lines, first):
            if only is None or begins_with(line, only):
                where = f"{folder / ANSWERS}: line {number}"
                entry = decode_line(line, where)
                try:
                    yield read_key(entry, where), decode_answers(entry)
                except ValueError as error:
                    raise UsageError(f"{where}: {error}") from error


def read_answers(folder: Path, only: Collection[RowKey] | None = None) -> dict[RowKey, list[Answered]]:
    """By row key, the last of each."""
    return dict(each_answers(folder, only))


def _list(entry: dict[str, Any], name: str, kind: Kind, count: int | None = None) -> list[Any]:
    found = entry.get(name)
    if type(found) is not list or not all(map(kind.fits, found)) or count not in (None, len(found)):
        many = "" if count is None else f"{count} times "
        raise ValueError(f"field '{name}': expected a list, {many}{kind.what}")
    return found
