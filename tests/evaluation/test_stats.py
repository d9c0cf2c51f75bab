from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlnbench.evaluation.stats import Kind, bootstrap, degrees_of_freedom, estimate, intervals, mcnemar

values = st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 4)), min_size=1, max_size=40)


def test_no_values_no_estimate() -> None:
    assert estimate([], []) is None


def test_one_cluster_has_a_mean_but_no_interval() -> None:
    result = estimate([1.0, 0.0, 1.0], ["a", "a", "a"])
    assert result is not None
    assert result.mean == pytest.approx(2 / 3)
    assert (result.se, result.low, result.high, result.n, result.clusters) == (None, None, None, 3, 1)


def test_clusters_of_one_give_the_textbook_standard_error() -> None:
    x = [3.0, 5.0, 4.0, 8.0, 1.0]
    result = estimate(x, range(5))
    assert result is not None
    assert result.se == pytest.approx(np.std(x, ddof=1) / np.sqrt(5))
    assert result.high == pytest.approx(np.mean(x) + 2.7764451 * np.std(x, ddof=1) / np.sqrt(5))


def test_repeating_every_episode_does_not_buy_certainty() -> None:
    x, scenes = [0.0, 1.0, 1.0, 0.0, 1.0], [0, 1, 2, 3, 4]
    once, thrice = estimate(x, scenes), estimate(x * 3, scenes * 3)
    assert once is not None
    assert thrice is not None
    assert thrice.se == pytest.approx(once.se)


@given(values)
def test_the_interval_holds_the_mean_and_ignores_order(pairs: list) -> None:
    x, scenes = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    result, reverse = estimate(x, scenes), estimate(x[::-1], scenes[::-1])
    assert result is not None
    assert reverse is not None
    assert result.mean == pytest.approx(reverse.mean)
    if result.se is not None:
        assert result.se == pytest.approx(reverse.se, abs=1e-9)
    if result.low is None or result.high is None:
        assert not result.se or result.se <= 1e-11  # one scene, or all alike
    else:
        assert result.low <= result.mean <= result.high


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 4)), min_size=2, max_size=40))
def test_rates_stay_in_range_and_are_never_certain(pairs: list) -> None:
    result = estimate([pair[0] for pair in pairs], [pair[1] for pair in pairs], "rate")
    assert result is not None
    if result.low is not None and result.high is not None:
        assert 0.0 <= result.low <= result.mean <= result.high <= 1.0
        assert result.high - result.low > 0.0


def test_the_degrees_of_freedom_are_those_of_the_quadratic_form() -> None:
    sizes = np.array([18.0, 102.0, 177.0, 300.0])
    w = sizes / sizes.sum()
    form = np.zeros((4, 4))
    for g in range(4):
        contrast = np.eye(4)[g] - w
        form += w[g] ** 2 / (1 - w[g]) * np.outer(contrast, contrast)
    assert degrees_of_freedom(sizes) == pytest.approx(np.trace(form) ** 2 / np.trace(form @ form))
    assert degrees_of_freedom(np.full(10, 30.0)) == pytest.approx(9.0)


@given(st.lists(st.integers(1, 400), min_size=2, max_size=60))
def test_unequal_scenes_cost_degrees_of_freedom(sizes: list[int]) -> None:
    assert 1.0 <= degrees_of_freedom(np.array(sizes, dtype=float)) <= len(sizes) - 1


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 4)), min_size=2, max_size=30), st.floats(-5, 5))
def test_an_interval_moves_with_its_values(pairs: list, shift: float) -> None:
    scenes = [scene for _, scene in pairs]
    here, there = estimate([x for x, _ in pairs], scenes), estimate([x + shift for x, _ in pairs], scenes)
    assert here is not None
    assert there is not None
    if here.low is not None and there.low is not None:  # scenes that hardly differ are equal after the shift
        assert there.low == pytest.approx(here.low + shift, abs=1e-9)
        assert there.high == pytest.approx(here.high + shift, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4)), min_size=2, max_size=40))
def test_fractions_stay_in_range(pairs: list) -> None:
    result = estimate([pair[0] for pair in pairs], [pair[1] for pair in pairs], "fraction")
    assert result is not None
    if result.low is not None and result.high is not None:
        assert 0.0 <= result.low <= result.mean <= result.high <= 1.0


@pytest.mark.parametrize("kind", ["rate", "fraction"])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_or_nothing_is_not_certain(kind: Kind, value: float) -> None:
    result = estimate([value] * 300, [i % 10 for i in range(300)], kind)
    assert result is not None
    assert result.se == 0.0
    assert result.high - result.low == pytest.approx(2.262157**2 / (300 + 2.262157**2), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.2, 0.7, 1.0])
