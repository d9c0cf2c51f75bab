"""What fits on a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

NARROWEST = 20
"""Columns that text in a table has at least, however narrow the terminal is."""


def screen_width() -> int:
    """Columns of the terminal; more than any line has where output goes elsewhere."""
    return shutil.get_terminal_size((10_000, 24)).columns


def folded(texts: Sequence[str], beside: Iterable[Sequence[str]], width: int) -> list[str]:
    """Texts of a column without heading as lines that leave room for the other columns of a table, each with its
    heading first. tabulate pads headings by two."""
    room = max(NARROWEST, width - sum(2 + max(len(cells[0]) + 2, *map(len, cells)) for cells in beside))
    if max(map(len, texts), default=0) <= room:
        return list(texts)
    return ["\n".join(textwrap.wrap(text, room)) for text in texts]


def wrapped(text: str, width: int) -> str:
    """Lines of at most so many columns; those that go on are set in."""
    return "\n".join(
        part for line in text.splitlines() for part in textwrap.wrap(line, width, subsequent_indent="  ") or [""]
    )
