from __future__ import annotations

import pytest

from agents.common.batch_times import MOST, SECONDS, measured


class Clock:
    """Time passes only while something is rehearsed."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.now, self.seconds = 0.0, seconds

    def __call__(self) -> float:
        return self.now

    def rehearse(self, episodes: int) -> None:
        self.now += self.seconds[episodes]


@pytest.mark.parametrize(
    ("seconds", "tried"),
    [
        ({1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024}, [1, 2, 4, 8]),
        ({1: 0.010, 2: 0.020, 4: 0.036, 8: 0.07}, [1, 2, 4, 8]),  # hardly a difference is no reason to stop
        ({1: 0.010, 2: 0.012, 4: 0.030}, [1, 2, 4]),  # much slower
        ({1: 0.2, 2: 0.3, 4: 0.5}, [1, 2, 4]),  # no time is left
        ({1: 2 * SECONDS}, []),  # takes too long
    ],
)
def test_numbers_are_tried_as_long_as_that_pays(seconds: dict[int, float], tried: list[int]) -> None:
    clock = Clock(seconds)
    assert measured(clock.rehearse, clock) == pytest.approx({count: seconds[count] for count in tried})
    assert max(tried, default=0) <= MOST
    assert clock.now < 4 * SECONDS


def test_a_disturbance_changes_nothing() -> None:
    clock = Clock({1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024})
    quiet = measured(clock.rehearse, clock)
    calls = 0

    def disturbed(episodes: int) -> None:
        nonlocal calls
        calls += 1
        clock.rehearse(episodes)
        clock.now += 0.02 * (calls % 3 == 0)

    assert measured(disturbed, clock) == pytest.approx(quiet)
