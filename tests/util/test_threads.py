from __future__ import annotations

import os

import pytest

from vlnbench.util.machine import CORES, cores
from vlnbench.util.threads import EXPLICIT, candidates, chosen, explicit, fastest


class Machine:
    """Work that takes as many seconds as `times` says for the number of threads in use; time passes with work."""

    def __init__(self, times: dict[int, float]) -> None:
        self.times, self.now, self.threads = times, 0.0, max(times)
        self.ran: list[int] = []

    def use(self, count: int) -> None:
        self.threads = count

    def work(self) -> None:
        self.ran.append(self.threads)
        self.now += self.times[self.threads]

    def fastest(self, most: int) -> int:
        return fastest(self.work, self.use, most, lambda: self.now)


def test_half_as_many_are_tried_each_time() -> None:
    assert [candidates(most) for most in (1, 2, 6, 16)] == [[1], [2, 1], [6, 3, 1], [16, 8, 4, 2, 1]]


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({2: 0.3, 1: 0.005}, 1),  # a busy machine
        ({2: 0.0047, 1: 0.005}, 1),  # no clear gain
        ({2: 0.003, 1: 0.005}, 2),
        ({8: 0.9, 4: 0.02, 2: 0.011, 1: 0.021}, 2),
    ],
)
def test_the_fewest_threads_that_are_not_clearly_slower(times: dict[int, float], best: int) -> None:
    machine = Machine(times)
    assert machine.fastest(max(times)) == best == machine.threads
    assert chosen(times) == best


def test_a_large_model_is_not_tried_with_few_threads() -> None:
    machine = Machine({16: 2.0, 8: 3.9, 4: 7.8, 2: 15.0, 1: 30.0})
    assert machine.fastest(16) == 16
    assert machine.ran == [1, 16, 8]


def test_a_small_model_is_tried_once_with_threads_that_wait_for_each_other() -> None:
    machine = Machine({8: 90.0, 4: 30.0, 2: 9.0, 1: 0.02})
    assert machine.fastest(8) == 1
    assert machine.ran.count(2) == 1
    assert set(machine.ran) == {1, 2}


def test_what_disturbs_a_few_times_does_not_count() -> None:
    machine = Machine({2: 0.003, 1: 0.005})
    plain, count = machine.work, 0

    def disturbed() -> None:
        nonlocal count
        count += 1
        plain()
        machine.now += 0.02 if count % 3 == 0 else 0.0

    assert fastest(disturbed, machine.use, 2, lambda: machine.now) == 2


def test_the_variable_by_which_the_user_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXPLICIT:
        monkeypatch.delenv(name, raising=False)
    assert explicit() is None
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert explicit() == "OMP_NUM_THREADS"


def test_a_process_may_have_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CORES, raising=False)
    there = len(os.sched_getaffinity(0))
    assert cores() == there
    for text, count in (("1", 1), ("100000", there), ("0", there), ("many", there)):
        monkeypatch.setenv(CORES, text)
        assert cores() == count
