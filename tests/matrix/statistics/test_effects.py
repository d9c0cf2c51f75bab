"""Effects of an axis on numbers small enough to work out by hand; the arithmetic stands beside the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from tests.matrix.documents import make_document
from vlnbench.evaluation.stats import holm
from vlnbench.matrix.plots import pareto
from vlnbench.matrix.statistics.crossed import contrast, spreading
from vlnbench.matrix.statistics.effects import (
    Effect,
    Spread,
    Standing,
    effects,
    findings,
    mean,
    metric,
    over_seeds,
    over_trainings,
    pooled,
    same_episodes,
    spread,
    standings,
)
from vlnbench.matrix.table import markdown

T1 = 12.706204736
"""97.5 % quantile of Student's t with 1 degree of freedom."""

Scenes = Mapping[str, tuple[int, float]]


def row(labels: dict[str, str], value: float | None = None, scenes: Scenes | None = None) -> dict[str, Any]:
    """A setting with an SR in val_seen, or one that failed."""
    result = {"metrics": {"SR": {"mean": value}, "CLS": None}, "scenes": {"SR": scenes or {}}}
    found = None if value is None else result
    return {"name": ", ".join(labels.values()), "labels": labels, "results": {"val_seen": found}}


def matrix(axes: dict[str, list[str]], *rows: dict[str, Any]) -> list[Effect]:
    return effects({"axes": axes, "rows": rows}, "val_seen", "SR")


def test_every_label_is_compared_with_the_first_of_its_axis() -> None:
    axes = {"data": ["a", "b", "c"], "part": ["x", "y"]}
    values = {"ax": 0.25, "ay": 0.5, "bx": 0.5, "by": 0.625, "cx": 0.125, "cy": 0.75}
    rows = [row({"data": name[0], "part": name[1]}, value) for name, value in values.items()]
    found = [(each.axis, each.label, each.reference, each.differences) for each in matrix(axes, *rows)]
    assert found == [
        ("data", "b", "a", (0.25, 0.125)),  # bx - ax, by - ay
        ("data", "c", "a", (-0.125, 0.25)),
        ("part", "y", "x", (0.25, 0.125, 0.625)),
    ]


def test_the_labels_of_a_row_may_stand_in_any_order() -> None:
    axes = {"data": ["a", "b"], "part": ["x"]}
    (found,) = matrix(axes, row({"data": "a", "part": "x"}, 0.25), row({"part": "x", "data": "b"}, 1.0))
    assert found.differences == (0.75,)


def test_seeds_are_no_axis_to_compare() -> None:
    axes = {"seed": ["s0", "s1"]}
    assert matrix(axes, row({"seed": "s0"}, 0.25), row({"seed": "s1"}, 0.5)) == []


def test_without_a_partner_there_is_no_difference() -> None:
    """The setting to compare with failed."""
    found = matrix({"data": ["a", "b"]}, row({"data": "a"}), row({"data": "b"}, 0.5, {"s": (2, 1.0)}))
    assert found == [Effect("data", "b", "a", (), None, contexts=0)]
    assert found[0].spread is None


def test_differences_have_a_mean_and_a_deviation() -> None:
    """0.25 and 0.75: deviations 0.25 each, so sqrt(2 * 0.0625 / 1)."""
    assert Effect("data", "b", "a", (0.25, 0.75), None).spread == Spread(2, 0.5, pytest.approx(0.125**0.5))
    assert Effect("data", "b", "a", (0.25,), None).spread == Spread(1, 0.25, None)
    assert spread([None, 1.0]) == Spread(1, 1.0, None)


PARTS = {"data": ["a", "b"], "part": ["x", "y"]}


def two_pairs(last: Scenes) -> list[dict[str, Any]]:
    return [
        row({"data": "a", "part": "x"}, 0.0, {"s": (2, 0.0), "t": (2, 1.0)}),
        row({"data": "b", "part": "x"}, 0.0, {"s": (2, 1.0), "t": (2, 1.0)}),
        row({"data": "a", "part": "y"}, 0.0, {"s": (2, 0.0), "t": (2, 1.0)}),
        row({"data": "b", "part": "y"}, 0.0, last),
    ]


