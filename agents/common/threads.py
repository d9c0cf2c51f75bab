"""PyTorch's threads of an agent on the CPU: chosen by timing, when it is loaded and again while it acts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from vlnbench.util.machine import cores
from vlnbench.util.threads import explicit, fastest

SHARE = 50
"""The agent acts this many times as long as it was timed for, then it is timed again."""


class Threads:
    """Keeps PyTorch at the number of threads with which the agent is fastest beside whatever else runs.

    rehearse: does what the agent mostly does and changes nothing. None: the number stays as it is. On other
    devices than the CPU nothing is measured and nothing said. Never more threads than PyTorch has at the
    beginning, nor than this process has cores.
    """

    def __init__(
        self,
        device: torch.device,
        rehearse: Callable[[], object] | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._before = torch.get_num_threads()
        self._most = min(self._before, cores())
        self._rehearse = rehearse if device.type == "cpu" and self._most > 1 and explicit() is None else None
        self._on_cpu, self._clock, self._acted = device.type == "cpu", clock, 0.0
        if self._on_cpu and explicit() is None:
            torch.set_num_threads(self._most)
        self._chosen = self._choose()
        self._later: set[int] = set()

    @property
    def description(self) -> list[str]:
        """A line about what was chosen at the beginning, none on other devices."""
        if not self._on_cpu:
            return []
        measured = f"fastest of 1 to {self._most}" if self._rehearse else "as it was"
        return [f"PyTorch's threads: {self._chosen} ({f'by {explicit()}' if explicit() else measured})"]

    @property
    def remarks(self) -> list[str]:
        """A line about what was chosen later, none if that is the same."""
        used = sorted({self._chosen, *self._later})
        return [f"PyTorch's threads changed while the agent acted: {used[0]} to {used[-1]}"] if used[1:] else []

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Around whatever the agent does for episodes."""
        start = self._clock()
        yield
        self._acted += self._clock() - start
        if self._acted > SHARE * self._cost:
            self._later.add(self._choose())

    def close(self) -> None:
        """Leave PyTorch as it was."""
        self._rehearse = None
        torch.set_num_threads(self._before)

    def _choose(self) -> int:
        start = self._clock()
        if self._rehearse is not None:
            fastest(self._rehearse, torch.set_num_threads, self._most, self._clock)
        self._cost, self._acted = self._clock() - start, 0.0
        return torch.get_num_threads()
