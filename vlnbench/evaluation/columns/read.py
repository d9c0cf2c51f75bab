"""From rows to columns. What lies in a run folder is checked as `records.read_rows` does.

Lines are decoded by a description that takes only what is usual. Those of a block where anything else is found are
read one by one as rows are, which says what is wrong or finds that nothing is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple

from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.kept import kept_table
from vlnbench.evaluation.columns.table import STATUSES, Table, Texts, by_key, numbered, texts
from vlnbench.evaluation.metrics import FAILURES, Scores
from vlnbench.evaluation.records import PARTS, ROWS, SHARES, Row, read_row
from vlnbench.util.durable.files import decode_line, file_size, line_blocks
from vlnbench.util.durable.json_stream import collector_off

SCORES = tuple(name for name in Scores.__slots__ if name not in ("stopped", "failure"))
"""Scores that are numbers."""

WHOLE = ("env", "agent", "wall")
SECONDS = (*WHOLE, *(f"agent {part}" for part in PARTS))

_CODES = ("q", "i", "q", "b", "b", "i")
"""Types of line, head, repeat, status, failure and scene."""

_STATUS: dict[str, int] = {name: i for i, name in enumerate(STATUSES)}
_FAILURE: dict[str, int] = {"": -1, **{name: i for i, name in enumerate(FAILURES)}}

_FIELDS = (
    *("benchmark", "fingerprint", "split", "episode_id", "repeat", "scene_id", "trajectory_id"),
    *("seed", "status", "reason", "scores", "seconds", "report"),
)
"""In the order in which they are written, in which they are found fastest."""

_SHORT_LINE = 200
"""Bytes of a row that few are shorter than."""

_ABSENT = math.nan
"""For a number that is not there; null is None."""

Entry = Any
"""A row as `_usual` describes it, whose scores and seconds are what `astuple` takes."""


def table_of(rows: Iterable[Row]) -> Table:
    """A table of rows, each of which counts."""
    columns = _Columns(SECONDS)
    columns.add(1, list(map(_entry, rows)))
    return columns.table()


def read_table(folder: Path, seconds: Sequence[str] = WHOLE) -> Table:
    """The rows of a run folder, the last one for each key. Raises UsageError as `records.read_rows`.

    seconds: the first of `SECONDS`, which are taken. The table of a large file is kept, see `kept`.
    """
    return kept_table(folder / ROWS, seconds, lambda: _read_table(folder, seconds))


def _read_table(folder: Path, seconds: Sequence[str]) -> Table:
    columns = _Columns(seconds, file_size(folder / ROWS) // _SHORT_LINE)
    with collector_off():
        for first, entries in _blocks(folder / ROWS):
            columns.add(first, entries)
    table = columns.table()
    if len(table) < columns.count:  # what was counted in rows that do not count is in the sums
        kept, counted = set(table.lines.tolist()), _Sums()
        for first, entries in _blocks(folder / ROWS):
            counted.add([entry.report for line, entry in enumerate(entries, first) if line in kept])
        table.report.clear()
        table.report.update(counted.found())
    return table


def read_places(folder: Path, table: Table, places: Iterable[int]) -> list[Row]:
    """Rows at places of the table of a run folder, as a whole. Raises UsageError where the file was changed."""
    wanted = {int(table.lines[place]): bytes(table.ids[place]).decode() for place in places}
    path = folder / ROWS
    found: dict[int, Row] = {}
    for first, lines in line_blocks(path):
        for number in wanted.keys() & range(first, first + len(lines)):
            found[number] = _row(path, number, lines[number - first])
        if len(found) == len(wanted):
            break
    if any(number not in found or found[number].episode_id != name for number, name in wanted.items()):
        raise UsageError(f"{path}: was changed while it was read; run the same command again")
    return [found[number] for number in wanted]


def _blocks(path: Path) -> Iterator[tuple[int, list[Entry]]]:
    """(number of its first line, entries) of each block of lines."""
    decode = _usual().decode
    for first, lines in line_blocks(path):
        try:
            yield first, list(map(decode, lines))
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield first, [_entry(_row(path, number, line)) for number, line in enumerate(lines, first)]


def _row(path: Path, number: int, line: bytes) -> Row:
    where = f"{path}: line {number}"
    return read_row(decode_line(line, where), where)


def _entry(row: Row) -> Entry:
    usual, found = _usual(), {each: getattr(row, each) for each in _FIELDS}
    scores = [row.scores.get(name, _ABSENT) for name in SCORES]
    found["scores"] = usual.scores(*scores, row.scores.get("failure", ""))
    return usual.row(**found | {"seconds": usual.seconds(*(row.seconds.get(name, _ABSENT) for name in SECONDS))})


class _Usual(NamedTuple):
    """Decoder of a line in which nothing is unusual, and the types of what it finds."""

    decode: Callable[[bytes], Entry]
    row: Callable[..., Entry]
    scores: Callable[..., Any]
    seconds: Callable[..., Any]


@cache
def _usual() -> _Usual:
    """It must take nothing that `read_row` would refuse."""

    def numbers(kind: type, low: float, high: float) -> Any:
        return Annotated[kind, msgspec.Meta(ge=low, le=high)]

    def struct(name: str, members: Sequence[tuple[str, Any, Any]]) -> Any:
        """Members are named by their places: names of seconds are no identifiers."""
        places = {f"f{i}": member[0] for i, member in enumerate(members)}
        made = [(place, kind, default) for place, (_, kind, default) in zip(places, members, strict=True)]
        return msgspec.defstruct(name, made, rename=places, forbid_unknown_fields=True, frozen=True, gc=False)

    largest = 10**18
    length, share = numbers(float, 0, largest) | None, numbers(float, 0, 1) | None
    scores = struct(
        "Scores",
        [
            *((name, share if name in SHARES else length, _ABSENT) for name in SCORES),
            ("failure", Literal[("", *FAILURES)], ""),
            ("stopped", bool, False),
        ],
    )
    seconds = struct("Seconds", [(name, numbers(float, -1e9, 1e9), _ABSENT) for name in SECONDS])
    whole = numbers(int, -largest, largest)
    counted = dict.__class_getitem__((str, whole | numbers(float, -largest, largest)))
    others: dict[str, tuple[Any, ...]] = {
        "repeat": (numbers(int, 0, largest),),
        "status": (Literal[STATUSES],),
        "seed": (whole,),
        "reason": (str | None, None),
        "scores": (scores, scores()),
        "report": (counted, msgspec.field(default_factory=dict)),
        "seconds": (seconds, seconds()),
    }
    fields = [(name, *others.get(name, (str,))) for name in _FIELDS]
    row = msgspec.defstruct("Row", fields, forbid_unknown_fields=True, gc=False)
    return _Usual(msgspec.json.Decoder(row).decode, row, scores, seconds)


class _Sums:
    """Sums of what agents counted, by name."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(int)

    def add(self, reports: Iterable[dict[str, float]]) -> None:
        for report in reports:
            for name, value in report.items():
                self._sums[name] += value

    def found(self) -> dict[str, float]:
        return dict(sorted(self._sums.items()))


