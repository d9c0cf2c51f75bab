"""Means with honest uncertainty.

Episodes of one scene resemble each other, so standard errors are clustered (cf. Miller 2024, arXiv 2411.00640).
With few scenes of unequal size, the usual factor G / (G - 1) and G - 1 degrees of freedom promise too much.
Here each squared cluster total is divided by one minus the cluster's share of the episodes (CR2; Bell and
McCaffrey 2002), and the degrees of freedom are Satterthwaite's for clusters with an effect of their own (Imbens
and Kolesár 2016, with the intra-class correlation at 1, which errs on the wide side and needs nothing but the
sizes). For G clusters of one size that is the textbook's G - 1; the 11 scenes of R2R-CE val_unseen, with 18 to
300 episodes, are worth 5.8.

Values between 0 and 1 get a Wilson interval with the effective sample size that the standard error implies. Two
bounds keep it from pretending to be certain where scenes or values agree by chance:

- Episodes of one scene can be alike, but not opposed, so n episodes never say more of a rate than n independent
  ones: its interval is never narrower than theirs (Wilson's with the normal quantile, as the variance of a rate
  follows from the rate). With few scenes and no resemblance at all, more than 95 % is covered: 97.5 % for the 11
  scenes of R2R-CE val_unseen, 96.2 % for 20 scenes of one size.
- n episodes leave room for kinds of episode that none of them belongs to: at most t^2 / (n + t^2) of all, which is
  what Wilson's interval grants a rate of 0. Those may score anything from 0 to 1, and the interval reaches as far.
  So it has a width where all values are equal, 0.7 as well as 0 or 1, and elsewhere this hardly ever matters.

Differences of two such values lie between -1 and 1. They get a t interval, as their mean is mostly far from both
ends, and the second bound: two runs that agree in all n episodes may differ in others. Where a run gains one
episode in 200, the t interval alone holds the truth in 55 to 94 % of cases, depending on the scenes, and both in
97.5 % and more. Differences in meters and counts have no range that could bound what was not seen; where all
scenes agree in one, it has no interval.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]
"""Clusters as whole numbers from 0."""

POWER = 0.8
"""How often a difference that is called detectable is told from 0."""
_NORMAL = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` episodes in `clusters` scenes (or trajectories), its standard error and 95 % interval.

    degrees: of freedom, at most clusters - 1. se, low, high and degrees are None where one cluster (or episode)
    leaves nothing to estimate them from; low and high also where the means of all clusters are equal and values
    may be anything (kind "free").
    """

    mean: float
    n: int
    clusters: int
    se: float | None
    low: float | None
    high: float | None
    degrees: float | None = None


Kind = Literal["rate", "fraction", "difference", "positive", "free"]
"""What the values are: 0 or 1, anything in [0, 1], a difference of two of these, not negative, or anything.
Intervals stay in that range."""

_ROUNDING = 1e-12
"""A standard error that is smaller than this share of its mean is one of 0."""


def estimate(
    values: Sequence[float] | Array, clusters: Sequence[Hashable] | Numbers, kind: Kind = "free"
) -> Estimate | None:
    """Mean of `values` with a standard error clustered by `clusters` (same length). None for no values."""
    if len(values) != len(clusters):
        raise ValueError("every value needs a cluster")
    if not len(values):
        return None
    x = np.asarray(values, dtype=np.float64)
    index, groups = _indexed(clusters)
    # Summed from left to right, as VLN-CE does: published aggregates come out to the last digit.
    mean = float(np.cumsum(x)[-1]) / len(x)
    sizes = np.bincount(index, minlength=groups).astype(np.float64)
    return _estimate(mean, np.bincount(index, weights=x, minlength=groups).astype(np.float64), sizes, kind)


def estimate_sums(sums: Sequence[float], sizes: Sequence[int], kind: Kind = "free") -> Estimate | None:
    """The same from the sum and the number of values of each cluster."""
    if not sizes:
        return None
    totals, counts = np.array(sums, dtype=np.float64), np.array(sizes, dtype=np.float64)
    return _estimate(float(totals.sum() / counts.sum()), totals, counts, kind)


