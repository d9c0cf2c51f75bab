"""Text of others on a terminal: shown, never obeyed."""

from __future__ import annotations

import re
from typing import Any, TextIO

LONGEST = 300
"""Characters of a line of others; what is longer is cut off."""

_CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""What moves the cursor, colors, renames windows or turns the order of reading around; not tabs and line ends."""


def visible(text: str) -> str:
    """The same text with control characters written out, as in Python's own."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(given: Any, most: int = LONGEST) -> str:
    """Whatever others say, in one line that can be printed, cut off where it is long. Raises nothing."""
    try:
        text = str.__str__(str(given))  # one of a class of its own may lie about itself
    except Exception:  # what converts itself may raise anything
        text = f"a {type(given).__name__} that cannot be shown"
    line = " ".join(text[: 4 * most].split())
    if not line.isprintable():
        line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)
    return line if len(line) <= most else f"{line[:most]}..."


def shown(given: Any, most: int = 60) -> str:
    """The same of a value as Python writes it, with quotes around text."""
    try:
        text = repr(given)
    except Exception:  # also a number of more than 4,300 digits
        text = f"a {type(given).__name__}"
    return one_line(text, most)


class Visible:
    """A stream to which only visible text is written. It has what the stream has."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, made visible; what the terminal's encoding lacks is written out, too."""
        shown, encoding = visible(text), self._stream.encoding or "utf-8"
        return self._stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
