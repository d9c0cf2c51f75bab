"""The smallest effect: by hand, against simulated matrices, and from a matrix that was run."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtrit

from vlnbench.matrix.statistics.contrasts import Contrast, comparisons
from vlnbench.matrix.statistics.crossed import contrast, spreading
from vlnbench.matrix.statistics.power import ASSUMED, Components, Layout, components, detectable, layouts

COMMITTED = Path(__file__).parents[3] / "results" / "tunable_parts_x_envdrop" / "matrix.json"


def rejected(layout: Layout, found: Components, effect: float, matrices: int) -> float:
    """How often simulated matrices of one context tell two settings apart that differ by `effect`."""
    rng = np.random.default_rng(0)
    sizes = np.array(layout.scenes, dtype=np.float64)
    seeds = layout.pairs[0]
    label = np.repeat([0, 1], seeds)
    shape = (matrices, 2 * seeds, len(sizes))
    values = effect * label[:, None] + rng.normal(0, found.training**0.5, (matrices, 2 * seeds, 1))
    values = values + rng.normal(0, (found.scene / 2) ** 0.5, (matrices, 2, len(sizes)))[:, label]
    sums = values * sizes + rng.normal(0, found.episode**0.5, shape) * np.sqrt(sizes)
    weights = np.where(label == 1, 1.0, -1.0) / seeds
    result = contrast(sums, sizes, weights, spreading(sums, sizes, list(label)))
    return float(np.mean(np.abs(result.mean) > stdtrit(result.degrees, 0.975) * result.se))


@pytest.mark.parametrize(
    ("layout", "found"),
    [
        (Layout((3,), (3, 3), (15,) * 20), ASSUMED),
        (Layout((5,), (5, 5), (5,) * 60), ASSUMED),
        (Layout((8,), (8, 8), (15,) * 60), Components(0.05**2, 0.2, 0.02**2, "")),
        (Layout((5,), (5, 5), tuple(range(5, 45))), Components(0.01**2, 0.1, 0.2**2, "")),
    ],
)
def test_what_is_called_detectable_is_detected_in_four_of_five_matrices(layout: Layout, found: Components) -> None:
    smallest = detectable(layout, found)
    assert smallest is not None
    assert 0.75 <= rejected(layout, found, smallest, 4000) <= 0.85
    assert rejected(layout, found, 0.5 * smallest, 4000) < 0.45


def test_the_smallest_difference_by_hand() -> None:
    """Two pairs in each of two contexts, 20 scenes of 5: q = 2 (1/2 + 1/2) / 4 = 0.5, T = 0.5 (0.001 + 0.2 / 100),
    S - R = 0.01 / 20; four settings of two seeds have 4 degrees, 20 scenes 19."""
    layout = Layout((2, 2), (2, 2, 2, 2), (5,) * 20)
    between, scenes = 0.0015, 0.0005
    degrees = (between + scenes) ** 2 / (between**2 / 4 + scenes**2 / 19)
    expected = (between + scenes) ** 0.5 * (stdtrit(degrees, 0.975) + stdtrit(degrees, 0.8))
    assert detectable(layout, Components(0.001, 0.2, 0.01, "")) == pytest.approx(expected)


def test_more_of_anything_makes_it_smaller_and_more_comparisons_larger() -> None:
    layout = Layout((3, 3), (3, 3, 3, 3), (10,) * 20)
    base = detectable(layout, ASSUMED)
    assert base is not None
    for more in (layout.more_seeds(2), layout.more_episodes(2), layout.more_scenes(2)):
        smaller = detectable(more, ASSUMED)
        assert smaller is not None
        assert smaller < base
    corrected = detectable(layout, ASSUMED, 10)
    assert corrected is not None
    assert corrected > base


@pytest.mark.parametrize(
    "layout", [Layout((1,), (1, 1), (5, 5)), Layout((2,), (2, 2), (5,)), Layout((), (), (5, 5))]
)
def test_without_seeds_or_scenes_or_pairs_nothing_is_detectable(layout: Layout) -> None:
    assert detectable(layout, ASSUMED) is None


def test_layouts_count_like_pairs_in_every_context() -> None:
    """b against a has three pairs in x and one in y; y's partners of z are not there."""
    axes = {"data": ["a", "b"], "part": ["x", "y", "z"], "seed": ["0", "1", "2"]}
    cells = [("a", "x", s) for s in "012"] + [("b", "x", s) for s in "012"] + [("a", "y", "0"), ("b", "y", "0")]
    labels = [dict(zip(axes, cell, strict=True)) for cell in cells]
    found = layouts(labels, comparisons(axes, [], labels), [4, 4], range(len(labels)))
    assert {(asked.axis, asked.name): layout for asked, layout in found.items()} == {
        ("data", "b"): Layout((3, 1), (3, 3, 1, 1), (4, 4)),
        ("part", "y"): Layout((1, 1), (3, 3, 1, 1), (4, 4)),
        ("part", "z"): Layout((), (3, 3, 1, 1), (4, 4)),
    }


def test_ways_to_evaluate_one_training_are_one_context_and_no_trainings_apart() -> None:
    axes = {"part": ["a", "b"], "way": ["w", "v"], "seed": ["0", "1", "2"]}
    labels = [dict(zip(axes, cell, strict=True)) for cell in product(*axes.values())]
    trained = [each["part"] + each["seed"] for each in labels]
    asked = list(comparisons(axes, [], labels))
    found = layouts(labels, asked, [4, 4], trained)
    assert list(found.values()) == [Layout((3,), (3, 3), (4, 4)), Layout((3, 3), (3, 3), (4, 4), False)]
    sd = replace(ASSUMED, training=1.0)
    assert detectable(found[asked[1]], sd) == detectable(found[asked[1]], ASSUMED)


def test_every_pair_of_a_contrast_is_a_context() -> None:
    """Two seeds of p and q, one of r and s: the two degrees of freedom are those of the whole matrix."""
    cells = [("p", "0"), ("p", "1"), ("q", "0"), ("q", "1"), ("r", "0"), ("s", "0")]
    labels = [{"part": part, "seed": seed} for part, seed in cells]
    asked = Contrast("part", "more", (("q", "p"), ("s", "r")))
    assert layouts(labels, [asked], [4, 4], range(len(labels))) == {asked: Layout((2, 1), (2, 2, 1, 1), (4, 4))}


def test_variances_come_from_a_matrix_that_was_run() -> None:
    document = json.loads(COMMITTED.read_text())
    found = components(document, "val_unseen", "SR")
    assert found is not None
    assert "29 settings, 8 degrees of freedom" in found.source
    assert 0.05 < found.episode < 0.15  # about p (1 - p) of a rate of 13 %
    one_seed = [row for row in document["rows"] if row["labels"]["seed"] == "seed=0"]
    assert components({**document, "rows": one_seed}, "val_unseen", "SR") is None
    assert replace(found, source="").training >= 0.0
