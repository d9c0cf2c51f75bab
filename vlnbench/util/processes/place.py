"""The folder in which this process works, kept from code of others that goes to one of its own (`os.chdir`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Place:
    """Where code of others works: in the folder to which it went. Relative paths of the user stay what they were.

    Costs a few microseconds each time: it is for episodes, not for steps.
    """

    def __init__(self) -> None:
        self._theirs = _folder()

    @contextmanager
    def within(self) -> Iterator[None]:
        """Be where that code was when it last ended; afterwards, be back."""
        ours = _folder()
        _go(ours, self._theirs)
        try:
            yield
        finally:
            self._theirs = _folder()
            _go(self._theirs, ours)


def _folder() -> str | None:
    """None where it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _go(here: str | None, there: str | None) -> None:
    if there is not None and there != here:
        with suppress(FileNotFoundError):
            os.chdir(there)
