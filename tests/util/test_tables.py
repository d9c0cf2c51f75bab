from __future__ import annotations

import csv
import html
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlnbench.util.tables.cells import csv_cell, csv_text, markdown_cell, markdown_table

odd = st.text(
    st.one_of(st.characters(), st.sampled_from("|`*_\\<>&=+-@\t\r\n\x00\u2028'\"#[]()!~$ ")), max_size=30
)


@given(odd)
def test_a_csv_cell_is_never_a_formula(text: str) -> None:
    cell = csv_cell(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", " ", "\uff1d"))
    assert cell.isprintable()


@given(st.lists(st.lists(odd, min_size=2, max_size=2), max_size=4))
def test_csv_reads_back_as_so_many_cells(rows: list[list[str]]) -> None:
    read = list(csv.reader(io.StringIO(csv_text(["a", "b"], rows))))
    assert read == [["a", "b"], *([csv_cell(cell) for cell in row] for row in rows)]


@pytest.mark.parametrize("value", [-1.5, 0, 3, None, True])
def test_numbers_stay_numbers(value: float | None) -> None:
    assert csv_cell(value) == ("" if value is None else str(value))


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        (" \t@cmd", "'@cmd"),
        ("-1+2", "'-1+2"),
        ("a\r\nb", "a b"),
        ("StreamVLN, v1_3", "StreamVLN, v1_3"),
    ],
)
def test_csv_examples(text: str, cell: str) -> None:
    assert csv_cell(text) == cell


LINK = re.compile(r"<(https?://[^\s<>|`*\[\]\\@]+)>")


def shown(cell: str) -> str:
    """What a reader sees of a cell: escapes and entities undone, as CommonMark does for plain text and links."""
    plain = re.sub(r"\\([!-/:-@\[-`{-~])", lambda match: f"&#{ord(match[1])};", LINK.sub(r"\1", cell))
    return html.unescape(plain)


@given(odd)
def test_a_markdown_cell_shows_its_text_and_nothing_else(text: str) -> None:
    cell = markdown_cell(text)
    assert not re.search(
        r"(?<!\\)[|*_\[\]~$#!{}]|[<>`@\n\r]|(?<!\\)\\(?![|*_\[\]~$#!{}])",
        re.sub(r"&#\d+;", "", LINK.sub("", cell)),
    )
    expected = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    assert shown(cell) == expected


@given(st.lists(st.lists(odd, min_size=3, max_size=3), min_size=1, max_size=4))
def test_every_row_of_a_markdown_table_has_its_columns(rows: list[list[str]]) -> None:
    lines = markdown_table(["a", "b", "c"], rows).split("\n")
    assert lines[-1] == ""
    assert len(lines) == len(rows) + 3
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[:-1]} == {4}


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("https://github.com/a_b/c", "<https://github.com/a_b/c>"),
        ("A; arXiv 1.2; https://a.b/c_d?e=f&g=h#i.", "A; arXiv 1.2; <https://a.b/c_d?e=f&amp;g=h#i>."),
        ("(see http://a.b/c_(d), https://e.f)", "(see <http://a.b/c_(d)>, <https://e.f>)"),
        ("https://a.b|c", "<https://a.b>\\|c"),
        ("https://a.b><script>", "<https://a.b>&gt;&lt;script&gt;"),
        ("https://a.b`c`", "<https://a.b>&#96;c&#96;"),
        ("https://good.org@evil.org", "<https://good.org>&#64;evil.org"),
        ("https://\u0430.b", "https&#58;//\u0430.b"),
        ("https://", "https&#58;//"),
        ("xhttps://a.b", "xhttps&#58;//a.b"),
        ("ftp://a.b www.c.d", "ftp&#58;//a.b www&#46;c.d"),
        ("javascript://a.b", "javascript&#58;//a.b"),
        ("[x](javascript:alert(1))", "\\[x\\](javascript:alert(1))"),
    ],
)
def test_web_addresses_are_links_and_nothing_else_is(text: str, cell: str) -> None:
    assert markdown_cell(text) == cell
    assert shown(cell) == text
