"""What agents and environments say, as plain numbers that a row can hold, or one line on what cannot be.

Whatever implements a protocol may return anything: numbers of NumPy and PyTorch, None, NaN. A run that was written
can always be read, added up and compared, so that this is looked at before anything is kept.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from contextlib import suppress
from textwrap import shorten
from typing import Any, SupportsFloat

from vlnbench.interfaces import Observation, Pose

LARGEST = 1e15
"""Of a number; sums of a million of them are finite, and whole."""
MOST_COUNTS, LONGEST_NAME = 100, 200


def number(value: Any, what: str) -> float:
    """A finite number, whole ones as int. what: who says it of what. Raises ValueError for anything else."""
    found: float | None = value if type(value) is float else None
    if found is None:
        with suppress(Exception):  # what converts itself may raise anything
            found = operator.index(value) + 0  # a truth value becomes 0 or 1
    if found is None and isinstance(value, SupportsFloat):
        with suppress(Exception):
            found = float(value)
    if found is None or not abs(found) <= LARGEST:
        raise ValueError(f"{what} {shorten(repr(value), 60)}: expected a finite number of at most 1e15")
    return found


def counts(given: Any) -> dict[str, float]:
    """An agent's report: finite numbers by name. Raises ValueError naming the entry that cannot be."""
    if not isinstance(given, Mapping) or len(given) > MOST_COUNTS:
        raise ValueError(
            f"the agent's report {shorten(repr(given), 60)}: expected a mapping of at most {MOST_COUNTS} names"
        )
    for name in given:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise ValueError(
                f"the agent's report names {shorten(ascii(name), 60)}: expected printable text of 1 to "
                f"{LONGEST_NAME} characters"
            )
    return {name: number(value, f"the agent's report: {name}") for name, value in given.items()}


def pose(observation: Observation) -> Pose:
    """The pose of an observation. Raises ValueError where the environment gave none, or what is none."""
    given = observation.pose
    if given is None:
        raise ValueError("the environment reported no pose; trajectories need one")
    x, y, z = _numbers(given.position, 3, "position")
    a, b, c, d = _numbers(given.rotation, 4, "rotation")
    return Pose((x, y, z), (a, b, c, d))


def distance(value: Any) -> float:
    """A geodesic distance in meters, infinite where there is no way. Raises ValueError for what is none."""
    what = "the environment's distance to the goal"
    found = value if value == math.inf else number(value, what)
    if found < 0:
        raise ValueError(f"{what} {found}: expected 0 or more")
    return float(found)


def _numbers(given: Any, count: int, what: str) -> list[float]:
    found = (
        [float(number(each, f"the environment's {what}")) for each in given] if isinstance(given, Iterable) else []
    )
    if len(found) != count:
        raise ValueError(f"the environment's {what} {shorten(repr(given), 60)}: expected {count} numbers")
    return found
