"""How long an agent takes for one, two, four and more episodes at once, found out by timing it."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST = 8
"""Episodes at once, at most: beyond it there is little to be gained on a CPU, and each takes a simulator."""

TRIES = 2
SECONDS = 0.7
"""No further number is tried when this much time is gone."""

WORTH = 0.95
"""A larger number is tried as long as the one before took this part, at most, of the time per episode."""


def measured(
    rehearse: Callable[[int], object], clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Seconds by the number of episodes: 1, 2, 4 and so on up to `MOST`; empty if one alone takes too long.

    rehearse: does what the agent mostly does, for so many episodes at once, and nothing that lasts.
    """
    found: dict[int, float] = {}
    began, count = clock(), 1
    while count <= MOST:
        taken = []
        for _ in range(TRIES):
            start = clock()
            rehearse(count)
            taken.append(clock() - start)
            if clock() - began > SECONDS:
                break
        found[count] = min(taken)
        gained = count == 1 or found[count] / count <= WORTH * found[count // 2] / (count // 2)
        if not gained or clock() - began > SECONDS:
            break
        count *= 2
    return found if len(found) > 1 else {}
