from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agents.scripted import GroundTruthReplayAgent, RandomAgent, StopAgent
from tests.fakes import PlaneEnv, make_episode
from tests.runs import write_dataset
from vlnbench.cli import main
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import Execution, Plan, evaluate, make_plan
from vlnbench.evaluation.records import ATTEMPTS, read_rows
from vlnbench.evaluation.stats import estimate
from vlnbench.evaluation.summary import format_summary
from vlnbench.evaluation.until.decide import in_random_order, judge, rounds
from vlnbench.evaluation.until.rule import Rule, parse_until
from vlnbench.evaluation.until.sequence import ConfidenceSequence
from vlnbench.interfaces import Agent
from vlnbench.rollout.inline import Inline

N = 120


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    root = tmp_path_factory.mktemp("data")
    write_dataset(root, episodes=[make_episode(i, scene="abcd"[i % 4], distance=3.5) for i in range(N)])
    benchmark = get_benchmark("houses-r2r")
    split = load_split(benchmark, "val_unseen", root, allow_partial=True)
    return make_plan(benchmark, split, "agent", count=None, seed=0, repeats=1)


def run(plan: Plan, agent: Agent, folder: Path, until: str = "") -> int:
    execution = Execution(until=parse_until(until))
    evaluate(plan, Inline(agent, PlaneEnv()), folder, execution=execution)
    return len(read_rows(folder))


def outcomes(values: list[float], size: int) -> tuple[float, float]:
    sequence = ConfidenceSequence(size, size)
    for value in values:
        sequence.add(value)
    return sequence.interval()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", None),
        ("SR ± 2", Rule("SR", 2.0)),
        (" SPL +- 2.5 %", Rule("SPL", 2.5)),
        ("nDTW+/-1", Rule("nDTW", 1.0)),
        ("SR vs runs/a b", Rule("SR", against=Path("runs/a b"))),
    ],
)
def test_rules_are_read(text: str, rule: Rule | None) -> None:
    assert parse_until(text) == rule


