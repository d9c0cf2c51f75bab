"""A confidence sequence: an interval that may be looked at at any time, and stopped by, and still holds.

The question is what all planned episodes will say on average, from those that have been run so far. Episodes of
one scene resemble each other, and a run that goes from scene to scene says little of the scenes to come. Here
episodes come in random order from all scenes, so that whatever they have in common, the next one is a fair draw
from those that are left. That is all the method asks for: nothing about scenes, and no assumption about
outcomes but that they lie between 0 and 1. Once all have been run, the interval is a point.

Method: testing by betting on draws without replacement (Waudby-Smith and Ramdas, "Estimating means of bounded
random variables by betting", JRSS B 2024, arXiv 2010.09686, sections 4 and 5). For every mean that might be the
true one, players bet that it is too low or too high, each with a stake of its own. Under the true mean their
capital is a martingale, and on average over the players it exceeds 20 times its start with a probability of 5 %
at most, ever (Ville's inequality). Means whose players have become that rich are out for good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

ALPHA = 0.05
_STAKES = np.geomspace(0.03, 3.0, 10)[:, None]
"""One of them is near the best stake at any number of episodes from a dozen to ten thousand."""
_CAP = 0.75
"""Part of the capital that a player may lose in one bet at most."""
_GRID = 1001
LOOK = 10
"""Values between two looks."""

STAKES = len(_STAKES)
"""Players on either side."""


def gains(value: float | Array, expected: Array) -> Array:
    """What a value adds to the logarithms of the players' capital, (2, STAKES, n): of who bets on more, on less.

    expected: (n,) what the mean of those that are left would be.
    """
    expected = np.clip(expected, 1e-9, 1.0 - 1e-9)
    surprise = value - expected
    more = np.log1p(np.minimum(_STAKES, _CAP / expected) * surprise)
    less = np.log1p(-np.minimum(_STAKES, _CAP / (1.0 - expected)) * surprise)
    return np.stack([more, less])


def is_rich(capital: Array) -> npt.NDArray[np.bool_]:
    """(n,) whether the players' capital, (2, STAKES, n) in logarithms, has on average grown 20 times."""
    capital = capital.reshape(-1, capital.shape[-1])
    most = capital.max(axis=0)
    mean_capital: Array = most + np.log(np.mean(np.exp(capital - most), axis=0))
    return mean_capital >= math.log(1.0 / ALPHA)


class ConfidenceSequence:
    """95 % interval of the mean of `size` values in [0, 1] that are drawn without replacement in random order.

    steps: the mean is a multiple of 1 / steps (for rates: the number of outcomes); None: it may be anything.
    """

    def __init__(self, size: int, steps: int | None = None) -> None:
        if size < 1:
            raise ValueError("a mean needs a value")
        exact = steps is not None and steps < 2 * _GRID
        points = steps + 1 if steps is not None and exact else _GRID
        self._size = size
        self._means: Array = np.arange(points) / (points - 1)
        self._margin = 0.0 if exact else 1.0 / (points - 1)  # the mean may lie between two points
        self._capital = np.zeros((2, STAKES, points))
        self._left = np.ones(points, dtype=bool)
        self._count, self._sum = 0, 0.0

    @property
    def count(self) -> int:
        """Values seen."""
        return self._count

    def add(self, value: float) -> None:
        """The next value of the random order."""
        if not 0.0 <= value <= 1.0 or self._count == self._size:
            raise ValueError(f"expected {self._size} values from 0 to 1, found {value} after {self._count}")
        # what is left has this mean, if the candidate is right
        expected = (self._size * self._means - self._sum) / (self._size - self._count)
        self._left &= (expected > -1e-9) & (expected < 1.0 + 1e-9)
        self._capital += gains(value, expected)
        self._count, self._sum = self._count + 1, self._sum + value

    def interval(self) -> tuple[float, float]:
        """Both ends. If no mean is left, which happens in one run of 20 at most, the mean so far."""
        self._left &= ~is_rich(self._capital)
        left = self._means[self._left]
        if not left.size:
            mean = self._sum / max(1, self._count)
            return mean, mean
        # whatever is left to come, the mean cannot leave these
        lowest, highest = self._sum / self._size, (self._sum + self._size - self._count) / self._size
        return max(float(left[0]) - self._margin, lowest), min(float(left[-1]) + self._margin, highest)


def always_valid(values: Sequence[float], size: int, steps: int | None = None) -> tuple[float, float]:
    """The interval after the first values of a random order of `size`; see `ConfidenceSequence` for `steps`.

    Looked at after every tenth value and after the last of all, whoever asks and however often, so what was left
    out once stays out when values are added.
    """
    sequence, found = ConfidenceSequence(size, steps), (0.0, 1.0)
    for value in values:
        sequence.add(value)
        if sequence.count % LOOK == 0 or sequence.count == size:
            found = sequence.interval()
    return found
