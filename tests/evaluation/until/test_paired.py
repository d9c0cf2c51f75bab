"""Two runs that end when their difference is decided: what is known before, how sure, and how soon."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from agents.scripted import GroundTruthReplayAgent, RandomAgent, StopAgent
from tests.evaluation.until.test_until import N, plan, run
from tests.fakes import PlaneEnv
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import Execution, Plan, evaluate
from vlnbench.evaluation.records import read_rows
from vlnbench.evaluation.summary import METRICS
from vlnbench.evaluation.until.decide import Verdict, difference_interval, judge, rounds
from vlnbench.evaluation.until.forecast import more_pairs
from vlnbench.evaluation.until.rule import Rule, parse_until
from vlnbench.evaluation.until.sequence import ConfidenceSequence, always_valid
from vlnbench.rollout.inline import Inline

__all__ = ["plan"]  # the fixture


def test_an_interval_only_gets_narrower_at_its_looks() -> None:
    values = [float(value) for value in np.random.default_rng(3).random(200) < 0.4]
    ends = [always_valid(values[:n], 200, 200) for n in range(0, 201, 10)]
    assert ends[0] == (0.0, 1.0)
    assert all(a[0] <= b[0] and b[1] <= a[1] for a, b in pairwise(ends))
    assert ends[-1] == pytest.approx((np.mean(values),) * 2)
    assert always_valid(values[:57], 200, 200) == ends[5]
    sequence = ConfidenceSequence(200, 200)
    for value in values[:10]:
        sequence.add(value)
    assert ends[1] == sequence.interval()


def test_runs_that_are_alike_are_never_told_apart_by_rounding() -> None:
    """49 is one of the sizes at which the middle of an even grid is not quite one half."""
    ids = [str(i) for i in range(49)]
    for repeats in (1, 3):
        values = [1 / 3, -1 / 3, 0.0] * 16 + [0.0] if repeats == 3 else [1.0, -1.0] * 24 + [0.0]
        low, high = (100.0 * end for end in difference_interval(METRICS[0], ids, repeats, values))
        assert not Verdict(Rule("SR", against=Path("run")), low, high, 49, 49).decided


def test_rounds_end_at_looks() -> None:
    assert {len(part) % 10 for part in rounds([str(i) for i in range(1839)])[:-1]} == {0}
    assert 15 <= len(rounds([str(i) for i in range(1839)])) <= 20


def test_the_interval_of_a_difference_is_that_of_its_half() -> None:
    """Outcomes -1, 0 and 1 of 30 episodes: what is left out is where betting on (1 + d) / 2 has grown 20 times."""
    ids = [str(i) for i in range(30)]
    low, high = difference_interval(METRICS[0], ids, 1, [1.0] * 20)
    halves = always_valid([1.0] * 20, 30, 60)
    assert (low, high) == pytest.approx((2 * halves[0] - 1, 1.0))
    assert low > 0.0
    assert difference_interval(METRICS[0], ids, 1, [1.0] * 15 + [-1.0] * 15) == pytest.approx((0.0, 0.0))


def test_two_runs_that_name_each_other_end_together(plan: Plan, tmp_path: Path) -> None:
    """One is ahead by what it did before; both end when the pairs decide, the second at fewer episodes."""
    stop, walk = tmp_path / "stop", tmp_path / "walk"
    walk.mkdir()
    done = run(plan, StopAgent(), stop, f"SR vs {walk}")  # there is nothing yet to compare with
    assert done == N
    assert run(plan, GroundTruthReplayAgent(), walk, f"SR vs {stop}") == 20
    assert run(plan, GroundTruthReplayAgent(), walk, f"SR vs {stop}") == 20


def test_a_run_looks_at_what_the_other_has_by_now(plan: Plan, tmp_path: Path) -> None:
    stop, walk = tmp_path / "stop", tmp_path / "walk"
    stop.mkdir()

    def begin_the_other(row: object, done: int, total: int) -> None:
        if done == 5:
            run(plan, StopAgent(), stop, "SR ± 20")

    execution = Execution(until=parse_until(f"SR vs {stop}"))
    evaluate(plan, Inline(GroundTruthReplayAgent(), PlaneEnv()), walk, begin_the_other, execution)
    assert len(read_rows(walk)) == 20


def test_an_unfinished_run_is_compared_with_as_far_as_it_goes(plan: Plan, tmp_path: Path) -> None:
    few = run(plan, StopAgent(), tmp_path / "few", "SR ± 20")
    assert few < N
    rule = Rule("SR", against=tmp_path / "few")
    assert run(plan, StopAgent(), tmp_path / "same", str(rule)) == N  # equal ones are never told apart
    ids = [episode.episode_id for episode in plan.episodes]
    verdict = judge(rule, ids, 1, read_rows(tmp_path / "same"), read_rows(tmp_path / "few"))
    assert (verdict.count, verdict.decided) == (few, False)


def test_a_folder_of_something_else_is_refused(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("eat")
    with pytest.raises(UsageError, match="notes: not a run folder"):
        run(plan, RandomAgent(), tmp_path / "run", f"SR vs {tmp_path / 'notes'}")
    with pytest.raises(UsageError, match="no such folder; if a run is still to begin there, mkdir"):
        run(plan, RandomAgent(), tmp_path / "run", f"SR vs {tmp_path / 'none'}")
    assert not (tmp_path / "run").exists()


def test_the_forecast_is_what_a_longer_run_would_have_needed() -> None:
    """Pairs that all say the same: the number at which betting against 0 has grown 20 times, less those so far."""
    needed = next(n for n in range(1, 200) if difference_low([1.0] * n, 200) > 0.0)
    assert needed % 10
    assert more_pairs([1.0] * 4, 200) == (needed + 10 - needed % 10 - 4,) * 3  # seen at the next look
    assert more_pairs([], 200) is None
    assert more_pairs([0.0] * 50, 200) is None


def difference_low(differences: list[float], size: int) -> float:
    """The lower end after the last of them, looked at every time."""
    sequence = ConfidenceSequence(size, 2 * size)
    for difference in differences:
        sequence.add((1.0 + difference) / 2.0)
    return 2.0 * sequence.interval()[0] - 1.0


def test_the_forecast_shrinks_with_the_difference_and_never_passes_what_is_left() -> None:
    rng = np.random.default_rng(1)
    small, large = (
        list(rng.choice([-1.0, 0.0, 1.0], size=100, p=p)) for p in ((0.17, 0.6, 0.23), (0.05, 0.6, 0.35))
    )
    after_small, after_large = more_pairs(small, 1839), more_pairs(large, 1839)
    assert after_small is not None
    assert after_large is not None
    assert after_large[1] < after_small[1]
    assert max(after_small) <= 1739
    assert after_small[0] <= after_small[1] <= after_small[2]


def pairs(rng: np.random.Generator, scenes: int, size: int, a: float, b: float, spread: float) -> np.ndarray:
    """Differences of success of two agents over `scenes` times `size` episodes.

    Episodes are as hard for both as their scene is, and the better agent's gain differs from scene to scene.
    """
    found = []
    for _ in range(scenes):
        hard, gain = rng.normal(0.0, spread), rng.normal(0.0, spread)
        each = rng.normal(0.0, 1.0, size)  # hardness of the episode
        first = each + rng.normal(0.0, 0.7, size) < NormalDist().inv_cdf(a) * 1.22 - hard
        second = each + rng.normal(0.0, 0.7, size) < NormalDist().inv_cdf(b) * 1.22 - hard + gain
        found.append(second.astype(float) - first)
    return np.concatenate(found)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b", "spread"), [(0.4, 0.4, 0.1), (0.4, 0.45, 0.5), (0.05, 0.08, 0.3)])
def test_the_true_difference_is_left_out_in_at_most_1_of_20(a: float, b: float, spread: float) -> None:
    """At any look, over all planned pairs; where the difference is 0 or tiny, it is not called decided either."""
    rng, runs, missed, wrong = np.random.default_rng(7), 60, 0, 0
    for _ in range(runs):
        values = pairs(rng, 20, 15, a, b, spread)
        truth, order = values.mean(), rng.permutation(len(values))
        sequence, out, decided = ConfidenceSequence(len(values), 2 * len(values)), False, 0
        for value in values[order]:
            sequence.add((1.0 + value) / 2.0)
            if sequence.count % 10 == 0:
                low, high = (2.0 * end - 1.0 for end in sequence.interval())
                out |= not low - 1e-9 <= truth <= high + 1e-9
                decided = decided or int(low > 1e-9) - int(high < -1e-9)
        missed += out
        wrong += decided * truth < 0
    assert missed / runs <= 0.05
    assert wrong / runs <= 0.05
