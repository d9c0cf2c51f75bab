"""Means with honest uncertainty.

Episodes of one scene resemble each other, so the standard error is clustered by scene (cluster-robust with the
G / (G - 1) correction; intervals use Student's t with G - 1 degrees of freedom, G being the number of scenes;
cf. Miller 2024, arXiv 2411.00640). Rates get a Wilson interval with the effective sample size that the clustered
standard error implies, so that a rate of 0 or 100 % does not pretend to be certain.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` episodes in `clusters` scenes, its standard error and 95 % interval.

    se, low and high are None where one cluster (or episode) leaves nothing to estimate them from.
    """

    mean: float
    n: int
    clusters: int
    se: float | None
    low: float | None
    high: float | None


Kind = Literal["rate", "fraction", "positive", "free"]
"""What the values are: 0 or 1, anything in [0, 1], not negative, or anything. Intervals stay in that range."""


def estimate(values: Sequence[float], clusters: Sequence[Hashable], kind: Kind = "free") -> Estimate | None:
    """Mean of `values` with a standard error clustered by `clusters` (same length). None for no values."""
    if len(values) != len(clusters):
        raise ValueError("every value needs a cluster")
    if not values:
        return None
    x = np.asarray(values, dtype=np.float64)
    labels = {label: i for i, label in enumerate(dict.fromkeys(clusters))}
    index = np.array([labels[label] for label in clusters])
    # Summed from left to right, as VLN-CE does: published aggregates come out to the last digit.
    mean, groups = float(np.cumsum(x)[-1]) / len(x), len(labels)
    if groups < 2:
        return Estimate(mean, len(x), groups, None, None, None)
    totals = np.bincount(index, weights=x - mean, minlength=groups)
    se = math.sqrt(groups / (groups - 1) * float(totals @ totals)) / len(x)
    t = _student_t(groups - 1)
    low, high = mean - t * se, mean + t * se
    if kind == "rate":
        low, high = _wilson(mean, _effective_n(mean, se, len(x)), t)
    elif kind == "fraction":
        low, high = max(0.0, low), min(1.0, high)
    elif kind == "positive":
        low = max(0.0, low)
    return Estimate(mean, len(x), groups, se, low, high)


def _student_t(degrees: int) -> float:
    """97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # loaded late: scipy costs more than the rest of the start-up

    return float(stdtrit(degrees, 0.975))


def _effective_n(mean: float, se: float, n: int) -> float:
    """Number of independent episodes that would give this standard error; never more than there are."""
    variance = mean * (1.0 - mean)
    if se == 0.0 or variance == 0.0:
        return float(n)
    return min(float(n), variance / se**2)


def _wilson(mean: float, n: float, z: float) -> tuple[float, float]:
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    # Rounding must not push the mean itself out of its interval at 0 or 1.
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))
