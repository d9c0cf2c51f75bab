"""What a training run reports: seconds by phase, loss, learning rates, memory; one line of JSON now and then."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vlnbench.training.family.trains import Stretches


class Phases:
    """Wall-clock seconds by phase. On CUDA every boundary waits for the device, or time would be misattributed."""

    def __init__(self, device: torch.device, begins: Callable[[str], None] = lambda phase: None) -> None:
        """`begins` is told of every phase that begins."""
        self._device, self._begins = device, begins
        self._names = ["load", "backward", "optimizer", "save"]
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def also(self, *names: str) -> None:
        """Report these phases, too."""
        self._names[1:1] = names

    def goes_on(self, phase: str) -> None:
        """A phase that lasts makes progress."""
        self._begins(phase)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add what happens inside to a phase."""
        self._begins(phase)
        start = self._now()
        try:
            yield
        finally:
            self._seconds[phase] += self._now() - start

    def watch(self, model: nn.Module, stretches: Stretches) -> None:
        """Split forward passes of `model` in two or three."""
        starts: dict[str, float] = {}
        names = stretches.names
        ends = [stretches.end] if stretches.middle is None else [stretches.middle, stretches.end]
        self._names[1:1] = names

        def begin(phase: str) -> Callable[..., None]:
            def note(*_: object) -> None:
                self._begins(phase)
                starts[phase] = self._now()

            return _as_it_is(note)

        def end(phase: str) -> Callable[..., None]:
            def add(*_: object) -> None:
                self._seconds[phase] += self._now() - starts[phase]

            return _as_it_is(add)

        stretches.start.register_forward_pre_hook(begin(names[0]))
        for module, ended, begun in zip(ends, names[:-1], names[1:], strict=True):
            module.register_forward_hook(end(ended))
            module.register_forward_hook(begin(begun))
        model.register_forward_hook(end(names[-1]))

    def take(self) -> dict[str, float]:
        """Seconds since the last call, by phase, and start again."""
        taken = {phase: round(self._seconds[phase], 6) for phase in self._names}
        self._seconds.clear()
        return taken

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def _as_it_is(hook: Callable[..., None]) -> Callable[..., None]:
    """Keep torch.compile out of a hook: it would compile it again for every time that it noted."""
    kept: Callable[..., None] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return kept


def taken(device: torch.device, rank: int) -> dict[str, Any]:
    """What this process had taken of its GPU at most, in bytes, when memory ran out."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "rank": rank,
        "allocated": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
        "capacity": properties.total_memory,
        "gpu": properties.name,
    }
