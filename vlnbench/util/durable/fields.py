"""Fields of JSON objects that anybody may have written, checked before they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vlnbench.errors import UsageError

_LARGEST = 10**18
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value may be: in words, and as a test."""

    what: str
    fits: Callable[[Any], bool]

    def or_null(self) -> Kind:
        """The same, or null."""
        fits = self.fits
        return Kind(f"{self.what} or null", lambda value: value is None or fits(value))


def _is_text(value: Any) -> bool:
    return type(value) is str and (value.isascii() or _has_characters_only(value))


def _has_characters_only(text: str) -> bool:
    """Whether a text can be printed and stored: half a character of UTF-16 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_whole(value: Any) -> bool:
    return type(value) is int and -_LARGEST <= value <= _LARGEST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -_LARGEST <= value <= _LARGEST


def _is_scalar(value: Any) -> bool:
    return value is None or type(value) is bool or _is_text(value) or _is_number(value)


def _is_time(value: Any) -> bool:
    try:
        return type(value) is str and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


TEXT = Kind("text", _is_text)
WHOLE = Kind("a whole number of up to 18 digits", _is_whole)
COUNT = Kind(
    "a whole number from 0 of up to 18 digits", lambda value: type(value) is int and 0 <= value <= _LARGEST
)
NUMBER = Kind("a finite number", _is_number)
SHARE = Kind("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1 + 1e-9)  # sums round
LENGTH = Kind("a number from 0", lambda value: _is_number(value) and value >= 0)
SECONDS = Kind("a number of seconds, at most 1e9", lambda value: _is_number(value) and abs(value) <= 1e9)
POSITIVE = Kind("a finite number above 0", lambda value: _is_number(value) and value > 0)
SCALAR = Kind("text, a finite number, a boolean or null", _is_scalar)
BOOLEAN = Kind("a boolean", lambda value: type(value) is bool)
ANYTHING = Kind("anything", lambda value: True)
OBJECT = Kind("an object", lambda value: type(value) is dict)
TIME = Kind("a time with its zone, like 2026-01-31T12:00:00+00:00", _is_time)


def one_of(*names: str) -> Kind:
    """One of some texts."""
    return Kind(f"one of {', '.join(names)}", lambda value: type(value) is str and value in names)


def check_fields(
    found: Mapping[str, Any],
    kinds: Mapping[str, Kind],
    where: str,
    *,
    needed: frozenset[str] = frozenset(),
    others: Kind | None = None,
    inside: str = "",
) -> None:
    """Raise UsageError for the first field that is missing or not what it should be.

    others: what fields that `kinds` does not name may be; None: there may be none. where: file and line, and
    `inside`: the field that `found` is itself, with a dot, both for the message.
    """
    for name, value in found.items():
        kind = kinds.get(name, others)
        if kind is None:
            raise UsageError(f"{where}: field '{inside}{short(name)}': unknown field")
        if not kind.fits(value):
            raise UsageError(f"{where}: field '{inside}{short(name)}': expected {kind.what}, found {short(value)}")
    if not needed <= found.keys():
        raise UsageError(f"{where}: field '{inside}{min(needed - found.keys())}': missing")


def short(value: Any) -> str:
    """A value in a message: in one line, cut off where it is long. Text comes without quotes if it is a name."""
    if isinstance(value, str) and value.isidentifier() and len(value) <= _LONGEST:
        return value
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "a number of more than 18 digits"
    text = ascii(value) if isinstance(value, str | int | float | None) else f"{type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
