"""Variance over episodes and trainings: by hand on small numbers, and by simulation of whole matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import ndtri, stdtrit

from vlnbench.matrix.statistics.crossed import (
    LEAST_DEGREES,
    Array,
    Spreading,
    contrast,
    evenness,
    predicted,
    spreading,
)

# Two settings of two seeds each, two scenes of two episodes: sums by training and scene.
SUMS = np.array([[2.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
SIZES = np.array([2.0, 2.0])
SETTINGS = ["a", "a", "b", "b"]


def test_the_spread_of_trainings_by_hand() -> None:
    """Means of a: 0.75 and 0.25, squares of what they lie apart 2 / 16; of b 0 and 0.25, 2 / 64. Over 1 + 1
    degrees: 0.078125. By scene, a's apart are (0.5, 0.5) and the negative: each scene does as the mean says, 0.
    b's are (-0.5, 0) and the negative, mean -0.125, deviations by scene (-0.25, 0.25): CR2 (0.0625 / 0.5 * 2) / 16
    = 1/64, twice, over 2 degrees: 1/64."""
    found = spreading(SUMS, SIZES, SETTINGS)
    assert (float(found.between), float(found.common), found.degrees) == pytest.approx((0.078125, 1 / 64, 2))
    assert found.deviation == pytest.approx((0.078125 - 1 / 64) ** 0.5)


def test_whether_settings_spread_alike_by_hand() -> None:
    """Means of a 0.75 and 0.25, of b 0 and 0.25: deviations sqrt(1 / 8) and sqrt(1 / 32). Bartlett's statistic is
    2 ln(5 / 64) - ln(1 / 8) - ln(1 / 32) = ln(25 / 16), over 1 + (1 + 1 - 1 / 2) / 3 = 1.5; chi square of 1."""
    found = evenness(SUMS, SIZES, SETTINGS)
    assert found is not None
    assert (found.least, found.most) == pytest.approx((0.125**0.5, 0.03125**0.5)[::-1])
    assert found.p == pytest.approx(math.erfc(math.sqrt(math.log(25 / 16) / 1.5 / 2)))


def test_settings_whose_seeds_agree_are_in_no_test_of_spread() -> None:
    found = evenness(np.vstack([SUMS, SUMS[3:], SUMS[3:]]), SIZES, [*SETTINGS, "c", "c"])
    assert found is not None
    assert (found.least, found.p) == (0.0, evenness(SUMS, SIZES, SETTINGS).p)  # type: ignore[union-attr]
    alone = evenness(SUMS[1:], SIZES, SETTINGS[1:])
    assert alone is not None
    assert (alone.least, alone.most, alone.p) == pytest.approx((0.03125**0.5, 0.03125**0.5, None))
    assert evenness(SUMS[1:3], SIZES, SETTINGS[1:3]) is None


def test_what_trainings_of_one_draw_share_is_no_spread() -> None:
    """Trainings 0 and 2 begin with one base, 1 and 3 with another. a's means are 0.25 from theirs, b's -0.125: the
    bases do 0.0625 to both, and 0.1875 is left, squared 0.03515625, four times, over one degree. By scene, a's
    (0.5, 0.5) less b's (-0.5, 0), halved: 0.5 and 0.25, which are 0.125 and -0.125 from 0.1875: CR2 1/256."""
    found = spreading(SUMS, SIZES, SETTINGS, [0, 1, 0, 1])
    assert (float(found.between), float(found.common), found.degrees) == pytest.approx(
        (4 * 0.03515625, 4 / 256, 1)
    )
    alike = SUMS[[0, 1, 0, 1]]  # b does what a does, whatever the base
    assert float(spreading(alike, SIZES, SETTINGS, [0, 1, 0, 1]).between) == 0.0


def test_draws_that_not_all_settings_have() -> None:
    """Three settings of draws 0 to 2, of which one lacks the last: 8 less 3 settings, less 2 more draws."""
    rng = np.random.default_rng(0)
    settings, draws = [0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2, 0, 1]
    sums = rng.normal(size=(8, 2))
    shifted = sums + np.array([[5.0, -1.0]]) * np.array(draws)[:, None]
    found, other = (spreading(each, SIZES, settings, draws) for each in (sums, shifted))
    assert found.degrees == 3
    assert float(found.between) == pytest.approx(float(other.between))


