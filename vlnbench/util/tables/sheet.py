"""One table in every format: text for a terminal, CSV, Markdown, LaTeX, JSON, and columns for a data frame."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

from vlnbench.util.tables.cells import Cell, csv_text, latex_cell, markdown_cell, markdown_lines
from vlnbench.util.tables.format import Format
from vlnbench.util.tables.screen import NARROWEST, screen_width, wrapped


@dataclass(frozen=True, slots=True)
class Value:
    """A mean in the unit of its column; se, low, high (95 %) and n where they are known.

    With se and without an interval, all values are equal.
    """

    mean: float
    se: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Column:
    """A column of a sheet.

    name: in CSV, JSON and data frames, where a value is several columns; "" leaves the column out there. heading:
    for people; "" leaves it out for them, and so does having no cell. digits: of values, or of the value of each
    row; None: as they were published. signed: with a plus. counted: with n. best: rows whose values are marked,
    none of them told from the best; None: nothing is. key: tells what a row is of, and stays with every part of a
    table that is too wide.
    """

    name: str
    heading: str
    cells: Sequence[Cell | Value]
    digits: int | Sequence[int] | None = None
    signed: bool = False
    counted: bool = False
    best: frozenset[int] | None = None
    key: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table with its title, and notes to stand below it."""

    title: str
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()


def written(sheets: Sheet | Sequence[Sheet], kind: Format) -> str:
    """One table or several, without a line break at the end. CSV has no titles and notes.

    JSON is an object for a sheet, and a list of them for several.
    """
    listed = [sheets] if isinstance(sheets, Sheet) else list(sheets)
    if kind == "json":
        plain = [_plain(sheet) for sheet in listed]
        text = json.dumps(plain[0] if isinstance(sheets, Sheet) else plain, indent=2, ensure_ascii=False)
    elif kind == "csv":
        text = _csv(listed)
    elif kind == "text":
        text = "\n\n".join(_text(sheet, screen_width()) for sheet in listed)
    else:
        text = "\n".join({"md": _markdown, "latex": _latex}[kind](sheet) for sheet in listed)
    return text.rstrip("\n")


