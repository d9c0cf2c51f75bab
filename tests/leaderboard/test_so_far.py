"""Two runs that are going on, compared as far as they have come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.scripted import GroundTruthReplayAgent, StopAgent
from tests.fakes import PlaneEnv, make_episode
from tests.runs import write_dataset
from vlnbench.cli import main
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import Execution, evaluate, make_plan
from vlnbench.evaluation.records import ROWS, read_rows
from vlnbench.evaluation.until.decide import in_random_order
from vlnbench.evaluation.until.rule import Rule
from vlnbench.interfaces import Agent
from vlnbench.leaderboard.compare import compare_runs
from vlnbench.leaderboard.so_far import SoFar, so_far_sheet
from vlnbench.rollout.inline import Inline
from vlnbench.util.tables.sheet import written

N = 120
UNTIL = Execution(until=Rule("SR", 10.0))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_dataset(root, episodes=[make_episode(i, scene="abcd"[i % 4], distance=3.5) for i in range(N)])
    return root


def walk(data: Path, agent: Agent, name: str, folder: Path, execution: Execution | None = None) -> Path:
    benchmark = get_benchmark("houses-r2r")
    split = load_split(benchmark, "val_unseen", data, allow_partial=True)
    plan = make_plan(benchmark, split, name, count=None, seed=0, repeats=1)
    evaluate(plan, Inline(agent, PlaneEnv()), folder, execution=execution)
    return folder


def so_far(a: Path, b: Path, data: Path) -> SoFar:
    found = compare_runs(a, b, data)
    assert isinstance(found, SoFar)
    return found


def test_a_difference_is_decided_before_the_runs_are_whole(data: Path, tmp_path: Path) -> None:
    stop = walk(data, StopAgent(), "stop", tmp_path / "stop", UNTIL)
    oracle = walk(data, GroundTruthReplayAgent(), "gt", tmp_path / "gt", UNTIL)
    n = len(read_rows(stop))
    found = so_far(stop, oracle, data)
    assert (found.done, found.pairs, found.planned) == ((n, n, n), n, N)
    known = found.metrics["SR"]
    assert (known.a, known.b, known.high, known.decided, known.more) == (0.0, 1.0, pytest.approx(1.0), True, None)
    assert known.low > 0.0
    assert known.low >= 2 * n / N - 1  # whatever is left to come
    back = so_far(oracle, stop, data).metrics["SR"]
    assert (back.low, back.high) == pytest.approx((-known.high, -known.low))
    text = written(so_far_sheet(found), "text")
    assert f"PARTIAL: {n} of {N} pairs" in text
    assert "B is better" in text
    assert "NE" not in found.metrics  # nothing bounds it


def test_runs_that_are_alike_are_not_decided_and_say_what_it_takes(data: Path, tmp_path: Path) -> None:
    runs = [walk(data, StopAgent(), name, tmp_path / name, UNTIL) for name in "ab"]
    same = so_far(runs[0], runs[1], data)
    assert (same.metrics["SR"].decided, same.metrics["SR"].more) == (False, None)  # no pair differs
    n = same.pairs
    for period, folder in enumerate(runs, start=1):
        rows = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
        for i, row in enumerate(rows):
            row["scores"]["success"] = float(i // period % 2)
        (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = so_far(runs[0], runs[1], data).metrics["SR"]
    assert known.decided is False
    assert known.more is not None
    assert 0 < known.more[0] <= known.more[1] <= known.more[2] <= N - n
    assert "no" in written(so_far_sheet(so_far(runs[0], runs[1], data)), "text").split()


def test_only_pairs_before_the_first_gap_count(data: Path, tmp_path: Path) -> None:
    whole = walk(data, GroundTruthReplayAgent(), "gt", tmp_path / "whole")
    part = walk(data, StopAgent(), "stop", tmp_path / "part")
    rows = read_rows(part)
    missing = in_random_order(row.episode_id for row in rows)[30]
    lines = (part / ROWS).read_text().splitlines(keepends=True)
    (part / ROWS).write_text("".join(line for line in lines if json.loads(line)["episode_id"] != missing))
    found = so_far(whole, part, data / "nowhere")  # one of them is whole: nothing has to be read
    assert (found.done, found.pairs) == ((N, N - 1, N - 1), 30)
    assert f"{N - 31} more episodes of both do not count" in written(so_far_sheet(found), "text")


def test_runs_that_went_scene_by_scene_say_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, agent in (("a", StopAgent()), ("b", GroundTruthReplayAgent())):
        lines = (walk(data, agent, name, tmp_path / name) / ROWS).read_text().splitlines(keepends=True)
        (tmp_path / name / ROWS).write_text("".join(lines[:30]))
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--data-root", str(data)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "A: a, " in text
    assert "30 of 120 done" in text
    assert "`eval --until 'SR vs RUN'` takes episodes in that order" in text
    assert "fewer than 10 pairs say nothing yet" in text
    assert main([*arguments, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["partial"], told["planned"], told["done"]["both"]) == (True, N, 30)
    assert main([*arguments[:3], "--data-root", str(tmp_path)]) == 2
    assert "val_unseen" in capsys.readouterr().err


def test_repeats_count_once_all_are_there(data: Path, tmp_path: Path) -> None:
    benchmark = get_benchmark("houses-r2r")
    split = load_split(benchmark, "val_unseen", data, allow_partial=True)
    for name, agent in (("a", StopAgent()), ("b", GroundTruthReplayAgent())):
        plan = make_plan(benchmark, split, name, count=40, seed=0, repeats=2)
        evaluate(plan, Inline(agent, PlaneEnv()), tmp_path / name)
    lines = (tmp_path / "b" / ROWS).read_text().splitlines(keepends=True)
    first = in_random_order({json.loads(line)["episode_id"] for line in lines})[0]
    left = [line for line in lines if (json.loads(line)["episode_id"], json.loads(line)["repeat"]) != (first, 1)]
    (tmp_path / "b" / ROWS).write_text("".join(left))
    found = so_far(tmp_path / "a", tmp_path / "b", data)
    assert (found.done, found.pairs, found.planned, found.metrics) == ((40, 39, 39), 0, 40, {})


def test_a_split_without_public_goals_is_refused(data: Path, tmp_path: Path) -> None:
    a = walk(data, StopAgent(), "a", tmp_path / "a", UNTIL)
    rows = [
        {**json.loads(line), "status": "unscored", "scores": {}} for line in (a / ROWS).read_text().splitlines()
    ]
    (a / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match="no public goals"):
        compare_runs(a, a, data)