def test_the_interval_of_several_pairs_is_of_their_mean_by_scene() -> None:
    """Sums of b - a: in s 1 and 2, on average 1.5; in t 0 and 1, 0.5. Mean (1.5 + 0.5) / 4 = 0.5; deviations
    1.5 - 2 * 0.5 = 0.5 and -0.5, shares 1/2: variance (0.25 / 0.5 + 0.25 / 0.5) / 16 = 1/16, SE 1/4."""
    (found, _) = matrix(PARTS, *two_pairs({"t": (2, 2.0), "s": (2, 2.0)}))
    assert found.estimate is not None
    expected = (0.5, 4, 2, 0.25, 0.5 - T1 / 4, 0.5 + T1 / 4, 1.0)
    assert astuple(found.estimate) == pytest.approx(expected)


@pytest.mark.parametrize("last", [{"s": (2, 2.0)}, {"s": (2, 2.0), "t": (3, 2.0)}, {"s": (2, 2.0), "u": (2, 2.0)}])
def test_there_is_no_interval_over_different_episodes(last: Scenes) -> None:
    (found, _) = matrix(PARTS, *two_pairs(last))
    assert (len(found.differences), found.estimate) == (2, None)


def test_a_single_pair_is_two_runs() -> None:
    """No episode differs; of four in two scenes, T1^2 / (4 + T1^2) = 0.975823 may be of a kind that does."""
    same = {"s": (2, 0.0), "t": (2, 1.0)}
    (found,) = matrix({"data": ["a", "b"]}, row({"data": "a"}, 0.25, same), row({"data": "b"}, 0.25, same))
    assert found.estimate is not None
    assert (found.estimate.low, found.estimate.high) == pytest.approx((-0.975823, 0.975823), abs=1e-6)


def test_several_pairs_that_agree_have_no_interval() -> None:
    rows = two_pairs({"s": (2, 1.0), "t": (2, 1.0)})
    rows[1]["results"] = rows[3]["results"] = rows[0]["results"]
    (found, _) = matrix(PARTS, *rows)
    assert found.estimate is not None
    assert (found.estimate.se, found.estimate.low, found.estimate.high) == (0.0, None, None)


def test_what_was_not_evaluated_has_no_mean() -> None:
    there, failed = row({"data": "a"}, 0.25), row({"data": "a"})
    assert (metric(there, "val_seen", "SR"), mean(there, "val_seen", "SR")) == ({"mean": 0.25}, 0.25)
    for each, label in ((failed, "SR"), (there, "CLS"), (there, "NE")):
        assert (metric(each, "val_seen", label), mean(each, "val_seen", label)) == (None, None)


def test_rows_are_grouped_without_their_seed() -> None:
    rows = [row({"data": data, "seed": seed, "part": "x"}) for data in "ba" for seed in ("s0", "s1")]
    assert over_seeds(rows) == [("b, x", rows[:2]), ("a, x", rows[2:])]
    lone = [row({"seed": "s0"}), row({"seed": "s1"})]  # nothing but a seed: each is called by its name
    assert over_seeds(lone) == [("s0", lone[:1]), ("s1", lone[1:])]


def test_the_front_by_hand() -> None:
    """(1, 5) is the cheapest, of equal cost (2, 7) is the better, (3, 7) costs more for the same, (4, 9) gains."""
    assert pareto([(4.0, 9.0), (2.0, 6.0), (3.0, 7.0), (2.0, 7.0), (1.0, 5.0), (5.0, 8.0)]) == [4, 3, 0]
    assert pareto([]) == []


def seeded(values: Mapping[str, Sequence[tuple[float, float]]]) -> list[dict[str, Any]]:
    """Settings `data part` with sums of two scenes of 10 for each of their seeds."""
    return [
        row(
            {"data": name[0], "part": name[1], "seed": f"s{seed}"},
            (s + t) / 20,
            {"s": (10, s), "t": (10, t)},
        )
        for name, seeds in values.items()
        for seed, (s, t) in enumerate(seeds)
    ]


