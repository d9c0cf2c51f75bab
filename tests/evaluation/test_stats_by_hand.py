"""Intervals on numbers small enough to work out by hand; the arithmetic stands beside the numbers.

97.5 % quantiles of Student's t: 12.7062 with 1 degree of freedom, 4.3027 with 2, 2.2622 with 9.
"""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest

from vlnbench.evaluation.stats import (
    Estimate,
    Kind,
    bootstrap,
    degrees_of_freedom,
    differs,
    estimate,
    estimate_sums,
    holm,
    intervals,
    mcnemar,
    p_value,
)

T1, T2 = 12.706204736, 4.302652730


def close(*numbers: float) -> object:
    return pytest.approx(numbers, abs=1e-6)


def found(values: list[float], clusters: list[str], kind: Kind = "free") -> Estimate:
    result = estimate(values, clusters, kind)
    assert result is not None
    return result


def test_two_clusters_of_one_size() -> None:
    """1, 3 | 5, 7: mean 4, deviations per cluster -4 and 4, each share 1/2. Variance
    (16 / 0.5 + 16 / 0.5) / 4^2 = 4, SE 2 (as from the two means 2 and 6: sqrt(8) / sqrt(2)), 1 degree of freedom:
    4 -+ 2 * 12.7062."""
    result = found([1.0, 3.0, 5.0, 7.0], ["a", "a", "b", "b"])
    assert astuple(result) == close(4.0, 4, 2, 2.0, 4 - 2 * T1, 4 + 2 * T1, 1.0)
    assert estimate([1.0, 3.0, 5.0, 7.0], ["a", "a", "b", "b"]) == result
    meters = found([1.0, 3.0, 5.0, 7.0], ["a", "a", "b", "b"], "positive")  # are not negative
    assert (meters.low, meters.high) == close(0.0, 4 + 2 * T1)
    assert estimate([], []) is None


def test_three_clusters_of_unequal_size() -> None:
    """1, 1 | 3 | 7: mean 3; deviations -4, 0, 4; shares 1/2, 1/4, 1/4.
    Variance (16 / (1/2) + 0 + 16 / (3/4)) / 4^2 = (32 + 64/3) / 16 = 10/3, SE 1.825742.

    Degrees of freedom, with w = shares and a = w^2 / (1 - w) = 1/2, 1/12, 1/12, A = 2/3: B = diag(a) - a w' - w a'
    + A w w' has B11 = 1/2 - 1/2 + (2/3)/4 = 1/6; B22 = B33 = 1/12 - 1/24 + (2/3)/16 = 1/12;
    B12 = B13 = -1/8 - 1/24 + (2/3)/8 = -1/12; B23 = -1/48 - 1/48 + 1/24 = 0. tr(B) = 1/3,
    tr(B B) = 1/36 + 2/144 + 4/144 = 10/144: (1/9) / (10/144) = 1.6.
    """
    assert degrees_of_freedom(np.array([2.0, 1.0, 1.0])) == pytest.approx(1.6)
    for result in (
        found([3.0, 1.0, 7.0, 1.0], ["b", "a", "c", "a"]),
        estimate_sums([2.0, 3.0, 7.0], [2, 1, 1]),
    ):
        assert result is not None
        assert (result.mean, result.n, result.clusters) == (3.0, 4, 3)
        assert (result.se, result.degrees) == close(math.sqrt(10 / 3), 1.6)
        assert result.low is not None
        assert result.high is not None
        # t with 1.6 degrees of freedom lies between those with 1 and 2, and the interval is symmetric
        assert T2 < (result.high - 3.0) / math.sqrt(10 / 3) < T1
        assert result.high - 3.0 == pytest.approx(3.0 - result.low)
        assert [type(x) for x in astuple(result)] == [float, int, int, float, float, float, float]


