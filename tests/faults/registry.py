"""Faults by name: what is done to a run, and what has to come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ALIKE = "rows and trajectories are those of an undisturbed run"


@dataclass(frozen=True)
class Fault:
    """what: is tried. happens: has to. run: tries it in an empty folder; raises AssertionError otherwise."""

    what: str
    happens: str
    run: Callable[[Path], None]


FAULTS: dict[str, Fault] = {}


def fault(what: str, happens: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Register a function under its name."""

    def register(function: Callable[[Path], None]) -> Callable[[Path], None]:
        FAULTS[function.__name__.replace("_", "-")] = Fault(what, happens, function)
        return function

    return register