def p_text(p: float) -> str:
    """A p-value for people."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def data(sheet: Sheet) -> dict[str, list[Cell]]:
    """The columns of a sheet for CSV and data frames: a value as NAME, NAME_se, NAME_low, NAME_high, NAME_n."""
    found: dict[str, list[Cell]] = {}
    for column in sheet.columns:
        if not column.name:
            continue
        if not _measured(column):
            found[column.name] = [_cell(cell) for cell in column.cells]
            continue
        for part in Value.__slots__:
            name = column.name if part == "mean" else f"{column.name}_{part}"
            found[name] = [getattr(cell, part, None) for cell in column.cells]
        if column.best is not None:
            found[f"{column.name}_best"] = [row in column.best for row in range(len(column.cells))]
    return found


def _measured(column: Column) -> bool:
    valued = column.counted or column.best is not None or column.digits is not None
    return valued or any(isinstance(cell, Value) for cell in column.cells)


def _cell(cell: Cell | Value) -> Cell:
    assert not isinstance(cell, Value)  # of a column without values
    return cell


def _plain(sheet: Sheet) -> dict[str, Any]:
    """A sheet for JSON; a value is an object."""
    rows: list[dict[str, Any]] = [{} for _ in sheet.columns[0].cells]
    for column in (column for column in sheet.columns if column.name):
        for number, (row, cell) in enumerate(zip(rows, column.cells, strict=True)):
            plain: Any = asdict(cell) if isinstance(cell, Value) else cell
            if column.best is not None and isinstance(cell, Value):
                plain["best"] = number in column.best
            row[column.name] = plain
    return {"title": sheet.title, "notes": list(sheet.notes), "rows": rows}


def _csv(sheets: Sequence[Sheet]) -> str:
    """Sheets of the same columns are one table."""
    parts: dict[tuple[str, ...], list[Sequence[Cell]]] = {}
    for found in map(data, sheets):
        parts.setdefault(tuple(found), []).extend(zip(*found.values(), strict=True))
    return "\n".join(csv_text(names, rows) for names, rows in parts.items())


Escape = Callable[[Cell], str]
Said = tuple[str, str, str]
"""A value for people: mean, standard error, interval with n; the last two may be empty."""


def _said(column: Column, row: int, cell: Value) -> Said:
    digits = column.digits[row] if isinstance(column.digits, Sequence) else column.digits
    if digits is None and cell.se is not None:
        digits = 2

    def number(value: float, signed: bool = column.signed) -> str:
        if digits is None:
            return f"{value:g}"
        text = f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.0"
        return f"+{text}" if signed and value > 0 else text

    interval = ""
    if cell.low is not None and cell.high is not None:
        interval = f"[{number(cell.low, False)}, {number(cell.high, False)}]"
    elif cell.se is not None:
        interval = "all equal"
    counted = f"(n {cell.n})" if column.counted and cell.n is not None else ""
    se = "" if cell.se is None else f"± {number(cell.se, False)}"
    return number(cell.mean), se, " ".join(filter(None, (interval, counted)))


def _one_line(title: str) -> str:
    return "; ".join(title.split("\n"))


def _shown(sheet: Sheet) -> list[Column]:
    """The columns for people."""
    return [each for each in sheet.columns if each.heading and any(cell is not None for cell in each.cells)]


def _is_text(column: Column) -> bool:
    """Whether a column is aligned at the left: some cell begins with no number."""
    return any(isinstance(cell, str) and not re.match(r"[-+<]? ?\d", cell) for cell in column.cells)


def _cells(
    column: Column, escape: Escape, bold: str, small: str = "{}", *, se: bool, below: bool = False
) -> list[str]:
    """Texts of a column. bold, small: what stands around a best value and an interval. below: on a new line."""
    texts = []
    for row, cell in enumerate(column.cells):
        if isinstance(cell, Value):
            mean, deviation, interval = map(escape, _said(column, row, cell))
            best = column.best is not None and row in column.best
            parts = [bold.format(mean) if best else mean, *([deviation] if se else [])]
            first = " ".join(filter(None, parts))
            texts.append(first + f"{chr(10) if below else ' '}{small.format(interval)}" * bool(interval))
        else:
            texts.append(escape(cell))
    return texts


def _markdown(sheet: Sheet) -> str:
    notes = "".join(f"\n{markdown_cell(note)}\n" for note in sheet.notes)
    return f"**{markdown_cell(_one_line(sheet.title))}**\n\n{markdown_of(sheet)}{notes}"


def markdown_of(sheet: Sheet) -> str:
    """A sheet in Markdown without its title and notes."""
    shown = _shown(sheet)
    columns = [_cells(column, markdown_cell, "**{}**", se=True) for column in shown]
    marks = ["---" if _is_text(column) else "---:" for column in shown]
    return markdown_lines([markdown_cell(column.heading) for column in shown], marks, zip(*columns, strict=True))


def _latex(sheet: Sheet) -> str:
    """A table of booktabs; intervals without standard errors, which make it too wide for a page."""
    shown = _shown(sheet)
    columns = [_cells(column, latex_cell, "\\textbf{{{}}}", "{{\\scriptsize {}}}", se=False) for column in shown]
    heads = [latex_cell(column.heading) for column in shown]
    caption = latex_cell(". ".join([_one_line(sheet.title), *sheet.notes]))
    if not shown:
        return f"% {caption}\n"
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering\\small",
        f"\\caption{{{caption}.}}",
        f"\\begin{{tabular}}{{{''.join('l' if _is_text(column) else 'r' for column in shown)}}}",
        "\\toprule",
        f"{' & '.join(heads)} \\\\",
        "\\midrule",
        *(f"{'{}' * row[0].startswith(('[', '*'))}{' & '.join(row)} \\\\" for row in zip(*columns, strict=True)),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _text(sheet: Sheet, width: int) -> str:
    """For a terminal. Where it is narrow: no standard errors, intervals below, text folded, several tables."""
    shown = _shown(sheet)
    notes = ["\n".join(wrapped(note, width) for note in sheet.notes)] if sheet.notes else []
    if not shown:
        return "\n\n".join([wrapped(sheet.title, width), *notes])
    left = [_is_text(column) for column in shown]
    grid: list[list[str]] = []
    for se, below in ((True, False), (False, False), (False, True)):
        grid = [[column.heading, *_cells(column, _as_it_is, "{}*", se=se, below=below)] for column in shown]
        if _total(grid) <= width:
            break
    grid = _folded(grid, left, width)
    keys = [i for i, column in enumerate(shown) if column.key] or [0]
    tables = [_grid([grid[i] for i in part], [left[i] for i in part]) for part in _parts(grid, keys, width)]
    return "\n\n".join([wrapped(sheet.title, width), *tables, *notes])


def _as_it_is(cell: Cell) -> str:
    return "" if cell is None else str(cell)


def _grid(columns: Sequence[Sequence[str]], left: Sequence[bool]) -> str:
    rows = zip(*(cells[1:] for cells in columns), strict=True)
    alignment = ["left" if each else "right" for each in left]
    headers = [cells[0] for cells in columns]
    return str(tabulate(rows, headers=headers, disable_numparse=True, colalign=alignment))


def _wide(cells: Sequence[str]) -> int:
    """Columns of a terminal that a column takes, with what tabulate puts around it."""
    return 2 + max(len(cells[0]) + 2, *(len(line) for cell in cells for line in cell.split("\n")))


def _total(grid: Sequence[Sequence[str]]) -> int:
    return sum(map(_wide, grid)) - 2


def _folded(grid: list[list[str]], left: Sequence[bool], width: int) -> list[list[str]]:
    """With lines in the widest columns of text, as far as that makes the table narrow enough."""
    for i in sorted((i for i, is_text in enumerate(left) if is_text), key=lambda i: -_wide(grid[i])):
        room = max(NARROWEST, _wide(grid[i]) - 2 - max(0, _total(grid) - width))
        if room < _wide(grid[i]) - 2:
            grid[i] = ["\n".join(textwrap.wrap(cell, room)) for cell in grid[i]]
    return grid


def _parts(grid: Sequence[Sequence[str]], keys: list[int], width: int) -> list[list[int]]:
    """Columns of the tables that a table becomes where it is too wide; all begin with those of `keys`."""
    parts = [list(keys)]
    for i in (i for i in range(len(grid)) if i not in keys):
        if len(parts[-1]) > len(keys) and _total([grid[j] for j in (*parts[-1], i)]) > width:
            parts.append(list(keys))
        parts[-1].append(i)
    return parts