def test_sums_of_clusters_say_the_same() -> None:
    """Of 2 and of 4 values, 1 and 3 in sum: mean 4/6, deviations 1 - 4/3 = -1/3 and 1/3, shares 1/3 and 2/3:
    variance (1/9 / (2/3) + 1/9 / (1/3)) / 36 = (1/6 + 1/3) / 36 = 1/72."""
    result = estimate_sums([1, 3], [2, 4])
    assert result is not None
    se = math.sqrt(1 / 72)
    assert astuple(result) == close(2 / 3, 6, 2, se, 2 / 3 - T1 * se, 2 / 3 + T1 * se, 1.0)
    assert estimate_sums([], []) is None
    assert estimate_sums([3.0], [4]) == Estimate(0.75, 4, 1, None, None, None, None)
    rate, values = estimate_sums([1, 3], [2, 4], "rate"), [1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    assert rate is not None
    assert astuple(rate) == pytest.approx(astuple(found(values, list("aabbbb"), "rate")))


def test_a_rate_that_is_neither_0_nor_1() -> None:
    """Three scenes of four episodes with 1, 2 and 3 successes: rate 1/2, deviations -1, 0, 1, shares 1/3: variance
    (2 / (2/3)) / 144 = 1/48, SE 0.144338, 2 degrees of freedom. As many independent episodes as would give this
    variance: 1/4 / (1/48) = 12, so Wilson with s = 4.30265^2 / 12 = 1.542735:
    1/2 -+ sqrt(s / 4 + s^2 / 4) / (1 + s) = 1/2 -+ 0.389462. (The bound of 12 episodes is 1.96^2 / 12, less.)"""
    result = found([1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0], list("aaaabbbbcccc"), "rate")
    s = T2**2 / 12
    half = math.sqrt(s / 4 + s * s / 4) / (1 + s)
    assert half == pytest.approx(0.389462, abs=1e-6)
    assert astuple(result) == close(0.5, 12, 3, math.sqrt(1 / 48), 0.5 - half, 0.5 + half, 2.0)


def test_a_fraction_that_is_neither_0_nor_1() -> None:
    """Means of three scenes of two: 0.1, 0.2, 0.6: mean 0.3; sums of deviations -0.4, -0.2, 0.6; variance
    (0.16 + 0.04 + 0.36) / (2/3) / 36 = 0.023333. 0.3 * 0.7 / 0.023333 = 9 episodes' worth:
    s = t^2 / 9 = 2.056980, center (0.3 + s/2) / (1 + s) = 0.434576,
    half sqrt(0.21 s + s^2 / 4) / (1 + s) = 0.399269."""
    result = found([0.0, 0.2, 0.2, 0.2, 0.9, 0.3], list("aabbcc"), "fraction")
    assert (result.mean, result.se) == close(0.3, math.sqrt(0.56 * 1.5 / 36))
    assert (result.low, result.high) == close(0.434576 - 0.399269, 0.434576 + 0.399269)


def test_a_rate_rests_on_its_episodes_and_a_fraction_on_its_scenes() -> None:
    """Ten scenes of four with 2 successes each, variance 0: s = 1.95996^2 / 40 = 0.0960365 of 40 independent
    episodes, 1/2 -+ sqrt(s / 4 + s^2 / 4) / (1 + s) = 1/2 -+ 0.148005. Fractions have no such variance, they
    keep what was not seen, 1/2 * 5.1174 / 45.1174 = 0.0567121."""
    values, scenes = [0.0, 1.0, 0.0, 1.0] * 10, [str(i // 4) for i in range(40)]
    rate, fraction = found(values, scenes, "rate"), found(values, scenes, "fraction")
    assert (rate.low, rate.high) == close(0.5 - 0.148005, 0.5 + 0.148005)
    assert (fraction.low, fraction.high) == close(0.5 - 0.0567121, 0.5 + 0.0567121)


def test_a_rate_at_its_ends_has_room_inside_only() -> None:
    """10 scenes of 30 episodes, t^2 = 5.1174: 5.1174 / 305.1174 = 1.67718 % may be of another kind."""
    scenes = [str(i % 10) for i in range(300)]
    for kind in ("rate", "fraction"):
        none, all_ = found([0.0] * 300, scenes, kind), found([1.0] * 300, scenes, kind)
        assert astuple(none)[3:] == close(0.0, 0.0, 0.0167718, 9.0)
        assert astuple(all_)[3:] == close(0.0, 1.0 - 0.0167718, 1.0, 9.0)


@pytest.mark.parametrize("value", [0.0, 0.25, -0.5, 1.0, -1.0])
def test_equal_differences_of_rates_are_not_certain(value: float) -> None:
    """As above, 1.67718 % may be of another kind, in which the difference is anything from -1 to 1."""
    result = found([value] * 300, [str(i % 10) for i in range(300)], "difference")
    assert (result.low, result.high) == close(value - 0.0167718 * (value + 1), value + 0.0167718 * (1 - value))


def test_differences_that_vary_have_a_t_interval_within_their_range() -> None:
    """-0.5, 0, 0.5 in three scenes of one: SE 0.5 / sqrt(3) = 0.288675, t 4.3027: 0 -+ 1.2421, cut off at 1.
    A tenth of each: -+ 0.12421, but three episodes leave 18.5128 / 21.5128 = 0.860549 to what was not seen.
    Each a hundred times: nearly the t interval for three scenes, as 18.5128 / 318.5128 = 0.058123 is less."""
    assert astuple(found([-0.5, 0.0, 0.5], list("abc"), "difference")) == close(0, 3, 3, 0.288675, -1, 1, 2)
    low, high = astuple(found([-0.05, 0.0, 0.05], list("abc"), "difference"))[4:6]
    assert (low, high) == close(-0.860549, 0.860549)
    low, high = astuple(found([-0.05, 0.0, 0.05] * 100, list("abc") * 100, "difference"))[4:6]
    assert (low, high) == close(-0.124207, 0.124207)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3])
def test_equal_differences_of_meters_have_no_interval(value: float) -> None:
    """Nothing bounds what was not seen, and 0 -+ 0 would be sure of it."""
    result = found([value] * 30, [str(i % 10) for i in range(30)])
    assert (result.low, result.high) == (None, None)
    assert (result.mean, result.se, result.degrees) == close(value, 0.0, 9.0)
    assert bootstrap([value] * 30, [str(i % 10) for i in range(30)]) is None


def test_equal_scenes_of_different_meters_have_no_interval_either() -> None:
    values, scenes = [1.0, 3.0, 3.0, 1.0], ["a", "a", "b", "b"]
    assert found(values, scenes) == Estimate(2.0, 4, 2, 0.0, None, None, 1.0)
    assert bootstrap(values, scenes) is None
    assert bootstrap([*values, 3.0], [*scenes, "b"]) is not None
    assert bootstrap([2.0, 2.0, 1.0, 3.0], ["a", "b", "b", "b"]) is None  # 2 | 6 / 3
    assert bootstrap([], []) is None
    assert found([*values, 3.0], [*scenes, "b"]).low is not None
    nearly = found([1e-9, 1.0 + 1e-9, 0.0, 1.0], scenes)  # SE 5e-10, and that is no rounding
    assert nearly.low is not None


def test_many_means_at_once() -> None:
    """Each row as alone."""
    totals = np.array([[-4.0, 4.0], [-1.0, 1.0]])
    se, low, high = intervals(totals, np.array([2.0, 2.0]), np.array([4.0, 9.0]), "free")
    assert se.tolist() == [2.0, 0.5]
    assert low.tolist() == pytest.approx([4.0 - 2.0 * T1, 9.0 - 0.5 * T1])
    assert high.tolist() == pytest.approx([4.0 + 2.0 * T1, 9.0 + 0.5 * T1])


def test_the_mean_is_summed_from_left_to_right() -> None:
    """1 + 1e-16 is 1, ten times over; the other way round, 1e-15 comes first and counts."""
    small = [1e-16] * 10
    forward, backward = found([1.0, *small], ["a"] * 11), found([*small, 1.0], ["a"] * 11)
    assert forward.mean == 1.0 / 11
    assert backward.mean == (1.0 + 1e-15) / 11 != forward.mean


def test_every_value_needs_its_cluster() -> None:
    with pytest.raises(ValueError, match="every value needs a cluster"):
        estimate([1.0, 2.0], ["a"])


def test_the_bootstrap_of_two_scenes() -> None:
    """Scenes of 1 and 3 values with sums 0 and 3: a quarter of draws take the first twice (0), a quarter the
    second twice (1), the rest both (3/4): 2.5 % and 97.5 % of draws lie in the outer quarters."""
    interval = bootstrap([0.0, 1.0, 1.0, 1.0], ["a", "b", "b", "b"])
    assert interval == (0.0, 1.0)
    assert [type(end) for end in interval or ()] == [float, float]
    # Ten scenes of one value: only 0.9^10 = 35 % of draws miss the one 1, so 0 is in; 97.5 % of draws have it at
    # most three times (binomial with 10 and 0.1: 98.7 % up to 3, 93.0 % up to 2).
    assert bootstrap([1.0] + [0.0] * 9, range(10)) == (0.0, pytest.approx(0.3))
    assert bootstrap([4.0] + [3.0] * 9, range(10)) == (3.0, pytest.approx(3.3))


def test_the_bootstrap_is_drawn_from_a_seed() -> None:
    values, scenes = [math.sqrt(i * i % 17) for i in range(60)], [i % 20 for i in range(60)]
    assert bootstrap(values, scenes) == bootstrap(values, scenes, seed=0, draws=4000)
    assert bootstrap(values, scenes, seed=1) != bootstrap(values, scenes)
    assert bootstrap(values, scenes, draws=100) != bootstrap(values, scenes)


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.04: times 3, 2 and 1 is 0.03, 0.04 and 0.04; 0.9 and 0.6 would be 0.6 * 2, so 1."""
    assert holm([0.04, None, 0.01, 0.02]) == pytest.approx([0.04, None, 0.03, 0.04])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.03, 0.01]) == pytest.approx([0.03, 0.02])
    assert holm([]) == []


def test_p_values_by_hand() -> None:
    """Of t with 2 degrees of freedom, p = 1 - t / sqrt(t^2 + 2): for t = 1, 0.42265."""
    found = Estimate(-1.0, 6, 3, 1.0, -5.3, 3.3, 2.0)
    assert p_value(found) == pytest.approx(1 - 1 / 3**0.5)
    assert p_value(replace(found, se=0.0)) is None
    assert differs(found, 0.04)
    assert not differs(found, 0.06)
    assert not differs(found, None)
    assert differs(replace(found, high=-0.1), None)


def test_mcnemar_by_hand() -> None:
    """1 win of 4: 2 (1 + 4) / 16 = 0.625. 2 of 4: 2 (1 + 4 + 6) / 16 > 1, so 1. 0 of 3: 2 / 8. None differs: 1."""
    assert [mcnemar(1, 3), mcnemar(3, 1), mcnemar(2, 2), mcnemar(0, 3), mcnemar(0, 0)] == close(
        0.625, 0.625, 1.0, 0.25, 1.0
    )
