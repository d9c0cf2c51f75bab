"""Reading large JSON files piece by piece, gzipped or not.

An EnvDrop file is 250 MB of JSON: decoded at once it costs gigabytes. Here the object at the top level is decoded
one member, or one element of a list, at a time; only what the caller keeps stays in memory.
"""

from __future__ import annotations

import gc
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import MAX_MEMBERS, MAX_VALUE, open_gzip, regular

GZIP_MAGIC = b"\x1f\x8b"
CHUNK = 1 << 20
"""Characters, or bytes, read at a time."""

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def members(path: Path, streamed: str | None = None) -> Iterator[tuple[str, Any]]:
    """(name, value) of every member of the object at the top level of a file, in the order of the file.

    Member `streamed`, which must be a list, is given element by element: (streamed, element) for each. Gzip is
    recognized by content, because the suffix of published files is not reliable.

    Raises UsageError if the file cannot be read, is cut off or damaged, is no JSON object, or is beyond the bounds
    of `vlnbench.util.durable.limits`.
    """
    with _opened(path) as window:
        yield from _members(window, streamed)


def elements(path: Path) -> Iterator[Any]:
    """The elements of a list at the top level of a file, or the values of JSON lines; one at a time is in memory.

    Raises UsageError as `members` does.
    """
    with _opened(path) as window:
        if window.peek() == "[":
            for _ in _separated(window, "[", "]"):
                yield window.value()
            if window.peek():
                raise ValueError("more text behind the end of the list")
        while window.peek():
            yield window.value()


@contextmanager
def _opened(path: Path) -> Iterator[_Window]:
    """A file, gzipped or not, to be read; what is wrong with it is a UsageError."""
    try:
        with regular(path).open("rb") as raw:
            packed = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            raw.seek(0)
            with io.TextIOWrapper(open_gzip(raw, path) if packed else raw, encoding="utf-8-sig") as text:
                yield _Window(text)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, OSError) and error.strerror:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        raise UsageError(f"{path}: not a readable (gzipped) JSON file ({reason}); get the file again") from error


def sha256(*paths: Path) -> str:
    """SHA-256 over the bytes of files, one after the other. Raises UsageError if one cannot be read."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with regular(path).open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()


class _Window:
    """The part of a text that has been read and not yet decoded."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._at = 0
        self._passed = 0  # characters of the file before `_text`

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # matches anything
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                return ""

    def take(self, *wanted: str) -> str:
        """Move past the next character, which must be one of `wanted`."""
        found = self.peek()
        if not found or found not in wanted:
            shown = repr(found) if found else "the end of the file"
            raise ValueError(
                f"expected {' or '.join(wanted)}, found {shown} at character {self._passed + self._at}"
            )
        self._at += 1
        return found

    def value(self) -> Any:
        """Decode the value that begins here."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:  # broken, or not read to its end yet
                position = self._passed + error.pos
                if len(self._text) - self._at > MAX_VALUE or not self._read():
                    raise ValueError(f"{error.msg} at character {position}") from None
                continue
            if end - self._at > MAX_VALUE:
                raise ValueError(f"a value of more than {MAX_VALUE >> 20} MiB at character {self._passed + end}")
            if end < len(self._text) or not self._read():  # a number at the edge may go on behind it
                self._at = end
                return value

    def _read(self) -> bool:
        """Read as much again as is waiting, so that decoding a long value anew costs no more than its length."""
        more = self._stream.read(max(CHUNK, len(self._text) - self._at))
        self._passed += self._at
        self._text = self._text[self._at :] + more
        self._at = 0
        return bool(more)


def _members(window: _Window, streamed: str | None) -> Iterator[tuple[str, Any]]:
    seen = set()
    for _ in _separated(window, "{", "}"):
        name = window.value() if window.peek() == '"' else window.take('"')
        window.take(":")
        if name in seen:
            raise ValueError(f"{name[:40]!r} appears twice at the top level")
        seen.add(name)
        if len(seen) > MAX_MEMBERS:
            raise ValueError(f"more than {MAX_MEMBERS} names at the top level")
        if name == streamed:
            for _ in _separated(window, "[", "]"):
                yield name, window.value()
        else:
            yield name, window.value()
    if window.peek():
        raise ValueError("more text behind the end of the object")


def _separated(window: _Window, opening: str, closing: str) -> Iterator[None]:
    """Walk over the brackets and commas of a list or object; the caller decodes an element at each step."""
    window.take(opening)
    if window.peek() == closing:
        window.take(closing)
        return
    while True:
        yield
        if window.take(",", closing) == closing:
            return


@contextmanager
def collector_off() -> Iterator[None]:
    """Pause the cycle collector: it would visit millions of new tuples again and again and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