SEEDED = {"data": ["a", "b"], "part": ["x", "y"], "seed": ["s0", "s1", "s2"]}


def test_every_context_counts_the_same_however_many_pairs_it_has() -> None:
    """In x, b is 0.1, 0.1 and 0.1 above a, in y 0.5: (0.1 + 0.5) / 2, not (3 * 0.1 + 0.5) / 4."""
    rows = seeded({"ax": [(1, 1)] * 3, "bx": [(2, 2)] * 3, "ay": [(1, 1)], "by": [(6, 6)]})
    (found, _) = matrix(SEEDED, *rows)
    assert (found.contexts, len(found.differences)) == (2, 4)
    assert found.estimate is not None
    assert found.estimate.mean == pytest.approx(0.3)
    document = {"axes": SEEDED, "rows": rows, "splits": ["val_seen"]}
    in_x, in_y = effects(document, "val_seen", "SR", by_context=True)[:2]
    assert [(each.context, len(each.differences)) for each in (in_x, in_y)] == [("x", 3), ("y", 1)]
    assert (in_x.estimate, in_y.estimate) != (None, None)


def test_trainings_that_differ_widen_an_interval() -> None:
    """The same mean difference of 0.2 in both scenes; once all seeds agree, once they lie 0.2 apart."""
    alike = {"ax": [(2, 2)] * 3, "bx": [(4, 4)] * 3, "ay": [(2, 2)] * 3, "by": [(4, 4)] * 3}
    apart = {
        "ax": [(0, 0), (2, 2), (4, 4)],
        "bx": [(2, 2), (4, 4), (6, 6)],
        "ay": [(2, 2)] * 3,
        "by": [(4, 4)] * 3,
    }
    (one, _), (other, _) = matrix(SEEDED, *seeded(alike)), matrix(SEEDED, *seeded(apart))
    assert one.estimate is not None
    assert (one.estimate.mean, one.estimate.se, one.p) == (pytest.approx(0.2), 0.0, None)
    assert other.estimate is not None
    assert (other.over, other.estimate.mean) == ("episodes and trainings", pytest.approx(0.2))
    # s^2: 2 settings of 3 seeds 0.2 apart, 0.08 each, over 4 settings of 2 degrees: 0.02; q = 12 / 36.
    assert other.estimate.se == pytest.approx((0.02 / 3) ** 0.5)
    assert other.estimate.degrees == pytest.approx(8.0)


def test_too_few_seeds_borrow_from_the_other_settings() -> None:
    """x has one seed each; how trainings spread is known from y alone, whose four degrees are enough.

    s^2 = (0.08 + 0.08) / 4 and q = 2. Differences by scene 1 and 2, of mean 0.15: S = (0.25 / 0.5 * 2) / 400."""
    values = {"ax": [(1, 2)], "bx": [(2, 4)], "ay": [(0, 0), (2, 2), (4, 4)], "by": [(2, 2), (4, 4), (6, 6)]}
    document = {"axes": SEEDED, "rows": seeded(values), "splits": ["val_seen"]}
    found = effects(document, "val_seen", "SR", by_context=True)[0]
    assert (found.context, found.over) == ("x", "episodes and trainings")
    assert found.estimate is not None
    assert found.estimate.se == pytest.approx((2 * 0.04 + 0.0025) ** 0.5)


def test_unlike_episodes_are_not_the_same() -> None:
    one = {"scenes": {"SR": {"s": (2, 1.0)}}, "identity": {"dataset_sha256": "a", "agent": "x", "seed": 1}}
    agent = {**one, "identity": {"dataset_sha256": "a", "agent": "y", "seed": 2}}
    data = {**one, "identity": {"dataset_sha256": "b", "agent": "x", "seed": 1}}
    assert same_episodes(one, agent, "SR")
    assert not same_episodes(one, data, "SR")


