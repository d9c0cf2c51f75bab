"""PyTorch's caching allocator on CUDA, as arithmetic: which segments it asks the driver for, and which it keeps.

After `c10/cuda/CUDACachingAllocator.cpp` of torch 2.11, with its defaults and without expandable segments. A block
is taken from the smallest free one that holds it, and what is left over stays free. Where the driver has nothing
left, segments of which nothing is in use are given back, and the driver is asked again.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from typing import Any

UNIT = 512
"""Sizes are rounded up to a multiple of this many bytes."""
SMALL = 2**20
"""Blocks up to this size have segments of their own."""
SMALL_SEGMENT, LARGE_SEGMENT = 2 * 2**20, 20 * 2**20
WHOLE = 10 * 2**20
"""Blocks from this size on get a segment of their size, in steps of `SMALL_SEGMENT`."""


class NoRoomError(Exception):
    """The driver has not enough, even after all free segments were given back."""


class Block:
    """A stretch of a segment with its neighbors in it."""

    __slots__ = ("after", "before", "number", "size", "small")

    def __init__(self, size: int, small: bool) -> None:
        self.size, self.small = size, small
        self.number = 0  # among free blocks; 0 while it is in use
        self.before: Block | None = None
        self.after: Block | None = None


class Allocator:
    """live, reserved: bytes of blocks in use, and of segments, now; peak_live, peak_reserved: at most so far.

    There is no limit to what the driver has, but for one that `settle` sets, in bytes.
    """

    def __init__(self) -> None:
        self._limit: int | None = None
        self._free: dict[bool, list[tuple[Any, ...]]] = {True: [], False: []}
        self._count = itertools.count(1)
        self.live = self.reserved = self.peak_live = self.peak_reserved = 0

    def allocate(self, size: int) -> Block:
        """Raises NoRoomError."""
        size = max(1, -(-size // UNIT)) * UNIT
        small = size <= SMALL
        free = self._free[small]
        place = bisect_left(free, (size,))
        block = free.pop(place)[2] if place < len(free) else self._segment(size, small)
        block.number = 0
        rest = block.size - size
        if rest >= UNIT if small else rest > SMALL:
            other = Block(rest, small)
            other.before, other.after, block.after, block.size = block, block.after, other, size
            if other.after:
                other.after.before = other
            self._offer(other)
        self.live += block.size
        self.peak_live = max(self.peak_live, self.live)
        return block

    def release(self, block: Block) -> None:
        """Let go of a block, which joins its free neighbors."""
        self.live -= block.size
        if block.before and block.before.number:
            self._join(block.before, block)
            block = block.before
        if block.after and block.after.number:
            self._join(block, block.after)
        self._offer(block)

    def give_back(self) -> None:
        """Return segments of which nothing is in use to the driver."""
        for small, free in self._free.items():
            self.reserved -= sum(size for size, _, block in free if _is_segment(block))
            self._free[small] = [each for each in free if not _is_segment(each[2])]

    def settle(self, limit: int | None) -> None:
        """Give back what can be given back, count peaks from here on, and have another limit."""
        self.give_back()
        self.peak_live, self.peak_reserved, self._limit = self.live, self.reserved, limit

    def _segment(self, size: int, small: bool) -> Block:
        whole = -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
        wanted = SMALL_SEGMENT if small else LARGE_SEGMENT if size < WHOLE else whole
        if self._limit is not None and self.reserved + wanted > self._limit:
            self.give_back()
            if self.reserved + wanted > self._limit:
                raise NoRoomError
        self.reserved += wanted
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return Block(wanted, small)

    def _offer(self, block: Block) -> None:
        block.number = next(self._count)
        insort(self._free[block.small], (block.size, block.number, block))

    def _join(self, first: Block, second: Block) -> None:
        """Make one of neighbors; `first` stays, in no list."""
        for block in (first, second):
            if block.number:
                free = self._free[block.small]
                del free[bisect_left(free, (block.size, block.number))]
                block.number = 0
        first.size += second.size
        first.after = second.after
        if first.after:
            first.after.before = first


def _is_segment(block: Block) -> bool:
    return block.before is None and block.after is None
