from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import RandomAgent
from tests.evaluation.test_summary import row
from tests.runs import record, write_dataset
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.costs import Hours, StepCost, bar, by_step, format_hours, hours, part_seconds
from vlnbench.evaluation.records import ATTEMPTS, PARTS, Row, read_attempts, read_rows
from vlnbench.interfaces import Action, Agent
from vlnbench.rollout.episode import STEP_PARTS, StepTimes


def timed(number: int, steps: int, **seconds: float) -> Row:
    made = row(number)
    return replace(made, scores={**made.scores, "steps": steps}, seconds=seconds)


def test_a_call_is_divided_among_the_actions_it_decides() -> None:
    times = StepTimes()
    times.add(0.4, 4)  # steps 1 to 4
    for _ in range(6):
        times.add(1.0, 1)  # steps 5 to 10
    times.add(3.0, 3)  # steps 11 to 13, of which two were done
    assert times.by_part(12) == pytest.approx((6.4, 3.0))
    assert times.by_part(10) == pytest.approx((9.4,))
    assert StepTimes().by_part(0) == ()


def test_an_episode_has_the_parts_that_it_reached() -> None:
    times = StepTimes()
    times.add(600.0, 600)
    assert times.by_part(600) == pytest.approx((10, 15, 25, 50, 50, 50, 100, 100, 100, 100))
    assert len(times.by_part(500)) == len(STEP_PARTS) == len(PARTS) - 1
    assert part_seconds((0.25, 0.5)) == {"agent 1-10": 0.25, "agent 11-25": 0.5}
    assert PARTS[0] == "1-10"
    assert PARTS[-1] == "over 500"


def test_milliseconds_by_step_are_means_over_steps() -> None:
    rows = [
        timed(0, 5, **{"agent 1-10": 0.005}),
        timed(1, 20, **{"agent 1-10": 0.030, "agent 11-25": 0.05}),
        row(2),  # of an older version
    ]
    first, second = by_step(table_of(rows))
    assert (first.part, first.episodes, first.steps, first.ms) == ("1-10", 2, 15, pytest.approx(35 / 15))
    assert (first.low, first.high) == pytest.approx((1.2, 2.8))  # of 1 and 3 ms: tenths between them
    assert second == StepCost("11-25", 1, 10, 5.0, 5.0, 5.0)
    assert by_step(table_of([row(2)])) == []


def test_hours_are_sums_of_rows_on_the_hardware_of_the_attempts() -> None:
    rows = [timed(i, 9, wall=3600.0, env=900.0, agent=1800.0) for i in range(2)]
    cpu = {"agents": 1, "simulators": 2, "hardware": {"cpu": "Some CPU", "cores": 4, "gpu": None}}
    gpu = {"agents": 2, "simulators": 8, "hardware": {"cpu": "Some CPU", "cores": 16, "gpu": "Some GPU"}}
    assert hours(table_of(rows), [cpu, cpu]) == Hours(2.0, 1.0, 0.5, 8.0, "CPU-h", "4 cores of Some CPU")
    assert hours(table_of(rows), [gpu]) == Hours(2.0, 1.0, 0.5, 4.0, "GPU-h", "2 x Some GPU, 32 cores of Some CPU")
    assert hours(table_of(rows), [cpu, gpu]).device is None  # which rows are of which is not known
    assert hours(table_of(rows), [cpu, gpu]).hardware == "2 x Some GPU, 32 cores of Some CPU; 4 cores of Some CPU"
    assert format_hours(hours(table_of(rows), [gpu])) == "4 GPU-h, wall 2, agent 1, simulators 0.5"


@pytest.mark.parametrize("attempts", [[], [{"began": "then", "rows": 0}], [{"agents": 1, "hardware": {}}]])
def test_what_is_not_recorded_is_not_invented(attempts: list[dict[str, Any]]) -> None:
    rows = [timed(0, 9, env=900.0, agent=1800.0), timed(1, 9, env=900.0, agent=1800.0, wall=1.0)]
    assert hours(table_of(rows), attempts) == Hours(agent=1.0, simulator=0.5)
    assert hours(table_of([replace(row(0), seconds={})]), attempts) == Hours()
    assert format_hours(Hours()) == ""


def test_bars_grow_to_the_most() -> None:
    assert [len(bar(value, 2.0)) for value in (0.0, 1.0, 2.0)] == [1, 12, 24]
    assert bar(0.0, 0.0) == ""


class Ahead(RandomAgent):
    """Decides on two actions at a time."""

    def ahead(self, slot: int) -> list[Action]:
        return [Action.TURN_LEFT]


@pytest.mark.parametrize("agent", [RandomAgent(), Ahead()])
def test_rows_of_a_run_tell_time_by_step_and_on_the_clock(tmp_path: Path, agent: Agent) -> None:
    record(write_dataset(tmp_path), agent, tmp_path / "run")
    rows = read_rows(tmp_path / "run")
    for each in rows:
        parts = [value for name, value in each.seconds.items() if name.startswith("agent ")]
        assert 0 < sum(parts) <= each.seconds["agent"] + 1e-3
        assert each.seconds["wall"] >= 0
        steps = each.scores["steps"]
        assert isinstance(steps, int)
        assert len(parts) == sum(steps > first for first in (0, *STEP_PARTS))
    assert sum(cost.steps for cost in by_step(table_of(rows))) == sum(
        int(each.scores["steps"] or 0) for each in rows
    )
    found = hours(table_of(rows), read_attempts(tmp_path / "run"))
    assert found.unit == "CPU-h"
    assert found.wall is not None
    (attempt,) = map(json.loads, (tmp_path / "run" / ATTEMPTS).read_text().splitlines())
    assert attempt["agents"] == 1
    assert found.device == pytest.approx(found.wall * attempt["hardware"]["cores"])