def test_effects_of_all_splits_are_corrected_together() -> None:
    document = make_document({"data": ["a", "b"], "part": ["x", "y"], "seed": ["s0", "s1"]})
    for i, each in enumerate(document["rows"]):  # scenes that differ in more than their level
        each["results"]["val_seen"]["scenes"]["SR"][f"s{i}"][1] += 3
    found, count = findings(document, "SR")
    every = [effect for each in found.values() for effect in each]
    tested = [effect.p for effect in every if effect.p is not None]
    assert count == len(tested) > 1
    adjusted = [effect.adjusted for effect in every if effect.p is not None]
    assert adjusted == pytest.approx(holm(tested))


def test_a_contrast_of_pairs_is_the_effect_of_an_axis_that_its_labels_could_be() -> None:
    """Two pairs of four labels, and the same settings as two axes of two labels: equal to the last digit."""
    crossed = make_document({"eyes": ["shut", "open"], "ears": ["shut", "open"], "seed": ["s0", "s1", "s2"]})
    for i, each in enumerate(crossed["rows"]):
        each["results"]["val_seen"]["scenes"]["SR"][f"s{i % 10}"][1] += 3
    rows = [
        {**each, "labels": {"parts": f"{each['labels']['eyes']} {each['labels']['ears']}", "seed": seed}}
        for each in crossed["rows"]
        for seed in [each["labels"]["seed"]]
    ]
    pairs = [["open shut", "shut shut"], ["open open", "shut open"]]
    axes = {"parts": ["shut shut", "shut open", "open shut", "open open"], "seed": crossed["axes"]["seed"]}
    asked = {"name": "eyes open", "axis": "parts", "pairs": pairs}
    flat = {**crossed, "axes": axes, "rows": rows, "contrasts": [asked]}
    wanted, found = (effects(each, "val_seen", "SR") for each in (crossed, flat))
    assert (found[-1].axis, found[-1].label, found[-1].reference) == ("parts", "eyes open", "others, in 2 pairs")
    assert sorted(found[-1].differences) == sorted(wanted[0].differences)
    assert found[-1].contexts == wanted[0].contexts == 2
    assert found[-1].estimate is not None
    assert wanted[0].estimate is not None
    assert astuple(found[-1].estimate) == pytest.approx(astuple(wanted[0].estimate))
    assert found[-1].p == pytest.approx(wanted[0].p)
    apart = effects(flat, "val_seen", "SR", by_context=True)[-2:]
    assert [each.context for each in apart] == [" - ".join(pair) for pair in pairs]
    text = markdown(flat)
    assert "- eyes open: open shut - shut shut; open open - shut open" in text
    assert "p (Holm) is corrected for the 8 comparisons" in text


def test_few_seeds_do_not_tell_how_trainings_differ() -> None:
    """Two degrees of freedom: as if no setting had a second seed; with three, trainings count."""
    axes = {"data": ["a", "b", "c", "d"], "seed": ["s0", "s1"]}
    document = make_document(axes)
    for i, each in enumerate(document["rows"]):
        each["results"]["val_seen"]["scenes"]["SR"][f"s{i}"][1] += 3

    def last(again: str) -> Effect:
        """The effect of d, which has one seed, where these labels have two."""
        kept = [row for row in document["rows"] if row["labels"]["seed"] == "s0" or row["labels"]["data"] in again]
        return effects({**document, "rows": kept}, "val_seen", "SR")[-1]

    alone, two, three = last(""), last("bc"), last("abc")
    assert (alone.over, two.over, three.over) == ("episodes", "episodes", "episodes and trainings")
    assert two.estimate == alone.estimate != three.estimate