def test_equal_fractions_are_not_certain(value: float) -> None:
    """20 scenes of 3 episodes: t = 2.093 with 19 degrees of freedom, so 4.381 / (60 + 4.381) = 6.80 % of all
    episodes may be of a kind that was not seen, and score 0 or 1."""
    result = estimate([value] * 60, [i % 20 for i in range(60)], "fraction")
    assert result is not None
    assert result.se == pytest.approx(0.0, abs=1e-12)
    assert result.low == pytest.approx(value - 0.0680 * value, abs=5e-5)
    assert result.high == pytest.approx(value + 0.0680 * (1.0 - value), abs=5e-5)


def test_the_width_of_equal_fractions_is_no_jump() -> None:
    """Fractions that hardly differ have nearly the interval of equal ones."""
    scenes = [i % 20 for i in range(60)]
    equal, nearly = (estimate([0.7 + d * (i % 2) for i in range(60)], scenes, "fraction") for d in (0.0, 1e-6))
    assert equal is not None
    assert nearly is not None
    assert (nearly.low, nearly.high) == (pytest.approx(equal.low, abs=1e-5), pytest.approx(equal.high, abs=1e-5))


def test_a_rate_never_rests_on_more_than_its_episodes() -> None:
    """Ten scenes that all have 2 successes of 4: their variance is 0, and still the interval is that of 40
    independent episodes: Wilson's for 20 of 40, (0.5 + s/2 -+ sqrt(s/4 + s^2/4)) / (1 + s), s = 1.96^2 / 40."""
    result = estimate([0.0, 1.0, 0.0, 1.0] * 10, [i // 4 for i in range(40)], "rate")
    assert result is not None
    assert result.se == 0.0
    assert (result.low, result.high) == (pytest.approx(0.3519949, abs=1e-6), pytest.approx(0.6480051, abs=1e-6))


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 4)), min_size=2, max_size=60))
def test_no_rate_is_surer_than_one_of_independent_episodes(pairs: list) -> None:
    result = estimate([x for x, _ in pairs], [scene for _, scene in pairs], "rate")
    assert result is not None
    if result.low is not None and result.high is not None:
        s, p = 1.959964**2 / result.n, result.mean
        half = np.sqrt(s * p * (1 - p) + s * s / 4) / (1 + s)
        assert result.high - result.low >= 2 * half - 1e-6


def test_mcnemar_is_the_sign_test() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(10, 2) == pytest.approx(2 * sum(comb(12, k) for k in range(3)) / 2**12)
    assert mcnemar(2, 10) == mcnemar(10, 2)


def test_the_bootstrap_draws_whole_scenes() -> None:
    assert bootstrap([1.0, 2.0], ["a", "a"]) is None
    constant_by_scene = bootstrap([0.0] * 50 + [1.0] * 50, [0] * 50 + [1] * 50)
    assert constant_by_scene == (0.0, 1.0)  # a quarter of the draws take one scene twice
    x, scenes = list(np.random.default_rng(0).normal(size=400)), [i % 40 for i in range(400)]
    low, high = bootstrap(x, scenes) or (0.0, 0.0)
    result = estimate(x, scenes)
    assert result is not None
    assert low == pytest.approx(result.low, abs=0.02)
    assert high == pytest.approx(result.high, abs=0.02)
    assert bootstrap(x, scenes) == (low, high)


STRUCTURES = {
    "R2R-CE val_unseen, 11 scenes": [18, 39, 102, 132, 141, 159, 177, 252, 255, 264, 300],
    "R2R-CE val_seen, 53 scenes": np.repeat(
        [3, 6, 9, 12, 15, 18, 21, 24, 30], [3, 5, 7, 9, 8, 6, 9, 5, 1]
    ).tolist(),
    "houses val_unseen, 20 scenes": [15] * 20,
}
"""Episodes per scene. The one trajectory of val_seen with four instructions counts as one with three."""

SCENE_EFFECTS = (0.0, 0.02, 0.1)
"""Correlation within scenes. In 1,839 rows of a published agent: SR and SPL 0.02, nDTW 0.11, NE 0.14."""

TRAJECTORY_EFFECT = 0.3
"""Correlation within trajectories, as in the same rows."""

Draw = Callable[[np.random.Generator, np.ndarray, int, float], np.ndarray]


def rates(mean: float, within: float = TRAJECTORY_EFFECT) -> Draw:
    """Successes per trajectory of three episodes."""

    def draw(rng: np.random.Generator, scene: np.ndarray, trials: int, effect: float) -> np.ndarray:
        chance = np.full((trials, len(scene)), mean)
        if effect:
            count = 1.0 / effect - 1.0
            chance = rng.beta(mean * count, (1.0 - mean) * count, size=(trials, scene[-1] + 1))[:, scene]
        if within:
            count, chance = 1.0 / within - 1.0, np.clip(chance, 1e-9, 1 - 1e-9)
            chance = rng.beta(chance * count, (1.0 - chance) * count)
        return rng.binomial(3, chance).astype(float)

    return draw


