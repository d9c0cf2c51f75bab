"""What agents and environments say becomes plain numbers or an error row; a run that was written can be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.scripted import RandomAgent
from tests.evaluation.test_evaluate import plan
from tests.fakes import PlaneEnv, make_episode
from vlnbench.evaluation.evaluate import evaluate
from vlnbench.evaluation.records import read_rows, read_trajectories
from vlnbench.interfaces import Action, Observation
from vlnbench.rollout.episode import Task
from vlnbench.rollout.executor import EnvSetup, Limits
from vlnbench.rollout.inline import Inline
from vlnbench.rollout.processes import Processes
from vlnbench.rollout.said import counts, number

PLAIN = {"n": 3, "x": 0.5}


class Odd:
    """Converts itself by failing."""

    def __float__(self) -> float:
        raise RuntimeError("no")


GOOD: list[tuple[Any, dict[str, float]]] = [
    ({}, {}),
    (PLAIN, PLAIN),
    ({"n": np.int64(3), "x": np.float32(0.5)}, PLAIN),
    ({"n": torch.tensor(3), "x": torch.tensor(0.5)}, PLAIN),
    ({"n": True}, {"n": 1}),
    ({"n": np.bool_(True)}, {"n": 1}),
    ({"x": Fraction(1, 2)}, {"x": 0.5}),
    ({"n": -(10**15)}, {"n": -(10**15)}),
]
BAD: list[Any] = [
    None,
    [],
    3,
    "n",
    {"n": None},
    {"n": "3"},
    {"n": math.nan},
    {"n": math.inf},
    {"n": 1e16},
    {"n": 10**30},
    {"n": 10**400},
    {"n": 1j},
    {"n": [1]},
    {"n": np.zeros(2)},
    {"n": torch.zeros(2)},
    {"n": Odd()},
    {3: 1},
    {"": 1},
    {"a" * 201: 1},
    {"\x1b[31m": 1},
    {"a\nb": 1},
    {str(i): i for i in range(101)},
]


class Telling(RandomAgent):
    """Reports what it is told to report."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self._told = told

    def report(self, slot: int) -> Mapping[str, float]:
        if isinstance(self._told, Exception):
            raise self._told
        return self._told  # type: ignore[no-any-return]


@pytest.mark.parametrize(("told", "kept"), GOOD, ids=lambda value: str(value)[:30])
def test_numbers_of_all_kinds_are_counts(told: Any, kept: dict[str, float]) -> None:
    found = counts(told)
    assert found == kept
    assert all(type(value) in (int, float) for value in found.values())


@pytest.mark.parametrize("told", [*BAD, KeyError("lost")], ids=lambda value: ascii(value)[:30])
def test_a_report_that_is_none_is_an_error_row(told: Any, tmp_path: Path) -> None:
    evaluate(plan("telling", count=2), Inline(Telling(told), PlaneEnv()), tmp_path)
    rows = read_rows(tmp_path)
    assert [row.status for row in rows] == ["error"] * 2
    assert all("report" in str(row.reason) or "lost" in str(row.reason) for row in rows)
    assert all(len(str(row.reason)) < 500 and str(row.reason).isprintable() for row in rows)


def test_so_it_is_beside_other_simulators() -> None:
    """There the agent is asked after the simulator has ended."""
    tasks = [Task(make_episode(number), 0, number, 9) for number in range(3)]
    with Processes(2, "tests.fakes:PlaneEnv") as processes:
        facts = processes.use(Telling({"n": math.nan}))
        processes.set_up(EnvSetup("tests.fakes:PlaneEnv", (), facts.sensors))
        outcomes = list(processes.run(tasks, Limits(2)))
    assert [outcome.status for outcome in outcomes] == ["error"] * 3
    assert "the agent's report: n nan: expected a finite number" in str(outcomes[0].reason)


class OddEnv(PlaneEnv):
    """Says what it is told to say from the third step on."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    def geodesic_distance(self, position: Any, goals: Any) -> Any:
        return self._changes.get("distance", super().geodesic_distance(position, goals))

    def step(self, action: Action) -> Observation:
        seen = super().step(action)
        assert seen.pose is not None
        if self.count < 3 or "pose" in self._changes:
            return seen if self.count < 3 else replace(seen, pose=self._changes["pose"])
        changes = {key: value for key, value in self._changes.items() if key != "distance"}
        return replace(seen, pose=replace(seen.pose, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"pose": None},
        {"position": (math.nan, 0.0, 0.0)},
        {"position": (math.inf, 0.0, 0.0)},
        {"position": (0.0, 1e30, 0.0)},
        {"position": (0.0, 0.0)},
        {"position": None},
        {"position": ("0", "0", "0")},
        {"rotation": (0.0, math.nan, 0.0, 1.0)},
        {"rotation": (0.0, 0.0, 1.0)},
        {"distance": math.nan},
        {"distance": -1.0},
        {"distance": None},
        {"distance": "5"},
    ],
    ids=str,
)
def test_what_an_environment_cannot_mean_is_an_error_row(changes: dict[str, Any], tmp_path: Path) -> None:
    evaluate(plan("random", count=2), Inline(RandomAgent(), OddEnv(**changes)), tmp_path)
    rows = read_rows(tmp_path)
    assert [row.status for row in rows] == ["error"] * 2
    assert all("environment" in str(row.reason) for row in rows)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.array, torch.tensor], ids=lambda kind: kind.__name__)
def test_poses_of_other_numbers_are_written_as_they_are(kind: Any, tmp_path: Path) -> None:
    at = (0.25, 0.0, -0.5)
    env = OddEnv(position=tuple(map(kind, at)) if kind is not np.array else np.array(at), distance=kind(2.0))
    evaluate(plan("random", count=1), Inline(RandomAgent(), env), tmp_path)
    (row,) = read_rows(tmp_path)
    assert row.status != "error", row.reason
    (trajectory,) = read_trajectories(tmp_path).values()
    assert trajectory.poses[-1].position == at
    assert trajectory.goal_distances[-1] == 2.0


def test_a_number_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="the agent's report: tokens nan: expected a finite number of at most"):
        number(math.nan, "the agent's report: tokens")