def _estimate(mean: float, sums: Array, sizes: Array, kind: Kind) -> Estimate:
    n, groups = int(sizes.sum()), len(sizes)
    if groups < 2:
        return Estimate(mean, n, groups, None, None, None)
    se, low, high = intervals(sums - sizes * mean, sizes, np.array(mean), kind)
    degrees = degrees_of_freedom(sizes)
    if kind == "free" and se <= _ROUNDING * abs(mean):
        return Estimate(mean, n, groups, float(se), None, None, degrees)
    return Estimate(mean, n, groups, float(se), float(low), float(high), degrees)


def intervals(totals: Array, sizes: Array, means: Array, kind: Kind) -> tuple[Array, Array, Array]:
    """Standard errors, lower and upper ends of 95 % intervals, of any number of means at once.

    totals: (..., G) sums per cluster of the deviations from the mean. sizes: (G,) values per cluster, G >= 2.
    means: (...).
    """
    n = float(sizes.sum())
    variance = np.sum(totals**2 / (1.0 - sizes / n), axis=-1) / n**2
    se = np.sqrt(variance)
    t = _student_t(degrees_of_freedom(sizes))
    if kind in ("rate", "fraction"):
        low, high = _wilson(means, _inverse_effective_n(means, variance, n, kind, t), t)
    else:
        low, high = means - t * se, means + t * se
    if kind in ("positive", "free"):
        return se, np.maximum(low, 0.0) if kind == "positive" else low, high
    least, unseen = -1.0 if kind == "difference" else 0.0, t * t / (n + t * t)
    low = np.minimum(low, least + (means - least) * (1.0 - unseen))
    high = np.maximum(high, means + (1.0 - means) * unseen)
    return se, np.clip(low, least, means), np.clip(high, means, 1.0)  # rounding at the ends


def degrees_of_freedom(sizes: Array) -> float:
    """Satterthwaite's degrees of freedom of the CR2 variance of a mean, for two or more clusters of these sizes.

    2 E[V]^2 / Var[V] for V = sum of a_g (y_g - w.y)^2, with independent cluster means y_g of equal variance,
    shares w_g = sizes_g / n and a_g = w_g^2 / (1 - w_g). That is tr(B)^2 / tr(B B) for
    B = diag(a) - a w' - w a' + A w w', A being the sum of a.
    """
    w = sizes / sizes.sum()
    a = w**2 / (1.0 - w)
    total, aw, aa, ww = float(a.sum()), float(a @ w), float(a @ a), float(w @ w)
    trace = total - 2.0 * aw + total * ww
    cross = -2.0 * float(a**2 @ w) + total * float(a @ w**2)
    square = 2.0 * aw**2 + 2.0 * aa * ww - 4.0 * total * aw * ww + (total * ww) ** 2
    return min(max(trace**2 / (aa + 2.0 * cross + square), 1.0), len(sizes) - 1.0)


def told_apart(se: float, degrees: float, alpha: float = 0.05) -> float:
    """The smallest difference of this standard error that is told from 0 in 80 % of cases, two-sided at alpha."""
    from scipy.special import stdtrit  # loaded late: scipy costs more than the rest of the start-up

    return se * float(stdtrit(degrees, 1.0 - alpha / 2.0) + stdtrit(degrees, POWER))


def bootstrap(
    values: Sequence[float] | Array, clusters: Sequence[Hashable] | Numbers, seed: int = 0, draws: int = 4000
) -> tuple[float, float] | None:
    """95 % percentile interval of the mean, from whole clusters drawn with replacement.

    None for one cluster, and for clusters with equal means: every draw of these is the same. With few clusters it
    is too narrow (about 90 % for 11 scenes): stated beside the t interval, not instead.
    """
    index, groups = _indexed(clusters)
    if groups < 2:
        return None
    totals = np.bincount(index, weights=np.asarray(values, dtype=np.float64), minlength=groups)
    sizes = np.bincount(index, minlength=groups)
    means = totals / sizes
    if np.ptp(means) <= _ROUNDING * np.abs(means).max():
        return None
    drawn = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1.0 / groups), size=draws)
    low, high = np.quantile((drawn @ totals) / (drawn @ sizes), [0.025, 0.975])
    return float(low), float(high)


