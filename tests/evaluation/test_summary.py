"""Summaries of a handful of made-up rows, worked out by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.runs import make_identity
from vlnbench.errors import UsageError
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.metrics import METRICS_VERSION, Failure, Scores
from vlnbench.evaluation.records import Row
from vlnbench.evaluation.stats import Estimate
from vlnbench.evaluation.summary import (
    METRICS,
    Metric,
    Summary,
    aggregate,
    difference_kind,
    estimate_kind,
    format_summary,
    shown,
    shown_label,
    summarize,
    values,
    values_of,
)

SR, SPL, OS, NE, NDTW, SDTW, CLS, LENGTH, STEPS, COLLISIONS = METRICS


def row(number: int, scene: str = "a", status: str = "ok", **changes: Any) -> Row:
    """A success in 6 of 8 m with 9 steps, unless `changes` of its scores say otherwise."""
    failure: Failure = "success"
    scores = asdict(Scores(1.0, 1.0, 0.75, 0.5, 0.25, 6.0, 0.5, 0.5, 0.25, 8.0, 9, 2, True, failure)) | changes
    place = ("houses-r2r", "f" * 12, "val_unseen", str(number), 0, scene, f"t{number // 2}", 0)
    seconds, report = {"env": 1.5, "agent": 0.25}, {"tokens": 10, "calls": 2}
    return Row(*place, status, None, scores if status == "ok" else {}, seconds, report)


FAILED = {"success": 0.0, "oracle_success": 0.0, "spl": 0.0, "sdtw": 0.0, "failure": "stuck"}
LOST = {**FAILED, "distance_to_goal": None, "geodesic_start": None, "failure": "unreachable"}

ROWS = [
    row(0),
    row(1, **FAILED, distance_to_goal=6.5),
    row(2, "b", "error"),
    row(3, "b", **LOST),
    row(4, "b", "timeout"),
]


def summary(rows: list[Row], planned: int | None = None) -> Summary:
    keys = [each.key for each in rows] + [("houses-r2r", "val_unseen", f"x{i}", 0) for i in range(planned or 0)]
    return summarize(rows, keys, make_identity())


def means(found: dict[str, Estimate | None]) -> dict[str, tuple[float, int] | None]:
    return {label: None if each is None else (each.mean, each.n) for label, each in found.items()}


def test_every_metric_over_the_episodes_that_have_it() -> None:
    """Five episodes. An error scores 0 in rates and fractions, and has no distances and no counts."""
    found = summary(ROWS)
    assert means(found.metrics) == {
        "SR": (1 / 5, 5),
        "SPL": (0.75 / 5, 5),
        "OS": (1 / 5, 5),
        "NE": (7.0 / 2, 2),  # 0.5 and 6.5; not for the unreachable one
        "nDTW": (pytest.approx(1.5 / 5), 5),
        "SDTW": (0.5 / 5, 5),
        "CLS": (pytest.approx(0.75 / 5), 5),
        "path length": (8.0, 3),
        "steps": (9.0, 3),
        "collisions": (2.0, 3),
    }
    assert means(found.by_trajectory) == means(found.metrics)


def test_what_is_counted() -> None:
    found = summary(ROWS)
    assert (found.n_planned, found.n_done, found.n_errors, found.n_unscored, found.n_unreachable) == (
        5,
        5,
        2,
        0,
        1,
    )
    assert found.failures == {
        "success": 1,
        "passed_goal": 0,
        "stopped_early": 0,
        "stuck": 1,
        "never_stopped": 0,
        "unreachable": 1,
        "error": 2,
    }
    assert list(found.failures) == [
        "success",
        "passed_goal",
        "stopped_early",
        "stuck",
        "never_stopped",
        *list(found.failures)[5:],
    ]
    assert (found.policy, found.metrics_version) == ("unreachable-fails-v1", METRICS_VERSION)
    assert found.seconds == {"env": 7.5, "agent": 1.25}
    assert found.report == {"calls": 10, "tokens": 50}
    assert list(found.report) == ["calls", "tokens"]
    assert found.complete
    assert found.identity == make_identity()


def test_times_and_counts_that_only_some_rows_have() -> None:
    rows = [
        replace(row(0), seconds={"env": 0.0004}, report={}),
        replace(row(1), seconds={"env": 1.0, "x": 5.0}, report={"n": 2}),
    ]
    found = summary(rows)
    assert (found.seconds, found.report) == ({"env": 1.0, "agent": 0.0}, {"n": 2})  # to milliseconds


def test_scenes_and_trajectories_are_clusters() -> None:
    """SR by scene: 1 of 2 in a, 0 of 3 in b. By trajectory t0 (0, 1) in a; t1 (2, 3) and t2 (4) in b."""
    found = summary(ROWS)
    by_scene, by_trajectory = found.metrics["SR"], found.by_trajectory["SR"]
    assert by_scene is not None
    assert by_trajectory is not None
    assert (by_scene.clusters, by_trajectory.clusters) == (2, 3)
    # Deviations 1 - 2/5 = 3/5 and -3/5, shares 2/5 and 3/5: (9/25 / (3/5) + 9/25 / (2/5)) / 25 = 1.5 / 25
    assert by_scene.se == pytest.approx(0.06**0.5)
    # 3/5, -2/5, -1/5, shares 2/5, 2/5, 1/5: (9/25 / (3/5) + 4/25 / (3/5) + 1/25 / (4/5)) / 25 = 55/60 / 25
    assert by_trajectory.se == pytest.approx((55 / 60 / 25) ** 0.5)
    same_name = [row(0), replace(row(1, "b"), trajectory_id="t0")]  # in another scene, another trajectory
    estimate = summary(same_name).by_trajectory["SR"]
    assert estimate is not None
    assert estimate.clusters == 2


def test_only_planned_episodes_count_and_each_once() -> None:
    rows = [row(0, **FAILED), row(1), row(7), row(0)]  # run again: the last row counts
    keys = [row(i).key for i in (0, 1, 2)]
    found = summarize(iter(rows), keys, make_identity())
    assert (found.n_planned, found.n_done, found.complete, means(found.metrics)["SR"]) == (3, 2, False, (1.0, 2))


def test_without_public_goals_there_are_no_metrics() -> None:
    rows = [row(0, status="unscored"), row(1, status="error"), row(2, status="unscored")]
    found = summary(rows)
    assert set(found.metrics.values()) | set(found.by_trajectory.values()) == {None}
    assert (found.n_unscored, found.n_errors, found.n_done, set(found.failures.values())) == (2, 1, 3, {0})
    assert found.report == {"calls": 6, "tokens": 30}


def test_errors_invent_no_metric_that_no_episode_has() -> None:
    """Without ground truth there is no nDTW, and an error does not make it 0."""
    bare = {"ndtw": None, "sdtw": None, "cls": None}
    rows = [row(0, **bare), row(1, status="error")]
    assert values(NDTW, rows) == []
    assert values(SR, rows) == [(rows[0], 1.0), (rows[1], 0.0)]
    assert values(SR, [rows[1]]) == [(rows[1], 0.0)]  # nothing but errors: all failed
    assert values(NE, [rows[1]]) == []
    assert values(STEPS, rows) == [(rows[0], 9.0)]
    assert type(values(STEPS, rows)[0][1]) is float
    assert by_scene(NDTW, rows) is None
    some = [row(0), row(1, ndtw=None)]
    assert values(NDTW, some) == [(some[0], 0.5)]


@pytest.mark.parametrize(
    ("metric", "kind", "of_differences"),
    [
        (SR, "rate", "difference"),
        (SPL, "fraction", "difference"),
        (OS, "rate", "difference"),
        (NE, "positive", "free"),
        (NDTW, "fraction", "difference"),
        (SDTW, "fraction", "difference"),
        (CLS, "fraction", "difference"),
        (LENGTH, "positive", "free"),
        (STEPS, "positive", "free"),
        (COLLISIONS, "positive", "free"),
    ],
)
def test_intervals_stay_in_the_range_of_a_metric(metric: Metric, kind: str, of_differences: str) -> None:
    assert (estimate_kind(metric), difference_kind(metric)) == (kind, of_differences)
    assert metric.scale == (1.0 if kind == "positive" else 100.0)


def by_scene(metric: Metric, rows: list[Row]) -> Estimate | None:
    table = table_of(rows)
    return aggregate(metric, values_of(metric, table), table.scene)


def test_rates_are_estimated_as_rates_and_meters_as_meters() -> None:
    """NE 0.5 and 6.5 m in two scenes: 3.5 -+ 12.7062 * 3, cut off at 0. SR 0 of 2: 12.7062^2 / (2 + 12.7062^2)."""
    far = [row(0), row(1, "b", distance_to_goal=6.5)]
    error, success = by_scene(NE, far), by_scene(SR, [row(0, **FAILED), row(1, "b", **FAILED)])
    assert error is not None
    assert success is not None
    assert (error.se, error.low, error.high) == (pytest.approx(3.0), 0.0, pytest.approx(3.5 + 3 * 12.706205))
    assert (success.low, success.high) == (0.0, pytest.approx(0.987763, abs=1e-6))


def test_rows_of_an_older_version_are_refused() -> None:
    old = row(3)
    del old.scores["cls"], old.scores["failure"]
    message = (
        "^row of episode 3: field 'scores' lacks failure, cls: another version of vlnbench scored this run; "
        "run `vlnbench rescore RUN --write`$"
    )
    with pytest.raises(UsageError, match=message):
        summary([row(0), old])
    del old.scores["geodesic_start"]
    with pytest.raises(UsageError, match="lacks geodesic_start, failure, cls: "):
        summary([old])


@pytest.mark.parametrize(
    ("value", "metric", "expected"),
    [
        (Estimate(0.1234, 9, 2, 0.05, 0.0312, 0.2, 1.0), SR, ("12.3", "5.0", "[3.1, 20.0]", 9)),
        (Estimate(0.1234, 9, 2, 0.05, 0.0312, 0.2, 1.0), SPL, ("12.3", "5.0", "[3.1, 20.0]", 9)),
        (Estimate(1.236, 9, 2, 0.5, 0.0312, 2.0, 1.0), NE, ("1.24", "0.50", "[0.03, 2.00]", 9)),
        (Estimate(1.26, 9, 2, 0.5, 0.0312, 2.0, 1.0), STEPS, ("1.3", "0.5", "[0.0, 2.0]", 9)),
        (Estimate(-0.00001, 9, 2, 0.5, -1.0, 1.0, 1.0), SR, ("0.0", "50.0", "[-100.0, 100.0]", 9)),
        (Estimate(1.26, 9, 2, 0.5, 0.0312, 2.0, 1.0), COLLISIONS, ("1.3", "0.5", "[0.0, 2.0]", 9)),
        (Estimate(0.5, 9, 1, None, None, None), SR, ("50.0", "-", "-", 9)),
        (Estimate(1.0, 9, 2, 0.0, None, None, 1.0), NE, ("1.00", "0.00", "all equal", 9)),
        (None, SR, ("-", "-", "-", 0)),
    ],
)
def test_how_a_value_is_shown(value: Estimate | None, metric: Metric, expected: tuple[str, str, str, int]) -> None:
    assert shown(value, metric) == expected


def test_how_a_metric_is_called() -> None:
    assert [shown_label(metric) for metric in METRICS] == [
        "SR (%)",
        "SPL (%)",
        "OS (%)",
        "NE (m)",
        "nDTW (%)",
        "SDTW (%)",
        "CLS (%)",
        "path length (m)",
        "steps",
        "collisions",
    ]


def test_the_table_that_a_run_ends_with() -> None:
    lines = format_summary(summary(ROWS, planned=2)).splitlines()
    assert lines[:2] == [
        "houses-r2r val_unseen: made-up in plane-1, episodes 9 of 9, PARTIAL: 5 of 7 planned episodes done",
        "",
    ]
    assert lines[2].split("  ")[0] == "metric"
    assert " ".join(lines[2].split()) == "metric mean SE 95 % interval n"
    assert [each[:12].strip() for each in lines[4:14]] == [shown_label(metric)[:12].strip() for metric in METRICS]
    assert " ".join(lines[7].split()) == "NE (m) 3.50 - - 2"  # both in one scene
    assert {len(each) for each in lines[2:14]} == {len(lines[2])}  # numbers end at the right
    assert lines[14:] == [
        "",
        "n_errors 2, n_unreachable 1 (unreachable-fails-v1); "
        "SE and intervals clustered by scene (2 scenes, 1.0 degrees of freedom)",
        f"how episodes ended: success 1, stuck 1, unreachable 1, error 2; metrics version {METRICS_VERSION}",
        "too few scenes to tell this SR from that of a run in other scenes",
        "SR within 1 m of the goal: 20.0 ± 24.5 [0.1, 99.0]",
        "the agent counted: calls 10, tokens 50",
    ]


def test_the_stricter_success_wants_stop_within_a_meter() -> None:
    rows = [row(i, distance_to_goal=away) for i, away in enumerate((0.0, 0.999, 1.0, 2.9))]
    rows += [row(4, **(FAILED | {"failure": "never_stopped"}), distance_to_goal=0.2), row(5, status="error")]
    strict = summary(rows).strict
    assert strict is not None
    assert (strict.mean, strict.n) == (pytest.approx(2 / 6), 6)
    assert summary([row(0, status="unscored")]).strict is None
    unknown = row(6, distance_to_goal=None)
    assert summary([*rows, unknown]).strict is None, "a success without a distance, as other harnesses may leave"


def test_notes_on_what_there_is_not() -> None:
    secret = [replace(row(0, status="unscored"), report={"tokens": 12345678.0})]
    assert format_summary(summary(secret)).splitlines()[-4:] == [
        "n_errors 0, n_unreachable 0 (unreachable-fails-v1); one scene: no SE or interval",
        f"how episodes ended: -; metrics version {METRICS_VERSION}",
        "the agent counted: tokens 1.23457e+07",
        "n_unscored 1: no public goals; `vlnbench export` writes a submission",
    ]
    lone = format_summary(summary([replace(row(0), report={})])).splitlines()
    assert "PARTIAL" not in lone[0]
    assert lone[-3].endswith("; one scene: no SE or interval")
    assert lone[-2].startswith("how episodes ended: success 1; ")
    assert lone[-1] == "SR within 1 m of the goal: 100.0 ± - -"