class _Columns:
    """A table that is being made, block by block."""

    def __init__(self, seconds: Sequence[str], room: int = 0) -> None:
        """room: rows that are expected at most; memory that none of them is written to is none."""
        self.count = 0
        self._taken = attrgetter(*(f"f{i}" for i in range(len(seconds))))
        codes = (*_CODES, *"d" * (len(SCORES) + len(seconds)))
        self._numbers: list[npt.NDArray[Any]] = [np.empty(room, code) for code in codes]
        self._texts: tuple[list[Texts], list[Texts]] = ([], [])
        self._heads: dict[tuple[str, str], int] = {}
        self._scenes: dict[str, int] = {}
        self._sums = _Sums()
        self._lacking: tuple[str, tuple[str, ...]] | None = None

    def add(self, first: int, entries: Sequence[Entry]) -> None:
        """Rows of the lines from `first` on."""
        if not entries:
            return
        before, self.count = self.count, self.count + len(entries)
        if self.count > len(self._numbers[0]):
            self._numbers = [np.resize(column[:before], 2 * self.count) for column in self._numbers]
        benchmarks, _, splits, ids, repeats, scenes, trajectories, _, statuses, _, scored, took, reports = zip(
            *map(astuple, entries), strict=True
        )
        *numbers, failures, _ = zip(*map(astuple, scored), strict=True)
        taken = list(zip(*map(self._taken, took), strict=True))
        known, places = self._heads, self._scenes
        self._sums.add(filter(None, reports))
        for written, found in zip(self._texts, (ids, trajectories), strict=True):
            written.append(texts([text.encode() for text in found]))
        whole = (
            range(first, first + len(entries)),
            [known.setdefault(head, len(known)) for head in zip(benchmarks, splits, strict=True)],
            repeats,
            list(map(_STATUS.__getitem__, statuses)),
            list(map(_FAILURE.__getitem__, failures)),
            [places.setdefault(scene, len(places)) for scene in scenes],
        )
        scores = [np.array(column, dtype=np.float64) for column in numbers]
        for column, values in zip(self._numbers, (*whole, *scores, *taken), strict=True):
            column[before : self.count] = np.array(values, dtype=column.dtype)
        if self._lacking is None:
            status, failure = (column[before : self.count] for column in self._numbers[3:5])
            missing = np.isnan(scores).any(axis=0) | (failure == _FAILURE[""])
            places_lacking = np.flatnonzero(missing & (status == _STATUS["ok"]))
            self._lacking = _lacking([entries[place] for place in places_lacking])

    def table(self) -> Table:
        """The last row of each key. Nothing may be added any more."""
        lines, head, repeat, status, failure, scene, *numbers = (
            _column(self._numbers.pop(0)[: self.count], place < len(_CODES) + len(SCORES))
            for place in range(len(self._numbers))
        )
        ids, trajectory = (np.concatenate(found or [np.empty(0, bytes)]) for found in self._texts)
        trajectory = numbered(numbered(trajectory).astype(np.int64) * max(1, len(self._scenes)) + scene)
        order = by_key(head, ids, repeat)
        before, after = order[:-1], order[1:]
        same = (ids[before] == ids[after]) & (repeat[before] == repeat[after]) & (head[before] == head[after])
        table = Table(
            lines=lines,
            heads=tuple(self._heads),
            head=head,
            ids=ids,
            repeat=repeat,
            status=status,
            failure=failure,
            scenes=tuple(self._scenes),
            scene=scene,
            trajectory=trajectory,
            scores=dict(zip(SCORES, numbers, strict=False)),
            seconds=dict(zip(SECONDS, numbers[len(SCORES) :], strict=False)),
            report=self._sums.found(),
            lacking=self._lacking,
        )
        if not same.any():
            return table
        first, last = np.append(True, ~same), np.append(~same, True)
        return table.take(order[last][np.argsort(order[first])])


def _column(column: npt.NDArray[Any], shrinks: bool) -> npt.NDArray[Any]:
    """The same values; shrinks: in as few bytes as hold them."""
    if not shrinks or not len(column):
        return column
    if column.dtype == np.float64:
        short = column.astype(np.float32)
        return short if np.array_equal(short, column, equal_nan=True) else column
    return column.astype(np.promote_types(np.min_scalar_type(column.min()), np.min_scalar_type(column.max())))


def _lacking(scored: Iterable[Entry]) -> tuple[str, tuple[str, ...]] | None:
    """Episode of the first row that lacks what summaries need, and what that is."""
    for entry in scored:
        *values, failure, _ = astuple(entry.scores)
        found = zip(SCORES, values, strict=True)
        missing = [name for name, value in found if value != value and name != "oracle_distance"]
        missing += [] if failure else ["failure"]
        if missing:
            return entry.episode_id, tuple(missing)
    return None
