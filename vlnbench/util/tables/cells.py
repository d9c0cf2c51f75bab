"""Cells of CSV, Markdown and LaTeX, with any text in them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

Cell = str | int | float | bool | None

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What makes a spreadsheet calculate, in both widths."""

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "&#96;", "\\": "&#92;", "@": "&#64;"}
_MARKUP = str.maketrans({**_ENTITIES, **{character: f"\\{character}" for character in "|*_[]~$#!{}"}})

_NAMED = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
_SIGNS = {
    "\u00b1": "\\pm",
    "\u00d7": "\\times",
    "\u2264": "\\leq",
    "\u2265": "\\geq",
    "\u2192": "\\to",
    "\u2212": "-",
}
_SIGNS |= {"\u00b2": "^2", "\u00b7": "\\cdot"}
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"\\text{name}{{}}" for character, name in _NAMED.items()}
    | {sign: f"${command}$" for sign, command in _SIGNS.items()}
    | {'"': "''", "`": "\\textasciigrave{}"}
)


_ADDRESS = re.compile(r"(?<![A-Za-z0-9+.-])https?://[A-Za-z0-9][A-Za-z0-9._~:/?#&=%+,;()-]*")
"""A web address, as far as its characters mean nothing in a table."""


def csv_cell(value: Cell) -> str:
    """One cell of a CSV file, before quoting: one line, and never a formula to a spreadsheet.

    Text that a spreadsheet would calculate gets an apostrophe in front; numbers stay as they are.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    text = _one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def markdown_cell(value: Cell) -> str:
    """One cell of a Markdown table that shows `value` as it is: one line, without markup or HTML.

    Addresses (http, https) are links to themselves; nothing else is a link.
    """
    if value is None:
        return ""
    text, done, parts = _one_line(str(value)), 0, []
    for match in _ADDRESS.finditer(text):
        address = _without_punctuation(match[0])
        parts += [_escaped(text[done : match.start()]), f"<{address.replace('&', '&amp;')}>"]
        done = match.start() + len(address)
    return "".join([*parts, _escaped(text[done:])])


def csv_text(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A CSV file (RFC 4180, but with line ends of one character)."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(csv_cell, headers))
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A Markdown table, cells escaped and not padded, so that a change of one row is a change of one line."""
    marks = ["---"] * len(headers)
    return markdown_lines(map(markdown_cell, headers), marks, (map(markdown_cell, row) for row in rows))


def markdown_lines(headers: Iterable[str], marks: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """The same of cells that are escaped, with the line below the headers."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [headers, marks, *rows])


def latex_cell(value: Cell) -> str:
    """Text in LaTeX that shows `value` as it is: one line, no command. For engines that read UTF-8."""
    if value is None:
        return ""
    text = _one_line(str(value)).translate(_LATEX)
    text = text.replace("--", "-{}-")  # which would be a dash
    return re.sub(r"(?<![\w.])-(?=[\d.])", "$-$", text)


def _escaped(text: str) -> str:
    return text.translate(_MARKUP).replace("://", "&#58;//").replace("www.", "www&#46;")


def _without_punctuation(address: str) -> str:
    """Without what ends a sentence or a parenthesis around it."""
    while address[-1] in ".,;:?" or (address[-1] == ")" and address.count(")") > address.count("(")):
        address = address[:-1]
    return address


def _one_line(text: str) -> str:
    """Without line breaks and control characters, which end rows, and spaces at the ends, which hide formulas."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
