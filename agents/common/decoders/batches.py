"""Which sequences share a batch, and how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from vlnbench.util.gpu_memory import halved, is_gpu_memory

FACTOR = 1.5  # sequences whose lengths differ by more than this are not padded to one another

Item = TypeVar("Item")
Made = TypeVar("Made")


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


class Batches:
    """Works on at most `most` items at once: on fewer from the time on when a GPU had no room for as many."""

    def __init__(self, most: int) -> None:
        self.most = most

    def run(
        self,
        items: Sequence[Item],
        work: Callable[[Sequence[Item]], Sequence[Made]],
        undo: Callable[[Sequence[Item]], object] = lambda items: None,
    ) -> list[Made]:
        """What `work` makes of items, in their order. undo: what work that has failed has changed.

        Raises what `work` raises, also where a GPU has no room for a single item.
        """
        made: list[Made] = []
        while len(made) < len(items):
            part = items[len(made) : len(made) + self.most]
            try:
                made += work(part)
            except Exception as error:
                if not is_gpu_memory(error) or len(part) == 1:
                    raise
            else:
                continue
            self.most = halved(len(part), "episodes in a pass")
            undo(part)
        return made

    def drain(
        self,
        items: Sequence[Item],
        work: Callable[[Sequence[Item]], object],
        undo: Callable[[Sequence[Item]], Sequence[Item]],
    ) -> None:
        """Have `work` work on all items, which itself keeps to at most `most` at once. undo: what of them is left,
        with what failed undone.

        Raises what `work` raises, also where a GPU has no room for a single item.
        """
        left = items
        while left:
            at_once = min(self.most, len(left))
            try:
                work(left)
            except Exception as error:
                if not is_gpu_memory(error) or at_once == 1:
                    raise
            else:
                return
            self.most = halved(at_once, "episodes in a pass")
            left = undo(left)
