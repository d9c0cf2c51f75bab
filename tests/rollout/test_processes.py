"""Simulators in processes: how many there are, and in which size frames arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from agents.scripted import RandomAgent
from tests.fakes import make_episode
from vlnbench.interfaces import Action, Observation
from vlnbench.rollout.episode import Task
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.processes import Processes, best_batch, best_count, count_on_gpu

PICTURES, PLANE = "tests.faulty:PictureEnv", "tests.fakes:PlaneEnv"


class Small(RandomAgent):
    """Looks at frames of 3 x 4 pixels, and keeps their shapes."""

    sensors = frozenset({"rgb"})
    rgb_size = (3, 4)
    shapes: ClassVar[set[tuple[int, ...]]] = set()

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        self.shapes |= {seen.rgb.shape for seen in observations.values() if seen.rgb is not None}
        return super().act(observations)


@pytest.mark.parametrize(
    ("factory", "shape"), [(PICTURES, (6, 8, 3)), ("tests.faulty:ShrinkingEnv", (3, 4, 3))], ids=["whole", "small"]
)
def test_frames_are_shrunk_where_agent_and_environment_agree(factory: str, shape: tuple[int, ...]) -> None:
    Small.shapes.clear()
    tasks = [Task(make_episode(number), 0, number, 500) for number in range(3)]
    with Processes(2, factory) as processes:
        facts = processes.use(Small())
        processes.set_up(EnvSetup(factory, (), facts.sensors))
        outcomes = list(processes.run(tasks, Limits(2)))
    assert [outcome.reason for outcome in outcomes] == [None] * 3
    assert Small.shapes == {shape}


PACES = {1: 0.010, 2: 0.014, 4: 0.020, 8: 0.039}


def test_batches_and_simulators_follow_the_pace_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlnbench.rollout.processes.cores", lambda: 2)
    assert (best_batch({}), best_count({}, 8)) == (8, 2)
    assert (best_batch(PACES), best_count(PACES, 4)) == (4, 6)  # eight at once are hardly faster than four
    assert (best_batch({1: 0.01, 2: 0.02}), best_count({1: 0.01}, 1)) == (1, 2)


def test_a_gpu_has_a_batch_of_simulators_and_some_that_step_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeping(RandomAgent):
        episode_bytes = 10**10

    monkeypatch.setattr("vlnbench.rollout.processes.cores", lambda: 16)
    assert [count_on_gpu(RandomAgent(), batch, 80 * 10**9) for batch in (1, 8, 16)] == [4, 12, 16]
    assert [count_on_gpu(Keeping(), 8, free * 10**9) for free in (5, 30, 80, 1000)] == [1, 2, 6, 12]
    monkeypatch.setattr("vlnbench.rollout.processes.free_bytes", lambda gpu: 80 * 10**9)
    with Processes(None, PLANE, max_batch=4) as few, Processes(7, PLANE, max_batch=4) as given:
        for executor, count in ((few, 6), (given, 7)):
            executor.use(Keeping())
            assert executor.timings().n_simulators == count


def test_what_is_chosen_is_said_and_given_numbers_stay() -> None:
    class Timed(RandomAgent):
        batch_seconds = PACES

    with Processes(None, PLANE, most=5) as chosen, Processes(3, PLANE) as given:
        facts = chosen.use(Timed())
        assert "5 simulators, up to 4 episodes at once" in facts.description
        assert chosen.timings().n_simulators == 5
        assert "3 simulators" in given.use(Timed()).description
        assert given.use(RandomAgent()).description == ""
