"""Rows as columns hold what rows hold, and refuse what rows refuse."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.test_summary import row
from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import SECONDS, WHOLE, read_places, read_table, table_of
from vlnbench.evaluation.columns.table import Table, pair
from vlnbench.evaluation.records import PARTS, ROWS, read_rows

_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**19), 10**19),
    st.floats(-2, 2),
    st.sampled_from([0, 1, 1.0, 1e300, 1e18, 10**18, 1 + 1e-9, 1 + 1e-8, -1e-300, "ok", "error", "success", ""]),
    st.text(max_size=3),
    st.just([]),
    st.dictionaries(st.sampled_from(["tokens", "env", "wall", "spl", "other", "agent 1-10"]), st.floats(0, 1)),
)
_NAMES = st.sampled_from([*asdict(row(0)), "unknown"])
_INSIDE = st.tuples(
    st.sampled_from(["scores", "seconds", "report"]),
    st.sampled_from(
        ["spl", "steps", "stopped", "failure", "oracle_distance", "tokens", "env", f"agent {PARTS[1]}", "x"]
    ),
)
_CHANGES = st.lists(st.tuples(st.integers(0, 4), st.one_of(_NAMES, _INSIDE), _VALUES, st.booleans()), max_size=3)


def changed(changes: list[tuple[int, Any, Any, bool]]) -> list[dict[str, Any]]:
    """Five rows, one of them failed, with fields put in their place or left out."""
    found = [asdict(row(i, "ab"[i % 2], status="error" if i == 3 else "ok")) for i in range(5)]
    for place, name, value, gone in changes:
        inside, name = (found[place].get(name[0]), name[1]) if isinstance(name, tuple) else (found[place], name)
        if isinstance(inside, dict):
            inside.pop(name, None)
            if not gone:
                inside[name] = value
    return found


def same(a: Table, b: Table) -> bool:
    for each in fields(Table):
        mine, other = getattr(a, each.name), getattr(b, each.name)
        if isinstance(mine, np.ndarray):
            if mine.tolist() != other.tolist():
                return False
        elif each.name in ("scores", "seconds"):
            if not all(np.array_equal(mine[name], other[name], equal_nan=True) for name in mine | other):
                return False
        elif mine != other:
            return False
    return True


def written(folder: Path, entries: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / ROWS).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def refusal(read: Callable[[Path], object], folder: Path) -> str | None:
    try:
        read(folder)
    except UsageError as error:
        return str(error)
    return None


@given(changes=_CHANGES)
def test_a_table_is_of_what_rows_are_and_refuses_what_they_do(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, Any, Any, bool]]
) -> None:
    folder = written(tmp_path_factory.getbasetemp() / "columns", changed(changes))
    refused = refusal(read_rows, folder)
    assert refusal(lambda path: read_table(path, SECONDS), folder) == refused
    if refused is not None:
        return
    rows = read_rows(folder)
    table, wanted = read_table(folder, SECONDS), table_of(rows)
    assert same(replace(table, lines=wanted.lines), wanted)
    assert read_places(folder, table, range(len(table))) == rows


@pytest.mark.parametrize(
    "line",
    [b'{"a":1}\n', b"\n", b"[]\n", b"{}{}\n", b'{"benchmark":\n', b"\xff\n", b'{"a":"\\ud800"}\n', b"NaN\n"],
)
def test_lines_that_are_no_rows_are_named_alike(tmp_path: Path, line: bytes) -> None:
    written(tmp_path, changed([]))
    with (tmp_path / ROWS).open("ab") as file:
        file.write(line)
    refused = refusal(read_rows, tmp_path)
    assert refused is not None
    assert "line 6: " in refused
    assert refusal(read_table, tmp_path) == refused


def test_the_last_row_of_an_episode_counts_where_the_first_one_stood(tmp_path: Path) -> None:
    rows = [row(0), row(1, status="error"), row(2), row(1), replace(row(2), repeat=1)]
    written(tmp_path, [asdict(each) for each in rows])
    table = read_table(tmp_path)
    assert table.names() == ["0", "1", "2", "2"]
    assert table.lines.tolist() == [1, 4, 3, 5]
    assert table.report == {"calls": 8, "tokens": 40}
    assert read_places(tmp_path, table, [1]) == [row(1)]
    assert same(
        replace(table, lines=np.arange(4)),
        replace(table_of(read_rows(tmp_path)), lines=np.arange(4), seconds=table.seconds),
    )


def test_rows_of_two_tables_are_paired_by_key() -> None:
    names = ["10", "9", "a\0", "a", "ü", "x" * 100]
    a = table_of(replace(row(0), episode_id=name) for name in names)
    b = table_of(replace(row(0), episode_id=name, repeat=i % 2) for i, name in enumerate(reversed(names)))
    first, second = pair(a, b)
    assert (
        [a.name(place, 1) for place in first]
        == ["9", "a", "x" * 100]
        == [b.name(place, 1) for place in second][:3]
    )


def test_a_file_that_was_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    written(tmp_path, changed([]))
    table = read_table(tmp_path)
    written(tmp_path, changed([])[::-1])
    with pytest.raises(UsageError, match="was changed while it was read"):
        read_places(tmp_path, table, [0])


def test_no_files_no_rows(tmp_path: Path) -> None:
    table = read_table(tmp_path)
    assert len(table) == 0
    assert table.report == {}
    assert pair(table, table)[0].tolist() == []


def test_a_row_takes_little_memory(tmp_path: Path) -> None:
    """A million may take half a GB: here 20,000, all of one trajectory in three."""
    entry = asdict(row(0))
    with (tmp_path / ROWS).open("w") as file:
        for i in range(20_000):
            entry |= {"episode_id": str(i), "trajectory_id": str(i // 3)}
            file.write(json.dumps(entry) + "\n")
    read_table(tmp_path)  # what is loaded once
    tracemalloc.start()
    table = read_table(tmp_path, SECONDS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) == 20_000
    assert peak < 20_000 * 400 + 20e6  # and a block of lines


def test_seconds_of_the_whole_episode_are_enough_for_most(tmp_path: Path) -> None:
    written(tmp_path, changed([]))
    assert tuple(read_table(tmp_path).seconds) == WHOLE
    assert tuple(read_table(tmp_path, SECONDS).seconds) == SECONDS