@pytest.mark.parametrize("text", ["SR", "SR ± 0", "SR ± -1", "SR ± 100", "NE ± 1", "SR vs", "success ± 2"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected 'SR ± 2'"):
        parse_until(text)


def test_the_interval_begins_whole_and_ends_as_a_point() -> None:
    assert outcomes([], 10) == (0.0, 1.0)
    assert outcomes([1.0] * 3 + [0.0] * 7, 10) == pytest.approx((0.3, 0.3))
    low, high = outcomes([1.0] * 9, 10)
    assert (low, high) == pytest.approx((0.9, 1.0))  # one is left, and it may be either


def test_values_that_are_none_are_refused() -> None:
    sequence = ConfidenceSequence(1)
    with pytest.raises(ValueError, match="from 0 to 1"):
        sequence.add(1.5)
    sequence.add(0.5)
    with pytest.raises(ValueError, match="expected 1 values"):
        sequence.add(0.5)
    assert sequence.interval() == (0.5, 0.5)


def test_fractions_lie_between_points_of_the_grid() -> None:
    sequence = ConfidenceSequence(2)
    sequence.add(0.12345)
    sequence.add(0.12345)
    low, high = sequence.interval()
    assert low <= 0.12345 <= high
    assert high - low <= 2e-3


def test_rounds_hold_every_episode_once_in_the_order_of_subsets() -> None:
    ids = [str(i) for i in range(1000)]
    parts = rounds(ids)
    assert [len(part) for part in parts] == [50] * 20
    assert [name for part in parts for name in part] == in_random_order(ids)
    assert sorted(in_random_order(ids)[:100], key=int) != ids[:100]
    assert [len(part) for part in rounds(ids[:30])] == [20, 10]


def test_a_run_stops_when_enough_is_known_and_goes_on_without(plan: Plan, tmp_path: Path) -> None:
    done = run(plan, GroundTruthReplayAgent(), tmp_path / "run", "SR ± 10")
    assert done % 20 == 0
    assert done < N
    ids = [episode.episode_id for episode in plan.episodes]
    rows = read_rows(tmp_path / "run")
    assert {row.episode_id for row in rows} == set(in_random_order(ids)[:done])
    verdict = judge(Rule("SR", 10.0), ids, 1, rows)
    assert (verdict.decided, verdict.count, verdict.high) == (True, done, 100.0)
    assert 80.0 <= verdict.low < 100.0
    attempts = (tmp_path / "run" / ATTEMPTS).read_text()
    assert run(plan, GroundTruthReplayAgent(), tmp_path / "run", "SR ± 10") == done
    assert (tmp_path / "run" / ATTEMPTS).read_text() == attempts
    assert run(plan, GroundTruthReplayAgent(), tmp_path / "run", "SR ± 5") > done
    assert run(plan, GroundTruthReplayAgent(), tmp_path / "run") == N


def test_a_run_that_has_stopped_is_partial(plan: Plan, tmp_path: Path) -> None:
    execution = Execution(until=Rule("SR", 10.0))
    summary = evaluate(plan, Inline(StopAgent(), PlaneEnv()), tmp_path / "run", execution=execution)
    assert not summary.complete
    assert f"PARTIAL: {summary.n_done} of {N} planned episodes done" in format_summary(summary)


def test_an_interrupted_run_stops_where_one_that_was_not_does(plan: Plan, tmp_path: Path) -> None:
    whole = run(plan, RandomAgent(), tmp_path / "whole", "SR ± 12")

    def interrupt(row: object, done: int, total: int) -> None:
        if done == 33:
            raise KeyboardInterrupt

    execution = Execution(until=Rule("SR", 12.0))
    with pytest.raises(KeyboardInterrupt):
        evaluate(plan, Inline(RandomAgent(), PlaneEnv()), tmp_path / "cut", interrupt, execution)
    assert run(plan, RandomAgent(), tmp_path / "cut", "SR ± 12") == whole
    ends = ({(row.episode_id, row.scores["success"]) for row in read_rows(tmp_path / x)} for x in ("whole", "cut"))
    assert next(ends) == next(ends)


def test_only_a_prefix_of_the_random_order_counts(plan: Plan, tmp_path: Path) -> None:
    run(plan, GroundTruthReplayAgent(), tmp_path / "run")
    ids = [episode.episode_id for episode in plan.episodes]
    missing = in_random_order(ids)[7]
    rows = [row for row in read_rows(tmp_path / "run") if row.episode_id != missing]
    assert judge(Rule("SR", 2.0), ids, 1, rows).count == 7


def test_a_run_stops_when_it_differs_from_another(plan: Plan, tmp_path: Path) -> None:
    run(plan, StopAgent(), tmp_path / "stop")
    done = run(plan, GroundTruthReplayAgent(), tmp_path / "run", f"SR vs {tmp_path / 'stop'}")
    assert done == 20
    ids = [episode.episode_id for episode in plan.episodes]
    rule = Rule("SR", against=tmp_path / "stop")
    verdict = judge(rule, ids, 1, read_rows(tmp_path / "run"), read_rows(tmp_path / "stop"))
    assert verdict.low > 0.0
    assert "SR minus that of" in str(verdict)
    same = run(plan, StopAgent(), tmp_path / "same", f"SR vs {tmp_path / 'stop'}")
    assert same == N  # what does not differ is never decided


def test_a_run_that_cannot_be_compared_is_refused_before_anything_is_written(plan: Plan, tmp_path: Path) -> None:
    run(plan, StopAgent(), tmp_path / "few", "SR ± 20")
    manifest = tmp_path / "few" / "manifest.json"
    changed = json.loads(manifest.read_text())
    changed["identity"]["simulator"] = "another"
    manifest.write_text(json.dumps(changed))
    with pytest.raises(UsageError, match="cannot be compared with this run: simulator 'another' / 'plane-1'"):
        run(plan, StopAgent(), tmp_path / "run", f"SR vs {tmp_path / 'few'}")
    assert not (tmp_path / "run").exists()


def population(rng: np.random.Generator, scenes: int, size: int, spread: float, rate: float) -> np.ndarray:
    """Successes of `scenes` times `size` episodes, scene after scene; spread: intra-class correlation."""
    a, b = rate * (1 - spread) / spread, (1 - rate) * (1 - spread) / spread
    return np.concatenate([rng.random(size) < p for p in rng.beta(a, b, scenes)]).astype(float)


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "rate"), [(0.05, 0.4), (0.5, 0.4), (0.3, 0.06)])
def test_the_truth_is_never_left_out_in_95_of_100_runs(spread: float, rate: float) -> None:
    """However much episodes of a scene are alike, over all of its looks.

    A t interval that is looked at as often leaves the truth out more often, and so does the sequence itself where
    episodes come scene by scene.
    """
    rng, runs = np.random.default_rng(5), 80
    missed = {"sequence": 0, "t interval": 0, "scene by scene": 0}
    for _ in range(runs):
        values = population(rng, 20, 15, spread, rate)
        order = rng.permutation(len(values))
        truth = values.mean()
        for name, drawn in (("sequence", values[order]), ("scene by scene", values)):
            sequence = ConfidenceSequence(len(values), len(values))
            out = False
            for i, value in enumerate(drawn):
                sequence.add(value)
                if i % 10 == 9:
                    low, high = sequence.interval()
                    out |= not low - 1e-9 <= truth <= high + 1e-9
            missed[name] += out
        looks = [estimate(list(values[order][:n]), list(order[:n]), "rate") for n in range(20, 300, 10)]
        missed["t interval"] += any(not x.low <= truth <= x.high for x in looks)
    assert missed["sequence"] / runs <= 0.05
    assert missed["scene by scene"] > missed["sequence"]
    if spread >= 0.3:
        assert missed["scene by scene"] / runs > 0.15
    if rate == 0.4:
        assert missed["t interval"] / runs > 0.05


@pytest.mark.slow
def test_the_command_stops_and_says_what_it_knows(
    houses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "--agent", "blind", "--data-root", str(houses), "--envs", "1", "--allow-partial"]
    assert main([*command, "--out", str(tmp_path / "run"), "--until", "SR +- 50"]) == 0
    out = capsys.readouterr().out
    assert "--until 'SR ± 50': decided after" in out
    assert "points (95 %, whenever one stops)" in out


@pytest.mark.slow
def test_how_many_episodes_it_takes() -> None:
    """The medians of five simulated runs in docs/how-to/evaluate.md: 1,839 episodes, SR 40 %, looks every 10."""
    needed: dict[float, list[int]] = {5.0: [], 2.0: []}
    for seed in range(5):
        values = np.zeros(1839)
        values[:736] = 1.0
        np.random.default_rng(seed).shuffle(values)
        sequence = ConfidenceSequence(len(values), len(values))
        left = sorted(needed)
        for value in values:
            sequence.add(value)
            if sequence.count % 10 == 0 and left:
                low, high = sequence.interval()
                while left and 50.0 * (high - low) <= left[-1]:
                    needed[left.pop()].append(sequence.count)
    assert [sorted(found)[2] for found in needed.values()] == [600, 1450]