def test_settings_stand_beside_references() -> None:
    """Above, below and like a rule that succeeds in half of the episodes; scenes and seeds differ a little."""
    scenes = "stuvwxyz"

    def result(level: float, wobble: int) -> dict[str, Any]:
        sums = {scene: (10, level + (i + wobble) % 3 - 1) for i, scene in enumerate(scenes)}
        value = sum(total for _, total in sums.values()) / 80
        return {"metrics": {"SR": {"mean": value}}, "scenes": {"SR": sums}}

    rows = [
        {
            "name": f"{name}{seed}",
            "labels": {"data": name, "seed": seed},
            "results": {"val_seen": result(level, int(seed))},
        }
        for name, level in (("a", 9.0), ("b", 5.0), ("c", 1.0))
        for seed in "012"
    ]
    rule = {"name": "rule", "results": {"val_seen": result(5.0, 1)}}
    document = {"axes": {}, "rows": rows, "splits": ["val_seen"], "references": [rule]}
    assert standings(document, "SR") == ({"val_seen": [Standing("rule", 1, 1, 1)]}, 3)
    assert standings({**document, "references": []}, "SR") == ({"val_seen": []}, 0)


def test_the_table_says_why_there_is_no_interval() -> None:
    document = make_document({"data": ["a", "b", "c"], "part": ["x", "y"]})
    for each in document["rows"][:4]:  # c differs, and a and b do not
        each["results"] = document["rows"][0]["results"]
    document["rows"][4]["results"]["val_seen"]["scenes"]["SR"]["s0"] = [30, 9.0]
    lines = [" ".join(line.split()) for line in markdown(document).splitlines()]
    start = "| data | b | a | 2 | 2 | +0.0 ± 0.0 | all equal | - | - | +0.0 ± 0.0 | all equal | - | - |"
    assert lines.count(start) == 2  # one for each split
    (changed, _) = (line.split(" | ") for line in lines if "| data | c | a |" in line)
    assert " to " in changed[6]
    assert changed[10] == "all equal"


def test_bases_that_are_drawn_with_the_seed_cancel_where_settings_are_compared() -> None:
    axes = {"data": ["a", "b"], "seed": list("vwxyz")}
    rows = []
    for number, seed in enumerate(axes["seed"]):
        for data in axes["data"]:
            good = 10 * number + (data == "b") * (2 + number % 2)  # the base does far more than the data
            scenes = {"one": (50, float(good)), "two": (50, float(good + 5))}
            rows.append(row({"data": data, "seed": seed}, (2 * good + 5) / 100, scenes))
    document = {"axes": axes, "rows": rows}
    (own,), (shared,) = (effects({**document, "drawn": drawn}, "val_seen", "SR") for drawn in ([], ["checkpoint"]))
    assert own.estimate is not None
    assert shared.estimate is not None
    assert own.estimate.mean == shared.estimate.mean == pytest.approx(0.048)
    assert (own.estimate.low or 0) < 0 < 0.03 < (shared.estimate.low or 0)


@pytest.mark.parametrize("pair", [["b", "a"], ["a", "b"]])
def test_what_a_contrast_asks_again_is_one_comparison(pair: list[str]) -> None:
    document = make_document({"part": ["a", "b", "c"], "seed": ["s0", "s1", "s2"]})
    asked = {"axis": "part", "name": "again", "pairs": [pair]}
    (before, count), (found, once) = (
        findings(each, "SR") for each in (document, {**document, "contrasts": [asked]})
    )
    assert once == count == 2 * len(document["splits"])
    for split, each in found.items():
        assert [effect.label for effect in each] == ["c", "again"]
        assert (each[0].p, each[1].p) == pytest.approx((before[split][1].p, before[split][0].p))


def ways(document: dict[str, Any], apart: float) -> dict[str, Any]:
    """The same trainings, each evaluated in three ways, the second of which adds `apart` in half of all scenes."""
    rows = []
    for each in document["rows"]:
        for number, way in enumerate(("w0", "w1", "w2")):
            copy = deepcopy(each) | {"labels": {**each["labels"], "way": way}}
            if number == 1:
                for split in copy["results"].values():
                    for scene in ("s0", "s2", "s4"):
                        split["scenes"]["SR"][scene][1] += apart
            rows.append(copy)
    return {**document, "axes": {**document["axes"], "way": ["w0", "w1", "w2"]}, "rows": rows}