def mcnemar(wins: int, losses: int) -> float:
    """Exact two-sided p-value that, of the pairs in which two runs differ, either is as likely to win.

    Takes pairs as independent, which episodes of one scene or trajectory are not.
    """
    from scipy.special import bdtr

    n = wins + losses
    return min(1.0, 2.0 * float(bdtr(min(wins, losses), n, 0.5))) if n else 1.0


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted by Holm's step-down method (1979); None are no comparisons and stay None."""
    order = sorted((i for i, p in enumerate(values) if p is not None), key=lambda i: values[i] or 0.0)
    adjusted: list[float | None] = [None] * len(values)
    least = 0.0
    for place, i in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * (values[i] or 0.0)))
        adjusted[i] = least
    return adjusted


def p_value(difference: Estimate | None) -> float | None:
    """Two-sided p of a mean against 0, by Student's t. None where it has no standard error, or one of 0."""
    if difference is None or not difference.se or difference.degrees is None:
        return None
    from scipy.special import stdtr

    return 2.0 * float(stdtr(difference.degrees, -abs(difference.mean) / difference.se))


def differs(difference: Estimate | None, p: float | None) -> bool:
    """Whether a difference is told from 0 at 5 %. p: adjusted; without one the interval tells."""
    if difference is None or p is not None:
        return p is not None and p < 0.05
    return (
        difference.low is not None and difference.high is not None and not difference.low <= 0.0 <= difference.high
    )


def places(
    there: Sequence[int], differences: Mapping[tuple[int, int], Estimate | None], sign: float = 1.0
) -> tuple[dict[int, tuple[int, int]], dict[tuple[int, int], float | None]]:
    """The places that each may have among all, from and to, and p-values of the pairs adjusted for all (Holm).

    differences: of the second minus the first, for each two of `there`. sign: -1 where less is better. The first
    place is 1 more than are told to be better, the last one as many as are not told to be worse.
    """
    p = dict(zip(differences, holm([p_value(each) for each in differences.values()]), strict=True))
    first, last = dict.fromkeys(there, 1), dict.fromkeys(there, len(there))
    for (a, b), difference in differences.items():
        if difference is not None and differs(difference, p[a, b]):
            better, worse = (b, a) if sign * difference.mean > 0.0 else (a, b)
            first[worse] += 1
            last[better] -= 1
    return {i: (first[i], last[i]) for i in there}, p


def _indexed(clusters: Sequence[Hashable] | Numbers) -> tuple[Numbers, int]:
    """Number of its cluster for each value, and how many clusters there are, in the order in which they appear."""
    if isinstance(clusters, np.ndarray):
        if len(clusters) and clusters.max() >= len(clusters):  # a few of many: the work is that of the few
            clusters = np.unique(clusters, return_inverse=True)[1]
        first = np.full(int(clusters.max()) + 1 if len(clusters) else 0, len(clusters))
        first[clusters[::-1]] = np.arange(len(clusters))[::-1]  # of several, the last one stays
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(len(first))
        return rank[clusters], int(np.count_nonzero(first < len(clusters)))
    labels = {label: i for i, label in enumerate(dict.fromkeys(clusters))}
    return np.array([labels[label] for label in clusters], dtype=np.int64), len(labels)


def _student_t(degrees: float) -> float:
    """97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # loaded late: scipy costs more than the rest of the start-up

    return float(stdtrit(degrees, 0.975))


def _inverse_effective_n(means: Array, variance: Array, n: float, kind: Kind, t: float) -> Array:
    """One over the number of independent episodes that would give this variance; bounded for a rate."""
    spread = means * (1.0 - means)
    inverse: Array = variance / np.where(spread > 0.0, spread, 1.0)
    return np.maximum(inverse, (_NORMAL / t) ** 2 / n) if kind == "rate" else inverse


def _wilson(mean: Array, inverse_n: Array, t: float) -> tuple[Array, Array]:
    """Wilson's interval with Student's t for the normal quantile."""
    shift = t * t * inverse_n
    center = (mean + shift / 2.0) / (1.0 + shift)
    half = np.sqrt(t * t * mean * (1.0 - mean) * inverse_n + shift * shift / 4.0) / (1.0 + shift)
    return center - half, center + half
