"""Optimizer steps replayed in a model of PyTorch's allocator: what it asks for, and with how little it gets by.

Events of a pass come from its trace, those of DeepSpeed from the same rules as `zero.usages`. Compared with an
H200 for 13 settings of the 8 B size: docs/findings/gpu.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from typing import NamedTuple

from vlnbench.training.memory.allocator import Allocator, Block, NoRoomError
from vlnbench.training.memory.trace import Segment, Trace
from vlnbench.training.memory.zero import (
    ADAFACTOR_BYTES,
    MASTER_BYTES,
    Gradients,
    Sharding,
    gathered_bytes,
    gradient_share,
    muon_temporaries,
    owned_elements,
    permanent_buffers,
    state_bytes,
)

STEPS = 2
"""Optimizer steps: in the second one everything is there."""
WORKSPACE = 32 * 2**20
"""Bytes that cuBLAS takes from the allocator for each thread that multiplies, on Hopper; it is less on others."""
TRIED = (1.01, 1.02, 1.03, 1.045, 1.06, 1.08, 1.11, 1.15, 1.2, 1.3)
"""Limits that are tried, as multiples of the bytes in use at the peak."""


class Beside(NamedTuple):
    """Bytes beside weights and a pass: the frozen reference, keys and values of rollouts, tensors of a loss.

    lengths: of batches in the order in which they come, as shares of the planned one, over and over; what comes
    and goes is in proportion.
    """

    reference: int = 0
    cache: int = 0
    logits: tuple[int, ...] = ()
    lengths: tuple[float, ...] = (1.0,)


def lengths(least: float, most: float) -> tuple[float, ...]:
    """Twelve batches between the shortest and the longest, with both, spread evenly and in no order."""
    inside = [least + (most - least) * (number * GOLDEN % 1) for number in range(1, 11)]
    return (*inside[:5], least, *inside[5:], most)


GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it fill the unit interval evenly."""
NOTHING = Beside()


class Held(NamedTuple):
    """Bytes of segments: with how little the steps get by, with no limit, and before the first step."""

    needed: int
    reserved: int
    loading: int


def replay(trace: Trace, sharding: Sharding, beside: Beside = NOTHING) -> Held:
    """Replay optimizer steps without a limit and then within ever larger ones, until they fit."""
    free = _Steps(trace, sharding, beside)
    needed, reserved = _held(lambda limit: _Steps(trace, sharding, beside, limit).run())
    return Held(needed, reserved, free.load())


def replay_passes(sizes: Iterable[int], passes: Sequence[Sequence[int]]) -> Held:
    """An agent's passes one after the other, twice, beside blocks of so many bytes that stay."""
    sizes = tuple(sizes)

    def run(limit: int | None) -> Allocator:
        allocator = Allocator()
        for size in sizes:
            allocator.allocate(size)
        allocator.settle(limit)
        allocator.allocate(WORKSPACE)
        for events in (*passes, *passes):
            blocks = _follow(allocator, events, [])
            for block in filter(None, blocks):
                allocator.release(block)
        return allocator

    return Held(*_held(run), sum(sizes))


def _held(run: Callable[[int | None], Allocator]) -> tuple[int, int]:
    """With how little a run gets by, and what it takes without a limit."""
    most = run(None)
    for share in TRIED:
        limit = round(share * most.peak_live)
        if limit >= most.peak_reserved:
            break
        with suppress(NoRoomError):
            run(limit)
            return limit, most.peak_reserved
    return most.peak_reserved, most.peak_reserved


def _follow(
    allocator: Allocator, events: Iterable[int], blocks: list[Block | None], between: Iterable[None] = ()
) -> list[Block | None]:
    """Do what a pass did, where `blocks` are those of before; `between`: what else happens after each event."""
    others = iter(between)
    for event in events:
        if event > 0:
            blocks.append(allocator.allocate(event))
        elif (block := blocks[-event - 1]) is not None:
            allocator.release(block)
            blocks[-event - 1] = None
        next(others, None)
    return blocks


