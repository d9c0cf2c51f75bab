"""Means over episodes and trainings at once: each training meets every scene, and both are sources of chance.

A contrast weighs trainings: +1/P for the P trainings of one kind and -1/P for those of another, say. With other
scenes it would come out differently, and with other seeds of training too. Value y of training t (of setting k) in
scene g is taken as

    y[t, g] = mean[k] + scene[g] + (setting x scene)[k, g] + training[t] + (training x scene)[t, g]

with everything but `mean` random. This is the crossed model of readers and cases of diagnostic studies, with
trainings for readers and scenes for cases (Obuchowski and Rockette 1995; Hillis 2007). Three mean squares estimate
the variance of a contrast with weights w, whose squares sum up to q:

- S, between scenes: the CR2 variance of the contrast by scene, trainings taken as given. It holds setting x scene
  and training x scene.
- T = q s^2, between trainings: s^2 is the variance of means between seeds of one setting, pooled over settings. It
  holds training and training x scene.
- R = q r^2, what S and T have in common: r^2 is the CR2 variance by scene of those differences between seeds.

The variance is T + max(S - R, 0), with Satterthwaite's degrees of freedom in Hillis's form, V^2 / (T^2 / d_T +
(S - R)^2 / d_S). Simulations: benchmarks/statistics/effects.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlnbench.evaluation.stats import degrees_of_freedom

Array = npt.NDArray[np.float64]

ENOUGH_DEGREES = 4
"""Degrees of freedom of the variance between trainings below which the settings of a contrast are too few, and
those of the whole matrix are taken: with 2, intervals hold the truth in 92 to 96 of 100 cases."""

LEAST_DEGREES = 3
"""Below, in the whole matrix, how much trainings differ counts as unknown: two seeds that agree by chance would
make the interval narrower than that over episodes alone. With 1 it held the truth in 88 to 93 of 100 simulated
cases, with 2 in 93 to 95, with 3 in 94 to 95 (benchmarks/statistics/effects.py)."""


ROUNDING = 1e-9
"""Sums of episodes below which a difference is one of computing; seeds that agree have none."""


@dataclass(frozen=True)
class Spreading:
    """How means of trainings spread that differ in their seed alone.

    between: s^2, variance between them. common: r^2, the part of it that the choice of scenes explains. Both may
    be arrays over simulated matrices. degrees: of freedom, 0 where no setting has two seeds and nothing is known.
    """

    between: Array
    common: Array
    degrees: int

    @property
    def deviation(self) -> float:
        """Standard deviation of trainings over infinitely many scenes; 0 where scenes explain all of it."""
        return float(np.sqrt(np.maximum(self.between - self.common, 0.0)))


@dataclass(frozen=True)
class Parts:
    """A contrast, the mean squares of its variance and its degrees of freedom; arrays over simulated matrices.

    scenes, trainings, common: S, T and R of the module's docstring. se is the root of the variance.
    """

    mean: Array
    se: Array
    degrees: Array
    scenes: Array
    trainings: Array
    common: Array


def spreading(
    sums: Array, sizes: Array, settings: Sequence[Hashable], draws: Sequence[Hashable] | None = None
) -> Spreading:
    """How trainings of one setting spread, pooled over settings.

    sums: (..., T, G) sums of values by training and scene. sizes: (G,) episodes. settings: of the T trainings.
    draws: what trainings of several settings share that is drawn, such as the base they begin with; what it does
    to all settings alike cancels out where they are compared by the same draws, and is taken off.
    """
    n = float(sizes.sum())
    known = _indicators(settings) if draws is None else np.hstack([_indicators(settings), _indicators(draws)])
    left = np.eye(len(settings)) - known @ np.linalg.pinv(known)  # what these do not explain
    degrees = round(float(np.trace(left)))
    apart = np.einsum("ts,...sg->...tg", left, sums)
    apart[np.abs(apart) < ROUNDING] = 0.0
    means = apart.sum(axis=-1) / n
    common = _by_scene(apart - means[..., None] * sizes, sizes).sum(axis=-1)
    return Spreading((means**2).sum(axis=-1) / max(degrees, 1), common / max(degrees, 1), degrees)


@dataclass(frozen=True)
class Evenness:
    """Whether settings spread alike, as `Spreading` takes it.

    least, most: smallest and largest standard deviation between the trainings of a setting. p: of Bartlett's test;
    None where fewer than two settings have two seeds that differ.
    """

    least: float
    most: float
    p: float | None


def evenness(sums: Array, sizes: Array, settings: Sequence[Hashable]) -> Evenness | None:
    """How means of trainings spread, setting by setting; None without a setting of two seeds.

    sums: (T, G) sums of values by training and scene. sizes: (G,) episodes. settings: of the T trainings.

    A setting whose seeds agree to the digit is in `least`, but not in the test, which takes logarithms.
    """
    from scipy.stats import bartlett  # loaded late: scipy costs more than the rest of the start-up

    means = sums.sum(axis=-1) / sizes.sum()
    groups = [means[[each == setting for each in settings]] for setting in dict.fromkeys(settings)]
    known = [(float(group.std(ddof=1)), group) for group in groups if len(group) > 1]
    if not known:
        return None
    apart = [group for deviation, group in known if deviation > ROUNDING]
    p = float(bartlett(*apart).pvalue) if len(apart) > 1 else None
    deviations = [deviation for deviation, _ in known]
    return Evenness(min(deviations), max(deviations), p)


def _indicators(labels: Sequence[Hashable]) -> Array:
    """(T, L): 1 where a training has a label."""
    return np.array([[float(each == label) for label in dict.fromkeys(labels)] for each in labels])


def contrast(sums: Array, sizes: Array, weights: Array, trainings: Spreading, fixed: Array | None = None) -> Parts:
    """A weighted sum of means of trainings, and how sure it is.

    sums, sizes: as in `spreading`; two scenes or more. weights: (T,). trainings: how their means spread; without
    degrees of freedom the variance is that over episodes alone. fixed: (..., G) sums by scene of what is no
    training, to be taken off: a rule that always acts alike, or one checkpoint.
    """
    n = float(sizes.sum())
    by_scene = np.einsum("...tg,t->...g", sums, weights) - (0.0 if fixed is None else fixed)
    mean = by_scene.sum(axis=-1) / n
    scenes = _by_scene(by_scene - mean[..., None] * sizes, sizes)
    degrees = degrees_of_freedom(sizes)
    if not trainings.degrees:
        zero = np.zeros_like(scenes)
        return Parts(mean, np.sqrt(scenes), np.full_like(scenes, degrees), scenes, zero, zero)
    q = float(weights @ weights)
    between, common = q * trainings.between, q * trainings.common
    rest = np.maximum(scenes - common, 0.0)
    variance = between + rest
    flat = variance == 0.0  # seeds that agree to the digit, where scenes explain nothing more: no less than S
    variance = np.where(flat, scenes, variance)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = variance**2 / (between**2 / trainings.degrees + rest**2 / degrees)
    freedom = np.where(flat, degrees, np.maximum(freedom, 1.0))
    return Parts(mean, np.sqrt(variance), freedom, scenes, between, common)


def predicted(scenes: float, between: float, degrees: int, sizes: Array) -> tuple[float, float]:
    """Standard error and degrees of freedom for expected mean squares. scenes: S - R. between: T."""
    variance = between + scenes
    if variance == 0.0:
        return 0.0, degrees_of_freedom(sizes)
    below = (between**2 / degrees if degrees else 0.0) + scenes**2 / degrees_of_freedom(sizes)
    return float(np.sqrt(variance)), max(1.0, variance**2 / below)


def _by_scene(totals: Array, sizes: Array) -> Array:
    """CR2 variance of a mean. totals: (..., G) sums by scene of the deviations from it."""
    n = float(sizes.sum())
    found: Array = np.sum(totals**2 / (1.0 - sizes / n), axis=-1) / n**2
    return found