def test_trainings_that_are_evaluated_in_several_ways_count_once() -> None:
    document = make_document({"part": ["a", "b"], "seed": ["s0", "s1", "s2"]})
    (alone,) = effects(document, "val_seen", "SR")
    part, *others = effects(ways(document, 0.0), "val_seen", "SR")
    assert part.contexts == 3
    assert part.estimate is not None
    assert alone.estimate is not None
    assert astuple(part.estimate) == pytest.approx(astuple(alone.estimate))
    assert part.p == pytest.approx(alone.p)
    assert [(each.p, each.over) for each in others] == [(None, "episodes and trainings")] * 2
    once, again = (pooled(each["rows"], "val_seen", "SR") for each in (document, ways(document, 0.0)))
    assert once is not None
    assert again is not None
    assert astuple(once) == pytest.approx(astuple(again))


def test_between_ways_to_evaluate_the_chance_of_trainings_cancels_out() -> None:
    document = make_document({"part": ["a", "b"], "seed": ["s0", "s1", "s2"]})
    _, second, third = effects(ways(document, 3.0), "val_seen", "SR")
    assert second.estimate is not None
    assert second.estimate.mean == pytest.approx(0.03)
    # Scenes of 30 episodes are 2.1 above that, three times, and 0.9 below: (3 * 2.1^2 + 7 * 0.9^2) / 0.9 = 21.
    assert second.estimate.se == pytest.approx(21**0.5 / 300)
    assert third.p is None


def test_a_contrast_within_all_that_there_is_asks_again() -> None:
    axes = {"part": ["a", "b"], "look": ["own", "evening"]}
    asked = {"axis": "part", "name": "again", "pairs": [["b", "a"]], "within": [["look", "own"]]}

    def labels(*names: str) -> list[str]:
        rows = [row(dict(zip(axes, name.split(), strict=True)), 0.5) for name in names]
        document = {"axes": axes, "rows": rows, "contrasts": [asked]}
        return [each.label for each in effects(document, "val_seen", "SR")]

    assert labels("a own", "b own", "a evening") == ["evening", "again"]
    assert labels("a own", "b own", "a evening", "b evening") == ["b", "evening", "again"]


def test_a_contrast_may_be_of_one_label_of_another_axis() -> None:
    axes = {"part": ["a", "b"], "look": ["own", "evening"]}
    values = {"a own": 0.5, "b own": 0.5, "a evening": 0.25, "b evening": 0.75}
    rows = [row(dict(zip(axes, name.split(), strict=True)), value) for name, value in values.items()]
    asked = {"axis": "part", "name": "in the evening", "pairs": [["b", "a"]], "within": [["look", "evening"]]}
    found = effects({"axes": axes, "rows": rows, "contrasts": [asked]}, "val_seen", "SR")
    assert [(each.label, each.differences) for each in found if each.axis == "part"] == [
        ("b", (0.0, 0.5)),
        ("in the evening", (0.5,)),
    ]


def test_a_setting_has_an_interval_over_episodes_and_trainings() -> None:
    rows, sums = [], np.array([[20.0, 31], [26, 30], [23, 38], [30, 40], [31, 44], [35, 39]])
    for number, (one, two) in enumerate(sums):
        scenes = {"one": (50, one), "two": (60, two)}
        rows.append(row({"data": "ab"[number // 3], "seed": str(number % 3)}, (one + two) / 110, scenes))
    found = over_trainings(rows[:3], rows, "val_seen", "SR")
    sizes = np.array([50.0, 60.0])
    weights = np.array([1 / 3] * 3)
    expected = contrast(sums[:3], sizes, weights, spreading(sums, sizes, list("aaabbb")))
    assert found is not None
    assert (found.mean, found.se) == pytest.approx((float(expected.mean), float(expected.se)))
    assert found.low is not None
    assert found.high is not None
    assert 0.0 <= found.low < found.mean < found.high <= 1.0
    few = over_trainings(rows[:1], rows[::3], "val_seen", "SR")
    assert few is not None
    assert few.low is None, "one training of each tells nothing of how they differ"
    assert over_trainings([], rows, "val_seen", "SR") is None
