"""How many threads a computation should use, found out by timing it.

Threads that share one computation wait for each other again and again. Where another process takes one of their
cores away, all of them wait for the one that it interrupted: a small model on two cores then takes ten times as
long with two threads as with one, or more. Nobody can tell beforehand, so it is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

EXPLICIT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which a user chooses; then nothing is measured."""

CLEARLY = 1.1
"""More threads are taken only where fewer need this many times as long."""

HOPELESS = 1.5
"""A number of threads that needs this many times as long as the best ends the search: the next is no better."""

LARGE = 2.0
"""Seconds that large work takes at least with one thread. It is then tried with the most threads first, anything
else with the fewest, as a single try may take minutes with threads that wait for each other."""

SECONDS, MOST_REPEATS = 0.1, 10
"""How long each number of threads is timed for, and how often at most; once where one time takes longer."""


def explicit() -> str | None:
    """The variable by which the user has chosen the number of threads, None if it is to be measured."""
    return next((name for name in EXPLICIT if os.environ.get(name)), None)


def candidates(most: int) -> list[int]:
    """The numbers that are tried: the most, and half of it, down to 1."""
    return [most] if most <= 1 else [most, *candidates(most // 2)]


def fastest(
    work: Callable[[], object],
    use: Callable[[int], None],
    most: int,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Time `work` with 1 to `most` threads; returns the number to use, which is in use by then.

    use: sets the number of threads. `work` must always do the same, and nothing that lasts.
    """
    use(1)
    start = clock()
    work()  # not small work's time: some things are only done the first time
    alone = clock() - start
    times = {1: alone} if alone > LARGE else {}
    counts = candidates(most)
    for count in counts[:-1] if times else reversed(counts):
        use(count)
        times[count] = typical(_timed(work, clock))
        if times[count] > HOPELESS * min(times.values()):
            break
    found = chosen(times)
    use(found)
    return found


def chosen(times: Mapping[int, float]) -> int:
    """The number of threads to use by the seconds that each takes: the fewest that are not clearly slower."""
    best = min(times.values())
    return min(count for count, seconds in times.items() if seconds <= CLEARLY * best)


def typical(taken: Sequence[float]) -> float:
    """Seconds that something takes: the median of the faster half, as what disturbs it can only slow it down."""
    half = sorted(taken)[: (len(taken) + 1) // 2]
    return half[len(half) // 2]


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    taken: list[float] = []
    while len(taken) < MOST_REPEATS + 1 and sum(taken) < SECONDS:
        start = clock()
        work()
        taken.append(clock() - start)
    return taken[1:] or taken  # the first time starts the threads
