"""Exceptions a user is meant to read, and one between agents and the engine."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

_LONGEST, _MOST_LISTED = 100, 400
"""Characters of a name that is refused, and of all known ones, in a line."""


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


class LostBatchError(Exception):
    """An agent lost what it knew of a batch, and no episode in it is to blame: a connection ended, or episodes of
    others were in the batch too. The engine begins each episode anew and acts on it alone, once.
    """


def require(module: str, extra: str) -> Any:
    """Import a module that comes with an extra, or whose libraries do. Raises UsageError where these are not."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _missing(str(error.name), extra) from error


def check_installed(module: str, extra: str) -> None:
    """Raise UsageError where a library that comes with an extra is missing. It is not imported."""
    if find_spec(module) is None:
        raise _missing(module, extra)


def _missing(module: str, extra: str) -> UsageError:
    return UsageError(f"{module} is not installed: run `pip install 'vlnbench[{extra}]'`")


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """One line for a name that is not in a table, with the nearest known name."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name[:_LONGEST], names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    shown = ascii(name) if len(name) <= _LONGEST else f"{ascii(name)[:_LONGEST]}..."
    between = "; " if any(", " in each for each in names) else ", "
    listed = between.join(names)
    if len(listed) > _MOST_LISTED:
        listed = listed[: listed.rindex(between, 0, _MOST_LISTED)]
        listed += f" and {len(names) - listed.count(between) - 1} more"
    return f"unknown {kind} {shown}: {hint}known: {listed}"
