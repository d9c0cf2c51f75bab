"""Effects of committed matrices from a second set of formulas, and outcomes packed as bits."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.statistics.rederive import NEAR, by_scene, compared
from vlnbench.evaluation.records import Row
from vlnbench.matrix.statistics.outcomes import listed, packed
from vlnbench.matrix.statistics.tables import effects_csv

RESULTS = Path(__file__).parents[2] / "results"
SLOW = pytest.mark.slow
COUNTS = {
    "post_training": 8,
    "parts_x_shift": 92,
    "augmentation_shift": 144,
    "tunable_parts_x_data": 240,
    "tunable_parts_x_envdrop": 160,
    "vlnce_augmentation": 88,
}


@pytest.mark.parametrize("name", ["post_training", *(pytest.param(n, marks=SLOW) for n in [*COUNTS][1:])])
def test_printed_effects_are_derived_again(name: str) -> None:
    count, apart = compared(RESULTS / name)
    assert count == COUNTS[name]
    assert max(apart.values()) < NEAR


def test_a_changed_digit_is_found(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "post_training" / "matrix.json", tmp_path)
    lines = (RESULTS / "post_training" / "effects.csv").read_text().splitlines()
    place = lines[0].split(",").index("difference")
    cells = lines[1].split(",")
    cells[place] = str(float(cells[place]) + 1e-6)
    (tmp_path / "effects.csv").write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]))
    assert compared(tmp_path)[1]["difference"] == pytest.approx(1e-6)


def test_bases_that_are_drawn_and_labels_of_other_axes(tmp_path: Path) -> None:
    document = json.loads((RESULTS / "post_training" / "matrix.json").read_text())
    document["axes"]["look"] = ["own", "other"]
    for each in document["rows"]:
        each["labels"]["look"] = "other" if each["labels"]["objective"] == "supervised" else "own"
    pair = document["axes"]["objective"][2:0:-1]
    asked = {"axis": "objective", "name": "rollouts", "pairs": [pair], "within": [["look", "own"]]}
    found = []
    for drawn in ([], ["checkpoint"]):
        document |= {"contrasts": [asked], "drawn": drawn}
        (tmp_path / "matrix.json").write_text(json.dumps(document))
        (tmp_path / "effects.csv").write_text(effects_csv(document))
        count, apart = compared(tmp_path)
        assert count > 0
        assert max(apart.values()) < NEAR
        found.append((tmp_path / "effects.csv").read_text())
    assert found[0] != found[1]


def row(number: int, repeat: int, success: float | None, scene: str) -> Row:
    scores = {} if success is None else {"success": success}
    status = "error" if success is None else "ok"
    return Row("b", "f" * 12, "val_seen", str(number), repeat, scene, "t", 0, status, scores=scores)


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=2, max_size=2), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_bits_say_which_episodes_succeeded(outcomes: list[list[float | None]], order: object) -> None:
    rows = [
        row(i, repeat, outcome, f"s{i % 3}")
        for i, each in enumerate(outcomes)
        for repeat, outcome in enumerate(each)
    ]
    order.shuffle(rows)  # type: ignore[attr-defined]  # rows come as episodes finish
    result = {"identity": {"episodes_sha256": "e", "repeats": 2}, "success": packed(rows)}
    document = {"episodes": {"e": listed(rows)}}
    expected: dict[str, list[float]] = defaultdict(list)
    for each in rows:
        expected[each.scene_id].append(each.scores.get("success") or 0.0)
    assert by_scene(document, result, "SR") == {scene: (len(v), sum(v)) for scene, v in expected.items()}
    assert by_scene(document, result, "SR", "^0$") == {"s0": (2, sum(outcome or 0.0 for outcome in outcomes[0]))}


def test_secret_goals_have_no_outcomes() -> None:
    rows = [Row("b", "f" * 12, "test", "1", 0, "s", "t", 0, "unscored", scores={})]
    assert packed(rows) is None
