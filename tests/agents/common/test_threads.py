from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agents.common import threads
from agents.common.threads import SHARE, Threads
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


def act(chosen: Threads, machine: Machine, seconds: float) -> None:
    with chosen.acting():
        machine.now += seconds


def test_chosen_at_the_beginning_and_again_when_the_machine_is_busy() -> None:
    machine = Machine()
    chosen = Threads(CPU, machine.work, machine.clock)
    cost = machine.now
    assert torch.get_num_threads() == 2
    assert chosen.description == ["PyTorch's threads: 2 (fastest of 1 to 2)"]
    machine.times = {2: 0.8, 1: 0.05}
    act(chosen, machine, SHARE * cost - 0.1)
    assert (torch.get_num_threads(), chosen.remarks) == (2, [])
    act(chosen, machine, 0.2)
    assert torch.get_num_threads() == 1
    assert chosen.remarks == ["PyTorch's threads changed while the agent acted: 1 to 2"]
    assert chosen.description == ["PyTorch's threads: 2 (fastest of 1 to 2)"]
    machine.times = {2: 0.02, 1: 0.04}
    act(chosen, machine, SHARE * 10.0)
    assert torch.get_num_threads() == 2
    chosen.close()
    before = machine.now
    act(chosen, machine, 1e6)
    assert machine.now == before + 1e6


@pytest.mark.parametrize("name", EXPLICIT)
def test_a_number_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "2")
    machine = Machine()
    machine.times = {2: 9.0, 1: 0.01}
    chosen = Threads(CPU, machine.work, machine.clock)
    act(chosen, machine, 1e6)
    assert (torch.get_num_threads(), machine.now) == (2, 1e6)
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
