"""Tables that are kept are those of their files, or are not used."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.evaluation.columns.test_columns import same, written
from tests.evaluation.test_summary import row
from vlnbench.evaluation.columns import kept
from vlnbench.evaluation.columns.read import SECONDS, WHOLE, read_table
from vlnbench.evaluation.columns.table import Table
from vlnbench.evaluation.records import ROWS, Row
from vlnbench.util.durable import facts


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(facts, "LARGE", 1)
    monkeypatch.setenv("VLNBENCH_CACHE", str(tmp_path / "cache"))
    return write(tmp_path / "run", [row(0), row(1, status="error"), replace(row(2), scores={})], age_s=60)


def write(folder: Path, rows: list[Row], age_s: float) -> Path:
    written(folder, [asdict(each) for each in rows])
    time = (folder / ROWS).stat().st_mtime - age_s
    os.utime(folder / ROWS, (time, time))
    return folder


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of change that nobody can set is another matter."""
    monkeypatch.setattr(facts, "SETTLED_S", -60.0)


def tables(run: Path) -> list[Path]:
    return sorted((run.parent / "cache" / "tables").glob("*"))


def unread(run: Path, monkeypatch: pytest.MonkeyPatch) -> Table | None:
    """The table that is kept."""
    with monkeypatch.context() as patch:
        patch.setattr("vlnbench.evaluation.columns.read._blocks", lambda path: [])
        return read_table(run)


@pytest.mark.usefixtures("settled")
def test_the_same_table_without_reading_the_rows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_table(run)
    assert len(tables(run)) == 1
    found = unread(run, monkeypatch)
    assert found is not None
    assert same(found, first)
    assert found.lacking == first.lacking != None  # noqa: E711 - what lacks is said
    assert tuple(read_table(run, SECONDS).seconds) == SECONDS
    assert tuple(read_table(run).seconds) == WHOLE


@pytest.mark.usefixtures("settled")
def test_a_file_with_other_rows_is_read(run: Path) -> None:
    assert read_table(run).names() == ["0", "1", "2"]
    with (run / ROWS).open("ab") as file:  # as a run that goes on
        file.write((run / ROWS).read_bytes().splitlines(keepends=True)[0].replace(b'"0"', b'"3"', 1))
    assert read_table(run).names() == ["0", "1", "2", "3"]
    (run / ROWS).unlink()
    assert len(read_table(run)) == 0


@pytest.mark.usefixtures("settled")
def test_a_table_that_other_code_made_is_not_used(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read_table(run)) == 3
    monkeypatch.setattr(kept, "_code", lambda: "that of an update")
    found = unread(run, monkeypatch)
    assert found is None or len(found) == 0, "the rows are read again, of which there are none here"


def test_a_file_that_may_change_without_a_trace_is_not_kept(run: Path) -> None:
    read_table(run)
    assert tables(run) == []


@pytest.mark.usefixtures("settled")
def test_a_file_that_is_written_meanwhile_is_not_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = kept.facts.Facts([run / ROWS])
    (run / ROWS).write_bytes((run / ROWS).read_bytes() + b"\n")
    assert not known.settled()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("cut", [0, 1, 100, -1, -30])
def test_what_cannot_be_read_is_made_anew(run: Path, cut: int) -> None:
    """Half of a table, as a disk that was full may leave of other programs' files."""
    first = read_table(run)
    (path,) = tables(run)
    path.write_bytes(path.read_bytes()[:cut])
    assert same(read_table(run), first)


@pytest.mark.usefixtures("settled")
def test_every_byte_of_a_kept_table_may_be_another(run: Path) -> None:
    first = read_table(run)
    (path,) = tables(run)
    content = path.read_bytes()
    for at in range(0, len(content), 97):
        path.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
        assert same(read_table(run), first), at


@pytest.mark.usefixtures("settled")
def test_the_oldest_tables_go(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST", 2)
    for name in "abc":
        read_table(write(run.parent / name, [row(0)], age_s=60))
    assert len(tables(run)) == 2


@pytest.mark.usefixtures("settled")
def test_a_full_disk_keeps_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(kept, "_digest", full)
    assert len(read_table(run)) == 3
    assert tables(run) == []
