"""PyTorch's threads of an agent on the CPU: chosen by timing, when it is loaded and while it acts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from vlnbench.util.machine import cores
from vlnbench.util.threads import HOPELESS, chosen, explicit, fastest, typical

REPEATS = 6
"""Calls with each number of threads in a comparison."""

STUCK = 5.0
"""One call that takes this many times as long as usual ends the trial of its number of threads."""

SHARE = 50
"""A comparison is followed by this many times as much acting as it has cost."""


class Threads:
    """Keeps PyTorch at the number of threads with which the agent is fastest beside whatever else runs.

    rehearse: does what the agent mostly does and changes nothing; it is timed for a number to begin with. What
    counts later are the agent's own calls, because then simulators are at work on the same cores: now and then
    some calls are made with half and with twice as many threads. None: the number stays as it is. On other devices
    than the CPU nothing is measured and nothing said. Never more threads than PyTorch has at the beginning, nor
    than this process has cores.
    """

    def __init__(
        self,
        device: torch.device,
        rehearse: Callable[[], object] | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._on_cpu, self._clock, self._before = device.type == "cpu", clock, torch.get_num_threads()
        self._most = min(self._before, cores())
        self._measures = self._on_cpu and rehearse is not None and self._most > 1 and explicit() is None
        if self._on_cpu and explicit() is None:
            torch.set_num_threads(self._most)
        if self._measures and rehearse is not None:
            fastest(rehearse, torch.set_num_threads, self._most, clock)
        self._now = torch.get_num_threads()
        self._used = [self._now]
        self._acted = self._due = 0.0
        self._times: dict[int, list[float]] = {}
        self._dropped: set[int] = set()

    @property
    def description(self) -> list[str]:
        """A line about what was chosen at the beginning, none on other devices."""
        if not self._on_cpu:
            return []
        measured = f"fastest of 1 to {self._most}" if self._measures else "as it was"
        return [f"PyTorch's threads: {self._used[0]} ({f'by {explicit()}' if explicit() else measured})"]

    @property
    def remarks(self) -> list[str]:
        """A line about what was chosen later, none if that is the same."""
        used = sorted(set(self._used))
        return [f"PyTorch's threads changed while the agent acted: {used[0]} to {used[-1]}"] if used[1:] else []

    @contextmanager
    def acting(self, parts: int) -> Iterator[None]:
        """Around every call of the model for episodes; parts: how many equal parts its work has."""
        if not self._measures:
            yield
            return
        count = self._next()
        torch.set_num_threads(count)
        start = self._clock()
        yield
        seconds = self._clock() - start
        self._acted += seconds
        if self._times:
            self._times[count].append(seconds / parts)
            self._compare(count)

    def close(self) -> None:
        """Leave PyTorch as it was."""
        self._measures = False
        torch.set_num_threads(self._before)

    def _next(self) -> int:
        """The number of threads for the next call. Begins a comparison when one is due."""
        if not self._times and self._acted >= self._due:
            tried = {self._now, max(1, self._now // 2), min(self._most, 2 * self._now)}
            self._times, self._dropped, self._acted = {count: [] for count in sorted(tried)}, set(), 0.0
        running = [count for count in self._times if count not in self._dropped]
        return min(running, key=lambda count: len(self._times[count])) if running else self._now

    def _compare(self, count: int) -> None:
        """Take in a call with `count` threads; ends the comparison when enough are known."""
        known = {each: typical(times) for each, times in self._times.items() if times}
        usual = min(known.values())
        own = self._times[count]
        if len(known) > 1 and (own[-1] > STUCK * usual or (len(own) > 1 and known[count] > HOPELESS * usual)):
            self._dropped.add(count)
        if any(len(times) < REPEATS for each, times in self._times.items() if each not in self._dropped):
            return
        running = {each: seconds for each, seconds in known.items() if each not in self._dropped}
        found = chosen(running) if running else self._now
        lost = sum(sum(times) for each, times in self._times.items() if each != found)
        beyond = found // 2 if found < self._now else 2 * found
        self._due = 0.0 if found != self._now and 1 <= beyond <= self._most else SHARE * lost
        self._now, self._times, self._acted = found, {}, 0.0
        if self._used[-1] != found:
            self._used.append(found)