def test_a_contrast_by_hand() -> None:
    """a's mean 0.5, b's 0.125. By scene a is 1.5 and 0.5, b 0.5 and 0: differences 1 and 0.5, of mean 0.375 the
    deviations 0.25 and -0.25. S = 1/64 as above. q = 4 / 4 = 1: T = 0.078125, R = 1/64, so V = T and d = 2."""
    weights = np.array([0.5, 0.5, -0.5, -0.5])
    found = contrast(SUMS, SIZES, weights, spreading(SUMS, SIZES, SETTINGS))
    expected = (0.375, 0.078125**0.5, 2.0, 1 / 64, 0.078125, 1 / 64)
    values = (found.mean, found.se, found.degrees, found.scenes, found.trainings, found.common)
    assert tuple(map(float, values)) == pytest.approx(expected)


def test_without_seeds_the_variance_is_that_over_episodes() -> None:
    none = spreading(SUMS, SIZES, ["a", "b", "c", "d"])
    assert (none.degrees, none.deviation) == (0, 0.0)
    found = contrast(SUMS, SIZES, np.array([0.5, 0.5, -0.5, -0.5]), none)
    assert (float(found.se), float(found.degrees)) == pytest.approx((1 / 8, 1.0))


def test_what_is_no_training_is_taken_off() -> None:
    """b's second seed as a rule: 0.5 - 0.25, by scene 1.5 - 1 and 0.5 - 0: scenes agree, and S is 0."""
    spreads = spreading(SUMS, SIZES, SETTINGS)
    found = contrast(SUMS[:2], SIZES, np.array([0.5, 0.5]), spreads, SUMS[3])
    assert (float(found.mean), float(found.scenes), float(found.trainings)) == pytest.approx(
        (0.25, 0.0, 0.0390625)
    )


def test_seeds_that_agree_leave_the_variance_over_episodes() -> None:
    """T = R = 0: both seeds of a and b are the same, and S remains, with its degrees of freedom."""
    sums = SUMS[[0, 0, 2, 2]]
    found = contrast(sums, SIZES, np.array([0.5, 0.5, -0.5, -0.5]), spreading(sums, SIZES, SETTINGS))
    assert float(found.se) == pytest.approx(float(found.scenes) ** 0.5)
    assert float(found.degrees) == pytest.approx(1.0)


def test_expected_mean_squares_give_an_error() -> None:
    """0.03 + 0.01 = 0.04; 0.0016 / (0.0009 / 4 + 0.0001 / 1) degrees."""
    assert predicted(0.01, 0.03, 4, SIZES) == pytest.approx((0.2, 0.0016 / (0.0009 / 4 + 0.0001)))
    assert predicted(0.0, 0.0, 4, SIZES) == (0.0, 1.0)
    assert predicted(0.01, 0.0, 0, SIZES) == pytest.approx((0.1, 1.0))


