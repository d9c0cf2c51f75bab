"""How long an agent takes for one, two, four and more episodes at once, found out by timing it."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST = 8
"""Episodes at once, at most: beyond it there is little to be gained on a CPU, and each takes a simulator."""

TRIES, EACH_S = 10, 0.12
"""Times that each number is tried, and seconds for it, at most: a disturbance can only make a try slower."""

SECONDS = 0.7
"""No further number is tried when this much time is gone."""

WORSE = 1.2
"""Nor is one beyond a number with which an episode takes this many times as long as with half of it."""


def measured(
    rehearse: Callable[[int], object], clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Seconds by the number of episodes: 1, 2, 4 and so on up to `MOST`; empty if one alone takes too long.

    rehearse: does what the agent mostly does, for so many episodes at once, and nothing that lasts.
    """
    found: dict[int, float] = {}
    began, count = clock(), 1
    while count <= MOST:
        taken: list[float] = []
        while len(taken) < TRIES and sum(taken) < EACH_S and clock() - began < SECONDS:
            start = clock()
            rehearse(count)
            taken.append(clock() - start)
        if not taken:
            break
        found[count] = min(taken)
        if count > 1 and found[count] > WORSE * 2 * found[count // 2]:
            break
        count *= 2
    return found if len(found) > 1 else {}