class _Steps:
    """Optimizer steps in one allocator."""

    def __init__(self, trace: Trace, sharding: Sharding, beside: Beside, limit: int | None = None) -> None:
        self._trace, self._sharding, self._beside, self._limit = trace, sharding, beside, limit
        self._allocator = Allocator()
        self._held: dict[str, list[Block]] = {}
        owned = 0 if sharding.offload_optimizer else sum(owned_elements(trace, sharding.ranks))
        self._owned = owned * sharding.weight_bytes
        self._shares = [-(-sum(group) // (sharding.ranks if sharding.stage else 1)) for group in trace.groups]

    def run(self) -> Allocator:
        """Raises NoRoomError."""
        self.load()
        passes = (False, True)[: self._sharding.accumulation]
        batches = cycle(self._beside.lengths)
        for step in range(max(STEPS, -(-len(self._beside.lengths) // len(passes)))):
            self._hold("cache", self._beside.cache)
            self._hold("cache")
            for later in passes:
                self._differentiate(later, next(batches))
            self._update(first=step == 0)
        return self._allocator

    def _hold(self, name: str, *sizes: int) -> None:
        """Blocks of these bytes under a name, in place of what was under it."""
        for block in self._held.pop(name, ()):
            self._allocator.release(block)
        self._more(name, *sizes)

    def _more(self, name: str, *sizes: int) -> None:
        self._held.setdefault(name, []).extend(self._allocator.allocate(size) for size in sizes if size)

    def load(self) -> int:
        """Set up what stays; returns the bytes that were reserved meanwhile. Raises NoRoomError."""
        size, ranks = self._sharding.weight_bytes, self._sharding.ranks
        whole = [elements * size for elements in self._trace.sizes]
        if self._sharding.stage == 3:  # each is there whole for a moment, and no two
            for each in whole:
                self._hold("one", each)
                self._more("weights", *[] if self._sharding.offload_parameters else [-(-each // ranks)])
            self._hold("one")
        else:
            self._hold("weights", *whole)
        self._hold("reference", self._beside.reference)
        if not self._sharding.offload_optimizer and (self._sharding.stage or size != MASTER_BYTES):
            self._hold("master", *(MASTER_BYTES * share for share in self._shares))
        loading = self._allocator.peak_reserved
        self._allocator.settle(self._limit)
        self._hold("workspaces", WORKSPACE, WORKSPACE)
        self._hold("permanent", permanent_buffers(self._trace, self._sharding))
        if self._sharding.stage == 3:
            self._hold("sums", gradient_share(self._trace, self._sharding))
        return loading

    def _differentiate(self, later: bool, length: float) -> None:
        """One forward and backward pass, and the gradients that are finished meanwhile."""
        flow = Gradients(self._trace, self._sharding, later)
        blocks: list[Block | None] = []
        for segment in self._trace.segments:
            events: Iterable[int] = segment.events
            if length != 1:
                events = (round(length * event) if event > 0 else event for event in events)
            _follow(self._allocator, events, blocks, self._gathered(segment))
            if segment.phase == "forward":
                self._hold("logits", *(round(length * size) for size in self._beside.logits))
                self._hold("logits")
            flow.finish(segment)
            self._keep(flow, segment)
        for block in filter(None, blocks):
            self._allocator.release(block)
        self._reduce(later)
        self._hold("gathered")

    def _keep(self, flow: Gradients, segment: Segment) -> None:
        """Hold what has become of a finished gradient."""
        self._hold("bucket", flow.buffers - permanent_buffers(self._trace, self._sharding))
        if self._sharding.stage < 2:
            self._more("sums", 0 if flow.later else segment.gradient * self._sharding.weight_bytes)
        elif segment.gradient:
            self._hold("waiting", flow.waiting)
        if self._sharding.stage == 2 and self._owned:
            self._sum(flow.partition // self._owned)

    def _sum(self, count: int) -> None:
        """Have so many buffers for this rank's gradients."""
        sums = self._held.setdefault("sums", [])
        while len(sums) > count:
            self._allocator.release(sums.pop())
        self._more("sums", *[self._owned] * (count - len(sums)))

    def _gathered(self, segment: Segment) -> Iterator[None]:
        """Weights that ZeRO 3 puts together, a window over all that moves on with the events of a segment."""
        room = gathered_bytes(self._trace, self._sharding)
        if not room:
            return
        sizes = [elements * self._sharding.weight_bytes for elements in self._trace.sizes]
        ahead, count = deque(sizes if segment.phase == "forward" else reversed(sizes)), len(segment.events)
        if count < len(sizes):  # between two gradients: what is there stays
            return
        self._hold("gathered")
        whole = sum(sizes)
        window, there, passed = self._held["gathered"], 0, 0
        for pace in range(count):
            while ahead and (not window or there + ahead[0] <= room):
                window.append(self._allocator.allocate(ahead.popleft()))
                there += window[-1].size
            yield
            if window and passed + window[0].size <= (pace + 1) * whole // count:
                passed, there = passed + window[0].size, there - window[0].size
                self._allocator.release(window.pop(0))

    def _reduce(self, later: bool) -> None:
        """What is left in the bucket goes to the owners of its gradients."""
        if self._sharding.stage == 2 and self._owned:
            self._sum(2 if later else 1)
            self._sum(1)
        elif self._sharding.stage == 1:
            self._hold("bucket", self._sharding.bucket_bytes)
        self._hold("bucket")
        self._hold("waiting")

    def _update(self, first: bool) -> None:
        """The optimizer step: groups one after the other, without ZeRO tensor by tensor."""
        sharding, size = self._sharding, self._sharding.weight_bytes
        shares = self._shares
        if not sharding.stage:
            shares = [elements for group in self._trace.groups for elements in group]
        master = sum(block.size for block in self._held.get("master", ()))
        moments = max(0, state_bytes(self._trace, sharding) - master)
        for number, share in enumerate(() if sharding.offload_optimizer else shares, start=1):
            if sharding.stage:
                self._hold("flat", share * size)
            self._more("wide", 0 if size == MASTER_BYTES else MASTER_BYTES * share)
            self._hold("flat")
            if number == len(shares) and sharding.stage in (1, 2):
                self._hold("sums")
            if first:
                half = moments * share // (2 * sum(shares))
                self._more("moments", half, half)
            if sharding.stage:
                self._hold("wide")
        self._hold("temporaries", *self._temporaries())
        self._hold("temporaries")
        self._hold("wide")
        if sharding.stage < 3:
            self._hold("sums")

    def _temporaries(self) -> list[int]:
        """Of updates that take one tensor at a time, in two halves."""
        if self._sharding.optimizer == "adafactor":
            return 2 * [ADAFACTOR_BYTES // 2 * max(map(max, self._trace.groups))]
        if self._sharding.optimizer == "muon":
            return [muon_temporaries(self._trace, self._sharding.ranks)]
        return []