@dataclass(frozen=True)
class Design:
    """A simulated matrix of two labels: contexts x seeds trainings of each, all on the same episodes.

    Whether a training succeeds in an episode is decided by a sum of normal values against a threshold. rate: of
    success. training, interaction: standard deviations of trainings and of label x scene beside those of an
    episode, 1. shared: of an episode's variance, the part that all trainings share. only: the effect in the first
    context alone, with the spread of trainings of the whole matrix. base: standard deviation of what the trainings
    of one seed share in all settings.
    """

    contexts: int
    seeds: int
    scenes: int
    episodes: int
    rate: float = 0.4
    training: float = 0.1
    interaction: float = 0.1
    shared: float = 0.5
    only: bool = False
    base: float = 0.0

    def draw(self, rng: np.random.Generator, matrices: int) -> Array:
        """(matrices, trainings, scenes) sums of success. Scenes have from half to one and a half of `episodes`."""
        half = self.contexts * self.seeds
        label = np.repeat([0, 1], half)
        normal = rng.normal
        total = np.zeros((matrices, 2 * half, self.scenes), np.float64)
        spread = (1 + 0.3**2 + self.training**2 + self.interaction**2) ** 0.5
        common = normal(0, 0.3, (matrices, 1, self.scenes))
        common = common + normal(0, self.interaction, (matrices, 2, self.scenes))[:, label]
        common = common + normal(0, self.training, (matrices, 2 * half, 1))
        if self.base:
            common = common + normal(0, self.base, (matrices, self.seeds, 1))[:, self.draws]
        for place in range(int(self.sizes.max())):
            own = normal(0, self.shared**0.5, (matrices, 1, self.scenes))
            own = own + normal(0, (1 - self.shared) ** 0.5, total.shape)
            total += (common + own < ndtri(self.rate) * spread) & (place < self.sizes)
        return total

    @property
    def sizes(self) -> Array:
        """Episodes of every scene."""
        return np.round(np.linspace(0.5, 1.5, self.scenes) * self.episodes).astype(np.float64)

    @property
    def settings(self) -> list[int]:
        """The setting of every training."""
        return [place // self.seeds for place in range(2 * self.contexts * self.seeds)]

    @property
    def draws(self) -> list[int]:
        """What every training shares with those of other settings."""
        return [place % self.seeds for place in range(2 * self.contexts * self.seeds)]

    @property
    def weights(self) -> Array:
        """Of the difference of the two labels."""
        one = np.zeros(self.contexts * self.seeds)
        one[: self.seeds if self.only else None] = 1.0
        return np.concatenate([-one, one]) / one.sum()


def coverage(
    design: Design, matrices: int, trainings_as_given: bool = False, by_draw: bool = False
) -> tuple[float, float]:
    """How often the 95 % interval holds 0, the true difference, and its median half width."""
    rng = np.random.default_rng(0)
    held, widths = [], []
    for _ in range(0, matrices, 250):
        sums = design.draw(rng, 250)
        spreads = spreading(sums, design.sizes, design.settings, design.draws if by_draw else None)
        none = Spreading(np.zeros(250), np.zeros(250), 0)
        found = contrast(sums, design.sizes, design.weights, none if trainings_as_given else spreads)
        half = stdtrit(found.degrees, 0.975) * found.se
        held.append(np.abs(found.mean) <= half)
        widths.append(half)
    return float(np.mean(held)), float(np.median(widths))


def borrowed(design: Design, degrees: int, matrices: int) -> float:
    """How often the interval of two single trainings holds 0 that knows `degrees` other settings of two seeds.

    design: of two seeds, and of more contexts than those settings take.
    """
    rng = np.random.default_rng(0)
    others = [t for t, setting in enumerate(design.settings) if setting % design.contexts][: 2 * degrees]
    pair = [0, design.contexts * design.seeds]
    held = []
    for _ in range(0, matrices, 250):
        sums = design.draw(rng, 250)
        spreads = spreading(sums[:, others], design.sizes, [design.settings[t] for t in others])
        found = contrast(sums[:, pair], design.sizes, np.array([-1.0, 1.0]), spreads)
        held.append(np.abs(found.mean) <= stdtrit(found.degrees, 0.975) * found.se)
    return float(np.mean(held))


def designs() -> list[Design]:
    """2 to 8 seeds, 20 to 60 scenes, trainings that spread little and much, effects that differ between scenes."""
    shapes = [
        (2, 2, 20, 5, False),
        (2, 2, 60, 5, False),
        (4, 2, 40, 8, True),
        (1, 3, 20, 15, False),
        (3, 3, 60, 5, False),
        (7, 3, 20, 15, True),
        (1, 5, 60, 15, False),
        (2, 5, 20, 5, False),
        (1, 8, 20, 15, False),
        (1, 8, 60, 5, False),
    ]
    spreads = [(0.1, 0.1), (0.2, 0.1), (0.2, 0.4), (0.1, 0.4), (0.05, 0.0)]
    return [
        Design(contexts, seeds, scenes, episodes, 0.4, training, interaction, only=only)
        for contexts, seeds, scenes, episodes, only in shapes
        for training, interaction in spreads
    ]


@pytest.mark.slow
@pytest.mark.parametrize("design", designs(), ids=str)
def test_95_percent_intervals_cover_95_percent(design: Design) -> None:
    """1,000 matrices each, which leaves a standard error of 0.7 points."""
    assert 0.93 - 0.007 <= coverage(design, 1000)[0] <= 0.97 + 0.007


@pytest.mark.slow
def test_fewer_than_three_degrees_of_freedom_cover_too_little() -> None:
    """Why `LEAST_DEGREES` is 3."""
    design = Design(4, 2, 60, 15, training=0.1)
    assert borrowed(design, 1, 4000) < 0.92
    assert borrowed(design, LEAST_DEGREES, 4000) > 0.93


def test_intervals_of_trainings_from_several_bases() -> None:
    """They hold the truth as often, and are narrower than where bases count as differences between trainings."""
    design = Design(3, 4, 40, 8, base=0.4)
    held, width = coverage(design, 1000, by_draw=True)
    assert 0.93 - 0.007 <= held <= 0.97 + 0.007
    assert width < 0.7 * coverage(design, 250)[1]


def test_intervals_that_take_trainings_as_given_do_not() -> None:
    """Why trainings are a source of chance: the interval over episodes alone holds the truth half of the time."""
    design = Design(1, 5, 20, 15, training=0.3)
    assert coverage(design, 500, trainings_as_given=True)[0] < 0.7
    assert coverage(design, 500)[0] > 0.92