def bell(rng: np.random.Generator, scene: np.ndarray, trials: int, effect: float) -> np.ndarray:
    """Sums of three values of a normal distribution with mean 0."""
    shared = np.sqrt(effect) * rng.normal(size=(trials, scene[-1] + 1))[:, scene]
    own = np.sqrt(TRAJECTORY_EFFECT) * rng.normal(size=(trials, len(scene)))
    rest = np.sqrt(1.0 - effect - TRAJECTORY_EFFECT) * np.sqrt(3.0) * rng.normal(size=(trials, len(scene)))
    return 3.0 * (shared + own) + rest


def skewed(rng: np.random.Generator, scene: np.ndarray, trials: int, effect: float) -> np.ndarray:
    """Sums of three distances: log-normal, each trajectory with a distance of its own, minus their mean."""
    shared = np.sqrt(effect) * rng.normal(size=(trials, scene[-1] + 1))[:, scene]
    own = np.sqrt(1.0 - effect) * rng.normal(size=(trials, len(scene)))
    return 3.0 * (np.exp(0.7 * (shared + own)) - np.exp(0.245))


def efficiencies(rng: np.random.Generator, scene: np.ndarray, trials: int, effect: float) -> np.ndarray:
    """Sums of three values of SPL: half of the episodes succeed, with an efficiency of 0.6 to 1 by trajectory."""
    return rates(0.5)(rng, scene, trials, effect) * rng.uniform(0.6, 1.0, size=(trials, len(scene)))


def nearly_equal(rng: np.random.Generator, scene: np.ndarray, trials: int, effect: float) -> np.ndarray:
    """Sums of three values of 0.9, but one in 500 is 0: often all are equal."""
    return 2.7 - 0.9 * rates(0.002, within=0.0)(rng, scene, trials, 0.0)


def coverage(sizes: list[int], draw: Draw, kind: Kind, truth: float, effect: float, trials: int) -> float:
    """How often the interval holds the truth, over simulated runs."""
    rng = np.random.default_rng(0)
    counts = np.array(sizes) // 3
    scene = np.repeat(np.arange(len(sizes)), counts)
    sums = draw(rng, scene, trials, effect)
    totals = np.add.reduceat(sums, np.cumsum(counts) - counts, axis=1)
    n = 3.0 * counts
    means = totals.sum(axis=1) / n.sum()
    _, low, high = intervals(totals - n * means[:, None], n, means, kind)
    return float(np.mean((low <= truth) & (truth <= high)))


DESIGNS: dict[str, tuple[Draw, Kind, float]] = {
    "SR 14 %": (rates(0.14), "rate", 0.14),
    "SR 50 %": (rates(0.5), "rate", 0.5),
    "SR 90 %": (rates(0.9), "rate", 0.9),
    "SR 50 %, independent trajectories": (rates(0.5, within=0.0), "rate", 0.5),
    "SPL 40 %": (efficiencies, "fraction", 0.4),
    "normal": (bell, "free", 0.0),
    "log-normal": (skewed, "free", 0.0),
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("design", ["SR 50 %, independent trajectories", "SPL 40 %", "normal"])
@pytest.mark.parametrize("effect", [0.0, 0.1])
def test_95_percent_intervals_cover_95_percent(structure: str, design: str, effect: float) -> None:
    assert 0.93 <= coverage(STRUCTURES[structure], *DESIGNS[design], effect, 4000) <= most(design, effect)


def most(design: str, effect: float) -> float:
    """The coverage allowed; 98 % for rates where scenes do not differ, see `vlnbench.evaluation.stats`."""
    return 0.98 if effect == 0.0 and DESIGNS[design][1] == "rate" else 0.97


@pytest.mark.parametrize("structure", STRUCTURES)
def test_fractions_that_are_often_all_equal_are_covered(structure: str) -> None:
    """Without room for what was not seen, only simulated runs that have a 0 in them could cover the mean."""
    assert coverage(STRUCTURES[structure], nearly_equal, "fraction", 0.9 * 0.998, 0.0, 4000) >= 0.93


def seldom_gained(rng: np.random.Generator, scene: np.ndarray, trials: int, effect: float) -> np.ndarray:
    """Sums of three differences of success between two runs: one episode in 200 is gained, none is lost."""
    return rates(0.005, within=0.0)(rng, scene, trials, 0.0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_differences_that_are_often_all_equal_are_covered(structure: str) -> None:
    assert coverage(STRUCTURES[structure], seldom_gained, "difference", 0.005, 0.0, 4000) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("effect", SCENE_EFFECTS)
def test_95_percent_intervals_cover_95_percent_in_every_design(structure: str, design: str, effect: float) -> None:
    assert 0.93 <= coverage(STRUCTURES[structure], *DESIGNS[design], effect, 6000) <= most(design, effect)


def test_g_minus_1_degrees_would_not_do() -> None:
    """Why the degrees of freedom are not simply scenes minus one: 11 unequal scenes."""
    sizes = STRUCTURES["R2R-CE val_unseen, 11 scenes"]
    assert degrees_of_freedom(np.array(sizes, dtype=float)) == pytest.approx(5.81, abs=0.01)
