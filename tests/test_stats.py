from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlnbench.stats import Kind, estimate

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
        assert result.low is not None
        assert result.high is not None
        assert result.low <= result.mean <= result.high
        assert result.se == pytest.approx(reverse.se, abs=1e-9)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 4)), min_size=2, max_size=40))
def test_rates_stay_in_range_and_are_never_certain(pairs: list) -> None:
    result = estimate([pair[0] for pair in pairs], [pair[1] for pair in pairs], "rate")
    assert result is not None
    if result.low is not None and result.high is not None:
        assert 0.0 <= result.low <= result.mean <= result.high <= 1.0
        assert result.high - result.low > 0.0


@pytest.mark.parametrize("kind", ["free", "rate"])
def test_95_percent_intervals_cover_95_percent(kind: Kind) -> None:
    """Episodes share their scene's difficulty; 20 scenes as in a validation split of this kind."""
    rng = np.random.default_rng(0)
    scenes = np.repeat(np.arange(20), 15)
    hits, trials = 0, 1500
    for _ in range(trials):
        difficulty = rng.beta(6, 4, size=20)[scenes]
        x = (rng.random(len(scenes)) < difficulty).astype(float)
        result = estimate(list(x), list(scenes), kind)
        assert result is not None
        assert result.low is not None
        assert result.high is not None
        hits += result.low <= 0.6 <= result.high
    assert 0.93 <= hits / trials <= 0.97
