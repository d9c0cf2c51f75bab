"""Looks after some of the seeds: what is taken, what each spends, and that all together err in 5 % at most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.matrix.documents import make_document
from vlnbench.errors import UsageError
from vlnbench.matrix.plots import effects_figure
from vlnbench.matrix.statistics.effects import findings
from vlnbench.matrix.statistics.looks import ALPHA, look_at, of_look, read_looks, spent
from vlnbench.matrix.table import markdown

SEEDS = ["seed=1", "seed=2", "seed=3", "seed=4"]
AXES = {"part": ["x", "y"], "seed": SEEDS}


@pytest.mark.parametrize(
    "given", [[], [0, 4], [2, 2, 4], [4, 2], [2], [2, 5], [True, 4], [2.0, 4], "2, 4", {2: 4}]
)
def test_looks_rise_to_all_seeds(given: Any) -> None:
    with pytest.raises(UsageError, match=r"m\.yaml: looks: expected numbers of seeds that rise to all 4"):
        read_looks(given, AXES, "m.yaml")


def test_no_looks_are_no_change() -> None:
    assert read_looks(None, AXES, "m.yaml") == ()
    assert look_at(make_document(AXES)) is None


@pytest.mark.parametrize(
    ("half", "whole"),
    [((0.25, 8.9e-5), 0.05), ((0.5, 0.0055746), 0.05)],  # 2 - 2 Phi(1.959964 / sqrt(t)), from a table of Phi
)
def test_the_shares_are_those_of_obrien_and_fleming(half: tuple[float, float], whole: float) -> None:
    assert spent(half[0]) == pytest.approx(half[1], rel=0.01)
    assert spent(1.0) == pytest.approx(whole)


def planned(looks: list[int], unfinished: str) -> dict[str, Any]:
    document = make_document(AXES)
    rows = [
        {**row, "status": "pending", "results": dict.fromkeys(row["results"])}
        if row["labels"]["seed"] >= unfinished
        else row
        for row in document["rows"]
    ]
    return {**document, "rows": rows, "looks": looks}


def test_between_looks_nothing_is_added() -> None:
    two, three = planned([2, 4], "seed=3"), planned([2, 4], "seed=4")
    assert findings(two, "SR") == findings(three, "SR")
    look = look_at(three)
    assert look is not None
    assert (look.number, look.of, look.seeds) == (1, 2, ("seed=1", "seed=2"))
    assert look.alpha == spent(0.5)
    assert [len(drawn_dots(each)) for each in (two, three)] == [2, 2]


def drawn_dots(document: dict[str, Any]) -> Any:
    """The pairs of the first effect in the plot."""
    figure = effects_figure(document)
    assert figure is not None
    return figure.axes[0].collections[0].get_offsets()


def test_before_the_first_look_there_are_no_effects() -> None:
    document = planned([2, 4], "seed=2")
    found, count = findings(document, "SR")
    assert count == 0
    assert all(not effect.differences for each in found.values() for effect in each)
    assert effects_figure(document) is None
    assert "Effects are computed after 2 and 4 seeds, and so many are not there yet" in markdown(document)


def test_the_last_look_spends_what_is_left() -> None:
    document = planned([2, 4], "z")
    plain = {**document, "looks": []}
    look = look_at(document)
    assert look is not None
    assert look.alpha == pytest.approx(ALPHA - spent(0.5))
    (found, _), (before, _) = findings(document, "SR"), findings(plain, "SR")
    for split, effects in found.items():
        for effect, single in zip(effects, before[split], strict=True):
            assert effect.estimate == single.estimate
            assert effect.adjusted is not None
            assert single.adjusted is not None
            assert effect.adjusted == pytest.approx(min(1.0, single.adjusted * ALPHA / look.alpha))
            assert effect.together is not None
            assert single.together is not None
            assert effect.together[0] <= single.together[0]
    assert "Look 2 of 2, planned after 2 and 4 seeds" in markdown(document)


def test_a_failed_setting_is_no_reason_to_wait() -> None:
    document = planned([2, 4], "z")
    document["rows"][0] = {**document["rows"][0], "status": "crash", "results": {}}
    look = look_at(document)
    assert look is not None
    assert look.number == 2
    assert len(of_look(document)[0]["rows"]) == len(document["rows"])


def test_all_looks_together_err_in_five_percent() -> None:
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((40_000, 4)).cumsum(axis=1) / np.sqrt(np.arange(1, 5))
    bounds = {2: spent(0.5), 3: spent(0.75) - spent(0.5), 4: ALPHA - spent(0.75)}
    from scipy.stats import norm

    wrong = np.zeros(len(steps), dtype=bool)
    for seeds, alpha in bounds.items():
        wrong |= np.abs(steps[:, seeds - 1]) > norm.isf(alpha / 2)
    naive = (np.abs(steps[:, 1:]) > norm.isf(ALPHA / 2)).any(axis=1)
    assert wrong.mean() < ALPHA
    assert naive.mean() > 0.09
