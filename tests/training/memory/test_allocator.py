"""The model of PyTorch's allocator: by hand, and what holds for whatever is asked of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlnbench.training.memory.allocator import Allocator, Block, NoRoomError

MIB = 2**20


def test_small_and_large_blocks_have_segments_of_their_own() -> None:
    allocator = Allocator()
    small = allocator.allocate(1)
    assert (small.size, allocator.live, allocator.reserved) == (512, 512, 2 * MIB)
    allocator.allocate(MIB)
    assert allocator.reserved == 2 * MIB
    allocator.allocate(2 * MIB)
    assert allocator.reserved == 22 * MIB
    allocator.allocate(11 * MIB)  # in what is left of the 20
    assert allocator.reserved == 22 * MIB
    allocator.allocate(11 * MIB)  # in steps of 2
    assert allocator.reserved == 34 * MIB


def test_the_smallest_free_block_is_taken_and_what_is_left_stays_free() -> None:
    allocator = Allocator()
    large, fitting = allocator.allocate(100 * MIB), allocator.allocate(40 * MIB)
    allocator.release(large)
    allocator.release(fitting)
    assert allocator.allocate(39 * MIB).size == 40 * MIB, "a rest of a MiB is not worth a block"
    first, second = allocator.allocate(60 * MIB), allocator.allocate(40 * MIB)
    assert allocator.reserved == 140 * MIB
    allocator.release(first)
    allocator.release(second)
    assert allocator.allocate(100 * MIB).size == 100 * MIB, "neighbors join"
    assert allocator.reserved == 140 * MIB


def test_within_a_limit_free_segments_are_given_back() -> None:
    allocator = Allocator()
    for block in [allocator.allocate(30 * MIB) for _ in range(3)]:
        allocator.release(block)
    allocator.settle(100 * MIB)
    held = [allocator.allocate(30 * MIB) for _ in range(3)]
    allocator.release(held.pop(0))
    assert allocator.allocate(40 * MIB).size == 40 * MIB
    assert allocator.reserved == 100 * MIB
    with pytest.raises(NoRoomError):
        allocator.allocate(2 * MIB)


def test_a_segment_that_is_in_use_in_part_is_not_given_back() -> None:
    allocator = Allocator()
    allocator.release(allocator.allocate(90 * MIB))
    allocator.allocate(30 * MIB)
    allocator.settle(None)
    assert allocator.reserved == 90 * MIB
    allocator.settle(120 * MIB)
    with pytest.raises(NoRoomError):
        allocator.allocate(70 * MIB)


@given(st.lists(st.integers(-20, 60 * MIB), max_size=80))
def test_books_are_kept(events: list[int]) -> None:
    """Positive: allocate; else let go of one of the blocks."""
    allocator, held = Allocator(), dict[int, Block]()
    for number, event in enumerate(events):
        if event > 0:
            held[number] = allocator.allocate(event)
            assert held[number].size >= event
        elif held:
            allocator.release(held.pop(sorted(held)[-event % len(held)]))
        assert allocator.live == sum(block.size for block in held.values())
        assert allocator.live <= allocator.reserved <= allocator.peak_reserved
    for block in held.values():
        allocator.release(block)
    allocator.give_back()
    assert (allocator.live, allocator.reserved) == (0, 0)
