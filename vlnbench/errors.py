"""The two exceptions a user is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """A mistake in what the user gave us: a file, a field, an option or a name.

    The command line prints the message as one line without a traceback and exits with code 2. The message says
    which file or field, what was expected there and what to do.
    """


class RunError(Exception):
    """A run that ended before its plan was done, by its error budget or for want of disk or simulators.

    Every episode that had finished is recorded, and the run can be resumed. The command line prints the message as
    one line and exits with code 1.
    """


class GpuMemoryError(Exception):
    """A GPU's memory did not suffice. The message says for what, how much there was and what would fit.

    The command line prints it and exits with code 3.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """One line for a name that is not in a table, with the nearest known name."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}"
