"""Peaks of the right card, by phase, of the process and of all, on machines that are pretended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from agents.scripted import RandomAgent
from tests.cuda.pretended import pretended
from tests.rollout.test_engine import plan
from vlnbench.evaluation.evaluate import evaluate
from vlnbench.evaluation.records import read_attempts
from vlnbench.evaluation.tally import Tally
from vlnbench.interfaces import Action, Observation
from vlnbench.matrix.rows import _peaks_by_phase
from vlnbench.rollout.agent_options import AgentOptions
from vlnbench.rollout.executor import EnvSetup, Timings
from vlnbench.rollout.processes import Processes
from vlnbench.util import measure

GB = 10**9
CARDS = ("11aa", "22bb")
"""Their uuids."""


class Card:
    """What PyTorch's allocator has of one card, in bytes."""

    def __init__(self, uuid: str, number: int) -> None:
        self.now = self.most = self.reserved = 0
        self.properties = SimpleNamespace(name=f"Card {number}", total_memory=80 * GB, uuid=uuid)

    def take(self, count: int) -> None:
        self.now += count
        self.most, self.reserved = max(self.most, self.now), max(self.reserved, self.now + GB)

    def begin(self) -> None:
        self.most = self.reserved = self.now


class Driver:
    """NVML with two cards, the second of which may be split. `own`: whether it knows processes by our numbers."""

    class NVMLError(Exception):
        pass

    def __init__(self, known: Mapping[str, int], own: int | None) -> None:
        self.known, self.own = known, own
        self.asked: list[str] = []

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        if name not in self.known:
            raise self.NVMLError("Not Found")
        self.asked.append(name)
        return name

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=measure.os.getpid() if self.own else -1, usedGpuMemory=self.own)]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=self.known[handle])


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Card]]:
    found = [Card(uuid, number) for number, uuid in enumerate(CARDS)]
    answers = {
        "get_device_properties": lambda n: found[n].properties,
        "max_memory_allocated": lambda n: found[n].most,
        "max_memory_reserved": lambda n: found[n].reserved,
        "reset_peak_memory_stats": lambda n: found[n].begin(),
        "memory_stats": lambda n: {"num_alloc_retries": n, "num_ooms": 0},
        "device_count": lambda: 2,
    }
    with pretended():
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        yield found


@contextmanager
def driver(
    monkeypatch: pytest.MonkeyPatch, known: Mapping[str, int], own: int | None = 21 * GB
) -> Iterator[Driver]:
    there = Driver(known, own)
    monkeypatch.setattr(measure, "_nvml", lambda: there)
    yield there


def test_peaks_are_those_of_the_card_that_is_used(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    with driver(monkeypatch, {"GPU-11aa": GB, "GPU-22bb": 30 * GB}) as nvml:
        watch = measure.start(1)
        cards[0].take(3 * GB)
        cards[1].take(20 * GB)
        peaks = watch.peaks()
        watch.stop()
    assert nvml.asked == ["GPU-22bb"]
    assert (peaks.gpu, peaks.allocated, peaks.reserved) == ("Card 1", 20 * GB, 21 * GB)
    assert (peaks.device, peaks.card, peaks.alloc_retries) == (21 * GB, 30 * GB, 0)


@pytest.mark.parametrize(
    ("visible", "known", "asked"),
    [
        ("GPU-22", ("GPU-11aa", "GPU-22bb"), "GPU-11aa"),  # abbreviated; PyTorch knows the whole name
        ("MIG-5c", ("GPU-11aa", "MIG-5c"), "MIG-5c"),
        ("3", ("MIG-11aa",), "MIG-11aa"),
        ("3", (), None),
    ],
)
def test_a_card_is_found_whatever_it_is_called(
    visible: str, known: tuple[str, ...], asked: str | None, cards: list[Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with driver(monkeypatch, dict.fromkeys(known, GB)) as nvml:
        watch = measure.start()
        peaks = watch.peaks()
        watch.stop()
    assert nvml.asked == [asked] * (asked is not None)
    assert (peaks.card is None) == (asked is None)


def test_in_a_container_the_whole_card_is_known_and_not_the_process(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    with driver(monkeypatch, {"GPU-11aa": 40 * GB}, own=None):
        watch = measure.start()
        peaks = watch.peaks()
        watch.stop()
    assert (peaks.device, peaks.card) == (None, 40 * GB)


def test_phases_have_peaks_of_their_own_and_the_whole_has_the_highest(cards: list[Card]) -> None:
    watch = measure.start()
    watch.begin("load")
    cards[0].take(30 * GB)
    cards[0].take(-14 * GB)
    watch.begin("engine")
    cards[0].take(4 * GB)
    watch.begin("steps")
    with watch.phase("rollout"):
        cards[0].take(9 * GB)
        cards[0].take(-9 * GB)
    cards[0].take(5 * GB)
    peaks = watch.peaks()
    expected = {"load": 30 * GB, "engine": 20 * GB, "steps": 25 * GB, "rollout": 29 * GB}
    assert peaks.phases == expected
    assert (peaks.allocated, peaks.reserved) == (30 * GB, 31 * GB)
    assert _peaks_by_phase([asdict(peaks), {"phases": {"steps": 26 * GB, "evaluation": 1}}, {}]) == {
        **expected,
        "steps": 26 * GB,
        "evaluation": 1,
    }


class Large(RandomAgent):
    """Takes memory when it is made, and when it acts."""

    taken: ClassVar[list[Card]] = []

    def __init__(self) -> None:
        super().__init__()
        self.taken[0].take(8 * GB)

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        self.taken[0].take(2 * GB)
        self.taken[0].take(-2 * GB)
        return super().act(observations)


def test_an_evaluation_records_what_its_agent_took_from_the_beginning(cards: list[Card], tmp_path: Path) -> None:
    Large.taken = cards
    with Processes(1) as processes:
        facts = processes.load(f"{__name__}:Large", AgentOptions())
        processes.set_up(EnvSetup("tests.faulty:FaultyEnv", (), facts.sensors))
        evaluate(plan(f"{__name__}:Large"), processes, tmp_path)
    (attempt,) = read_attempts(tmp_path)
    (memory,) = attempt["memory"]
    assert memory["phases"] == {"load": 8 * GB, "evaluation": 10 * GB}
    assert (memory["gpu"], memory["allocated"]) == ("Card 0", 10 * GB)


def test_every_replica_counts_also_one_that_is_started_anew() -> None:
    timings = Timings(2, 4)
    first = {"allocated": 5 * GB, "device": None, "host": 1, "gpu": "a", "phases": {"load": 4 * GB}}
    timings.take_in(0, None)
    timings.take_in(1, first)
    timings.take_in(1, {**first, "allocated": GB, "device": 7, "host": 3, "phases": {"evaluation": 2}})
    assert timings.memory == {
        1: {**first, "device": 7, "host": 3, "phases": {"load": 4 * GB, "evaluation": 2}},
    }
    sent = Tally([])
    sent._new = 1
    values = sent.values([{"allocated": 1, "host": 5}, {"allocated": 4, "host": 2, "reserved": None}])
    assert {name: value for name, value in values.items() if name.startswith("memory")} == {
        "memory/allocated": 4.0,
        "memory/host": 5.0,
    }
