from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agents.common import threads
from agents.common.threads import REPEATS, SHARE, Threads
from vlnbench.util.threads import EXPLICIT

CPU = torch.device("cpu")


class Machine:
    """Time passes with work: `times[threads]` seconds each."""

    def __init__(self) -> None:
        self.times = {2: 0.02, 1: 0.04}
        self.now = 0.0

    def work(self) -> None:
        self.now += self.times[torch.get_num_threads()]

    def clock(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in EXPLICIT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def act(chosen: Threads, machine: Machine, calls: int, parts: int = 1) -> list[int]:
    """Calls of the model; returns the number of threads of each."""
    used = []
    for _ in range(calls):
        with chosen.acting(parts):
            used.append(torch.get_num_threads())
            for _ in range(parts):
                machine.work()
    return used


def test_what_counts_are_the_calls_beside_simulators() -> None:
    machine = Machine()
    chosen = Threads(CPU, machine.work, machine.clock)
    assert torch.get_num_threads() == 2
    assert (chosen.description, chosen.remarks) == (["PyTorch's threads: 2 (fastest of 1 to 2)"], [])
    machine.times = {2: 0.8, 1: 0.05}
    assert act(chosen, machine, 40) == [1, 2] + [1] * 38  # one call with two threads is enough
    assert chosen.remarks == ["PyTorch's threads changed while the agent acted: 1 to 2"]
    assert chosen.description == ["PyTorch's threads: 2 (fastest of 1 to 2)"]


def test_they_are_compared_again_at_a_small_part_of_the_time() -> None:
    machine = Machine()
    machine.times = {2: 0.8, 1: 0.05}
    chosen = Threads(CPU, machine.work, machine.clock)
    used = act(chosen, machine, 5000)
    slow = used.count(2)
    assert slow >= 2
    assert slow * 0.8 <= machine.now / SHARE + 2 * 0.8
    machine.times = {2: 0.02, 1: 0.04}
    assert act(chosen, machine, 3000)[-1] == 2


def test_calls_of_unequal_work_are_compared_by_their_parts() -> None:
    machine = Machine()
    chosen = Threads(CPU, machine.work, machine.clock)
    for _ in range(REPEATS):
        act(chosen, machine, 1)
        act(chosen, machine, 1, parts=9)  # with two threads
    assert act(chosen, machine, 20) == [2] * 20


def test_a_call_that_fails_is_not_counted() -> None:
    machine = Machine()
    chosen = Threads(CPU, machine.work, machine.clock)
    with pytest.raises(ValueError, match="broken"), chosen.acting(1):
        raise ValueError("broken")
    assert act(chosen, machine, 2 * REPEATS + 20)[-1] == 2


def test_a_closed_agent_leaves_the_threads_as_they_were() -> None:
    machine = Machine()
    machine.times = {2: 0.8, 1: 0.05}
    chosen = Threads(CPU, machine.work, machine.clock)
    assert torch.get_num_threads() == 1
    chosen.close()
    assert torch.get_num_threads() == 2
    assert act(chosen, machine, 3) == [2, 2, 2]


@pytest.mark.parametrize("name", EXPLICIT)
def test_a_number_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "2")
    machine = Machine()
    machine.times = {2: 9.0, 1: 0.01}
    chosen = Threads(CPU, machine.work, machine.clock)
    assert machine.now == 0.0
    assert act(chosen, machine, 30) == [2] * 30
    assert chosen.description == [f"PyTorch's threads: 2 (by {name})"]
    assert chosen.remarks == []


def test_nothing_is_measured_without_a_rehearsal_or_on_another_device() -> None:
    machine = Machine()
    assert Threads(CPU, None, machine.clock).description == ["PyTorch's threads: 2 (as it was)"]
    assert Threads(torch.device("cuda", 0), machine.work, machine.clock).description == []
    assert (torch.get_num_threads(), machine.now) == (2, 0.0)


def test_no_more_threads_than_the_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 1)
    machine = Machine()
    chosen = Threads(CPU, machine.work, machine.clock)
    assert (torch.get_num_threads(), machine.now) == (1, 0.0)
    chosen.close()
    assert torch.get_num_threads() == 2
