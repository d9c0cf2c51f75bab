from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.util.test_tables import odd
from vlnbench.util.tables.cells import latex_cell
from vlnbench.util.tables.sheet import Column, Sheet, Value, data, written

SHEET = Sheet(
    "a title\nA: x_1",
    (
        Column("", "rank", ["1-2", "1-2", "3"], key=True),
        Column("name", "run", ["=a & b_c", "[x] 50 %", "y"], key=True),
        Column("SR", "SR (%)", [Value(74.65, 1.5, 70.2, 78.7, 900), Value(73.0), None], 1, best=frozenset({0, 1})),
        Column("gain", "B - A", [None, Value(-0.04, 0.5, -2.0, 1.0), Value(3.0, 0.0)], 1, signed=True),
        Column("NE", "NE (m)", [Value(2.9, n=9), Value(3.25, 0.1, 3.0, 3.5), Value(4.0)], counted=True),
        Column("only_data", "", [1, 2, 3]),
        Column("empty", "empty", [None, None, None]),
    ),
    ("a note",),
)


def test_a_terminal_gets_as_much_as_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = written(SHEET, "text").splitlines()
    assert lines[:2] == ["a title", "A: x_1"]
    assert lines[3].split() == ["rank", "run", "SR", "(%)", "B", "-", "A", "NE", "(m)"]
    assert " ".join(lines[5].split()) == "1-2 =a & b_c 74.7* ± 1.5 [70.2, 78.7] 2.9 (n 9)"
    assert " ".join(lines[6].split()) == "1-2 [x] 50 % 73.0* 0.0 ± 0.5 [-2.0, 1.0] 3.25 ± 0.10 [3.00, 3.50]"
    assert " ".join(lines[7].split()) == "3 y +3.0 ± 0.0 all equal 4"
    assert lines[-1] == "a note"


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal_and_no_column_is_lost(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    many = [Column(f"m{i}", f"metric {i}", [Value(70.0, 1.0, 68.0, 72.0)] * 3, 1) for i in range(9)]
    text = Column("", "source", ["a long reference of many words " * 4] * 3)
    shown = written(Sheet("title " * 30, (*SHEET.columns, *many, text), ("note " * 60,)), "text")
    assert max(map(len, shown.splitlines())) <= width
    headings = [line for line in shown.splitlines() if line.split()[:1] == ["rank"]]
    assert all(line.split()[1] == "run" for line in headings)
    assert all(sum(f"metric {i}" in line for line in headings) == 1 for i in range(9))


def test_csv_has_a_column_for_every_part_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(written(SHEET, "csv"))))
    parts = [name for name in rows[0] if name.startswith("SR")]
    assert parts == ["SR", "SR_se", "SR_low", "SR_high", "SR_n", "SR_best"]
    assert (rows[0]["name"], rows[0]["SR_n"], rows[2]["SR"], rows[2]["only_data"]) == ("'=a & b_c", "900", "", "3")
    assert {name: [row[name] for row in rows] for name in ("gain", "gain_low")} == {
        "gain": ["", "-0.04", "3.0"],
        "gain_low": ["", "-2.0", ""],
    }
    assert list(data(SHEET)) == list(rows[0])
    assert len(list(csv.reader(io.StringIO(written([SHEET, SHEET], "csv"))))) == 7


def test_json_is_strict_and_a_list_for_several() -> None:
    found = json.loads(written(SHEET, "json"), parse_constant=pytest.fail)
    assert found["rows"][0]["SR"] == {"mean": 74.65, "se": 1.5, "low": 70.2, "high": 78.7, "n": 900, "best": True}
    assert found["rows"][2]["SR"] is None
    assert json.loads(written([SHEET], "json")) == [found]


def test_markdown_marks_the_best() -> None:
    lines = written(SHEET, "md").splitlines()
    assert lines[0] == "**a title; A: x\\_1**"
    assert lines[3] == "| ---: | --- | ---: | ---: | ---: |"
    assert lines[4] == "| 1-2 | =a & b\\_c | **74.7** ± 1.5 \\[70.2, 78.7\\] |  | 2.9 (n 9) |".replace(
        "&", "&amp;"
    )


COMMAND = re.compile(
    r"\\(?:[&%$#_{}]|text(?:backslash|asciitilde|asciicircum|less|greater|bar|asciigrave)\{\}|textbf|scriptsize)"
)


def tabular(text: str) -> list[list[str]]:
    """The cells of a table of booktabs, as far as nothing but what is expected stands there."""
    head, *lines = text.splitlines()
    assert head == "% needs \\usepackage{booktabs}"
    assert lines[:2] == ["\\begin{table}", "\\centering\\small"]
    assert re.fullmatch(r"\\caption\{.*\.\}", lines[2])
    columns = re.fullmatch(r"\\begin\{tabular\}\{([lr]+)\}", lines[3])
    assert columns is not None
    assert [lines[4], lines[6]] == ["\\toprule", "\\midrule"]
    assert lines[-3:] == ["\\bottomrule", "\\end{tabular}", "\\end{table}"]
    rows = []
    for line in (lines[5], *lines[7:-3]):
        assert line.endswith(" \\\\")
        assert not line.startswith(("[", "*"))
        cells = re.split(r"(?<!\\)&", line.removesuffix(" \\\\"))
        assert len(cells) == len(columns[1])
        rows.append([cell.strip() for cell in cells])
        for cell in cells:
            plain = re.sub(r"\$[-^\\a-z0-9]+\$", "", cell)
            plain = COMMAND.sub("", plain)
            assert not re.search(r"[\\&%$#_^~<>|]", plain), cell
            assert plain.count("{") == plain.count("}")
    return rows


def test_latex_is_a_table_of_booktabs() -> None:
    rows = tabular(written(SHEET, "latex"))
    assert rows[0] == ["rank", "run", "SR (\\%)", "B - A", "NE (m)"]
    assert rows[1][1:3] == ["=a \\& b\\_c", "\\textbf{74.7} {\\scriptsize [70.2, 78.7]}"]
    assert rows[2][1:4] == ["[x] 50 \\%", "\\textbf{73.0}", "0.0 {\\scriptsize [$-$2.0, 1.0]}"]


def test_a_row_that_begins_with_a_bracket_is_no_option_of_the_line_before() -> None:
    rows = tabular(written(Sheet("t", (Column("name", "name", ["x", "[2cm] y", "*"]),)), "latex"))
    assert rows[2:] == [["{}[2cm] y"], ["{}*"]]


@settings(deadline=None)
@given(st.lists(odd, min_size=1, max_size=4))
def test_latex_shows_any_text(names: list[str]) -> None:
    tabular(written(Sheet(names[0], (Column("name", "name", ["x", *names]),)), "latex"))


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("50 % ± -2.5", "50 \\% $\\pm$ $-$2.5"),
        ("a\\b{c}", "a\\textbackslash{}b\\{c\\}"),
        ("2-3 x-1", "2-3 x-1"),
        ("--own", "-{}-own"),
    ],
)
def test_latex_cells(text: str, cell: str) -> None:
    assert latex_cell(text) == cell
