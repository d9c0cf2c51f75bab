"""Which sequences share a batch."""

from __future__ import annotations

from collections.abc import Sequence

FACTOR = 1.5  # sequences whose lengths differ by more than this are not padded to one another


def groups(lengths: Sequence[int]) -> list[int]:
    """Sizes of runs of ascending `lengths` that may be padded to one another."""
    sizes: list[int] = []
    shortest = 0
    for length in lengths:
        if sizes and length <= FACTOR * shortest:
            sizes[-1] += 1
        else:
            sizes.append(1)
            shortest = length
    return sizes
