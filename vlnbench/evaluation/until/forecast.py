"""How many more pairs of episodes it would take to tell two runs apart, if the rest were like those so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vlnbench.evaluation.until.sequence import LOOK, STAKES, gains, is_rich

_DRAWS = 200


def more_pairs(differences: Sequence[float], size: int, draws: int = _DRAWS) -> tuple[int, int, int] | None:
    """Quartiles of the number of pairs until a mean difference of 0 is ruled out; at most those of `size` left.

    differences: of the pairs so far, in [-1, 1]. The rest is drawn from them with replacement, `draws` times. None
    where they say nothing: there are none, or all are 0.
    """
    if not any(differences):
        return None
    seen = (1.0 + np.asarray(differences, dtype=np.float64)) / 2.0
    left = size - len(seen)
    coming = np.random.default_rng(0).choice(seen, size=(left, draws))
    capital, totals = np.zeros((2, STAKES, draws)), np.zeros(draws)
    needed = np.full(draws, left)
    for i, values in enumerate([*np.broadcast_to(seen[:, None], (len(seen), draws)), *coming]):
        expected = (size / 2.0 - totals) / (size - i)  # what the others would have to be on average
        capital += gains(values, expected)
        totals += values
        if i < len(seen):
            continue
        ruled_out = is_rich(capital) | (expected < 0.0) | (expected > 1.0)
        needed[ruled_out] = np.minimum(needed[ruled_out], i + 1 - len(seen))
    looked = np.minimum(LOOK * np.ceil((len(seen) + needed) / LOOK), size) - len(seen)
    low, middle, high = np.quantile(looked, (0.25, 0.5, 0.75), method="nearest")
    return int(low), int(middle), int(high)
