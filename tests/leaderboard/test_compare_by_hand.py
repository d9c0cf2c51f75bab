"""Two runs of six episodes in three scenes, small enough to work out by hand; the arithmetic stands beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.runs import make_identity
from vlnbench.errors import UsageError
from vlnbench.evaluation.metrics import Scores
from vlnbench.evaluation.records import MANIFEST, ROWS, Row
from vlnbench.evaluation.stats import Estimate, bootstrap
from vlnbench.evaluation.summary import METRICS, values_of
from vlnbench.leaderboard.compare import compare, comparison_sheet, format_comparison
from vlnbench.util.tables.sheet import data

T2 = 4.302652730
"""97.5 % quantile of Student's t with 2 degrees of freedom."""

SCENES = "aabbcc"


def line(number: int, success: float, meters: float | None, repeat: int = 0, status: str = "ok") -> dict[str, Any]:
    """Row of an episode; trajectories are counted within their scene, so those of two scenes share a name."""
    scores = Scores(
        success, success, success / 2, meters, meters, 9.0, None, None, None, 8.0, 7, 0, True, "success"
    )
    place = ("houses-r2r", "f" * 12, "val_unseen", str(number), repeat, SCENES[number], str(number % 2), 0)
    return asdict(Row(*place, status, None, asdict(scores) if status == "ok" else {}))


def write(folder: Path, rows: Sequence[dict[str, Any]], **identity: Any) -> Path:
    folder.mkdir()
    given = {"episodes": 6, "split_size": 6, "agent": folder.name, **identity}
    manifest = {"identity": asdict(make_identity(**given))}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Successes 1 0 | 0 0 | 1 1 and 1 1 | 0 1 | 0 1; no NE of episode 5, and of 4 in the first alone."""
    first = [1.0, 2.0, 3.0, 4.0, 5.0, None]
    second = [2.0, 3.0, 4.0, 5.0, None, None]
    a = [line(i, success, first[i]) for i, success in enumerate([1.0, 0.0, 0.0, 0.0, 1.0, 1.0])]
    b = [line(i, success, second[i]) for i, success in enumerate([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])]
    return write(tmp_path / "first", a[::-1]), write(tmp_path / "second", b, seed=3)


def test_success_is_counted_in_four_ways(runs: tuple[Path, Path]) -> None:
    """Both: 0, 5. Neither: 2. Only the second: 1, 3. Only the first: 4. McNemar: 2 (1 + 3) / 8 = 1."""
    result = compare(*runs)
    assert (result.both, result.neither, result.wins, result.losses) == (2, 1, ["1", "3"], ["4"])
    assert result.p_value == 1.0
    assert result.identity == {"agent": ("first", "second"), "seed": (0, 3)}
    assert [result.a.folder, result.b.folder] == list(runs)


def test_differences_by_scene_and_by_trajectory(runs: tuple[Path, Path]) -> None:
    """B - A: 0 1 | 0 1 | -1 0, mean 1/6. By scene, deviations 1 - 1/3 = 2/3, 2/3, -4/3, shares 1/3: variance
    (24/9) / (2/3) / 36 = 1/9. By trajectory, every episode is one, as names count within their scene: deviations
    -1/6, 5/6, -1/6, 5/6, -7/6, -1/6, shares 1/6: variance (102/36) / (5/6) / 36 = 17/180."""
    found = compare(*runs).differences["SR"]
    assert found is not None
    assert (found.a.mean, found.b.mean, found.a.n) == (0.5, pytest.approx(4 / 6), 6)
    assert (found.by_scene.mean, found.by_scene.se, found.by_scene.clusters) == (
        pytest.approx(1 / 6),
        pytest.approx(1 / 3),
        3,
    )
    assert (found.by_scene.low, found.by_scene.high) == (-1.0, 1.0)  # 1/6 -+ 1.43
    assert (found.by_trajectory.se, found.by_trajectory.clusters) == (pytest.approx((17 / 180) ** 0.5), 6)
    assert found.bootstrap == bootstrap([0.0, 1.0, 0.0, 1.0, -1.0, 0.0], list(SCENES))


def test_meters_are_compared_where_both_have_them(runs: tuple[Path, Path]) -> None:
    """Episodes 0 to 3, each 1 m more: no interval but in words."""
    result = compare(*runs)
    found = result.differences["NE"]
    assert found is not None
    assert found.by_scene == Estimate(1.0, 4, 2, 0.0, None, None, 1.0)
    assert found.bootstrap is None
    assert (found.a.mean, found.b.mean) == (2.5, 3.5)
    assert result.differences["nDTW"] is None


def test_values_of_a_run_by_episode(runs: tuple[Path, Path]) -> None:
    run, (success, *_) = compare(*runs).a, METRICS
    found = dict(zip(run.table.names(), values_of(success, run.table).tolist(), strict=True))
    assert found == {str(i): value for i, value in enumerate([1.0, 0.0, 0.0, 0.0, 1.0, 1.0])}


def test_a_run_without_public_goals_has_nothing_to_compare(runs: tuple[Path, Path], tmp_path: Path) -> None:
    rows = [line(i, 1.0, 1.0, status="unscored") for i in range(5)] + [line(5, 1.0, 1.0, status="error")]
    secret = write(tmp_path / "secret", rows)
    for one, other in ((runs[0], secret), (secret, runs[0])):
        with pytest.raises(UsageError, match="secret: its split has no public goals, so there are no scores"):
            compare(one, other)


def test_imported_runs_of_other_episodes_are_compared_where_that_is_asked_for(tmp_path: Path) -> None:
    """No hash of theirs tells which these are."""
    theirs = {"agent_identity": {"imported_as": "other"}, "episodes_sha256": "unknown", "episodes": 4}
    runs = [
        write(tmp_path / name, [line(i, 1.0, 1.0) for i in of], **theirs)
        for name, of in (("a", range(4)), ("b", range(2, 6)))
    ]
    with pytest.raises(UsageError, match=r"their rows are of other episodes \(`vlnbench compare --common`"):
        compare(*runs)
    found = compare(*runs, common=True)
    assert found.both == 2
    assert "episodes that both have: 2 (A: 4 of 6, B: 4 of 6)" in format_comparison(found)


def test_repeats_are_named(tmp_path: Path) -> None:
    runs = []
    for name, successes in (("a", (0.0, 1.0)), ("b", (1.0, 0.0))):
        rows = [line(0, success, 1.0, repeat) for repeat, success in enumerate(successes)]
        runs.append(write(tmp_path / name, rows, episodes=1, repeats=2))
    result = compare(*runs)
    assert (result.wins, result.losses) == (["0#0"], ["0#1"])


def test_what_is_printed(runs: tuple[Path, Path]) -> None:
    """SR of the first by scene: deviations 0, -1, 1, variance 2 / (2/3) / 36 = 1/12. NE of both: -1, -1 | 1, 1 and
    so on, 2 / sqrt(4) = 1. SR by trajectory: 1/6 -+ 2.570582 sqrt(17/180), with 5 degrees of freedom."""
    a, b = runs
    text = format_comparison(compare(a, b))
    head, tables = text.split("\n\n", 1)
    assert head.splitlines() == [
        "houses-r2r val_unseen, episodes 6 of 6, plane-1; paired by episode",
        f"A: first, {a}",
        f"B: second, {b}",
        "they differ in agent, seed",
    ]
    table, notes = tables.split("\n\n", 1)
    rows = [" ".join(each.split()) for each in table.splitlines()]
    assert rows[0] == "mean [95 %] A B B - A p n"
    assert [row.split("[")[0] for row in rows[2:5]] == [
        "SR (%) 50.0 ± 28.9 ",
        "SPL (%) 25.0 ± 14.4 ",
        "OS (%) 50.0 ± 28.9 ",
    ]
    assert rows[2].endswith(
        "+16.7 ± 33.3 [-100.0, 100.0] 0.667 6"  # t 0.5 with 2 degrees: p = 1 - 0.5 / sqrt(2.25)
    )
    assert rows[5] == "NE (m) 2.50 ± 1.00 [0.00, 15.21] 3.50 ± 1.00 [0.00, 16.21] +1.00 ± 0.00 all equal 4"
    assert rows[-1].endswith("0.0 ± 0.0 all equal 6")
    found = data(comparison_sheet(compare(a, b)))
    ends = [found[f"{name}_{end}"][0] for name in ("bootstrap", "trajectories") for end in ("low", "high")]
    assert ends == pytest.approx([-50.0, 50.0, 16.6667 - 78.9986, 16.6667 + 78.9986], abs=1e-3)
    assert notes.splitlines() == [
        "SE, intervals and p: clustered by scene (3); by bootstrap and by trajectory: --format json",
        "95 %: Student's t; between 0 and 100 %, wider by t²/(n + t²), the kinds of episode that none of n is",
        "smallest difference of SR that pairs like these tell from 0 in 80 % of cases: 178.8 points",
        "success: both 2, neither 1, only B 2, only A 1; "
        "McNemar's exact p = 1 (n 3; takes episodes as independent)",
        "only B succeeds (2): 1, 3",
        "only A succeeds (1): 4",
    ]


def test_one_scene_has_no_interval_and_no_names_no_list(tmp_path: Path) -> None:
    a, b = (write(tmp_path / name, [line(i, 1.0, 1.0) for i in (0, 1)], episodes=2) for name in "ab")
    lines = format_comparison(compare(a, b)).splitlines()
    shown = [" ".join(each.split()) for each in lines if each.startswith("SR (%)")]
    assert shown == ["SR (%) 100.0 100.0 0.0 2"]
    assert lines[-1].startswith("success: both 2, neither 0, only B 0, only A 0;")


def test_long_lists_are_wrapped_between_names(tmp_path: Path) -> None:
    runs = []
    for name, success in (("a", 0.0), ("b", 1.0)):
        rows = [{**line(0, success, 1.0), "episode_id": f"a-long-name-{i:02}"} for i in range(20)]
        runs.append(write(tmp_path / name, rows, episodes=20))
    lines = format_comparison(compare(*runs)).splitlines()
    start = next(i for i, each in enumerate(lines) if each.startswith("only B succeeds (20): a-long-name-00, "))
    assert all(each.startswith("  a-long-name-") for each in lines[start + 1 :])
    assert all(len(each) <= 113 for each in lines[start:])
    assert len(lines[start]) > 97  # as much as fits
    names = " ".join(lines[start:]).removeprefix("only B succeeds (20): ").replace(" ", "").split(",")
    assert names == [f"a-long-name-{i:02}" for i in range(20)]


@pytest.mark.parametrize(("length", "expected"), [(50, 1), (51, 2), (120, 2)])
def test_a_line_has_113_characters_unless_a_name_has_more(tmp_path: Path, length: int, expected: int) -> None:
    """20 characters of title, a blank, 40 of the first name, a comma and a blank: 63, and 50 more are 113."""
    ids, runs = ["a" * 40, "b" * length], []
    for name, success in (("first", 0.0), ("second", 1.0)):
        rows = [{**line(0, success, 1.0), "episode_id": each} for each in ids]
        runs.append(write(tmp_path / name, rows, episodes=2))
    lines = format_comparison(compare(*runs)).splitlines()
    start = next(i for i, each in enumerate(lines) if each.startswith("only B succeeds (2): "))
    assert len(lines[start:]) == expected
    assert lines[-1].endswith("b" * length)


def test_a_run_does_not_differ_from_itself(runs: tuple[Path, Path]) -> None:
    assert format_comparison(compare(runs[0], runs[0])).splitlines()[3] == "they differ in nothing"


def test_everything_is_written_down(runs: tuple[Path, Path]) -> None:
    result = compare(*runs)
    written = result.to_json()
    assert written["runs"] == [str(each) for each in runs]
    assert written["shared"] == {
        "benchmark": "houses-r2r",
        "fingerprint": "f" * 12,
        "split": "val_unseen",
        "dataset_version": "houses-2",
        "dataset_sha256": "d" * 64,
        "episodes_sha256": "e" * 64,
        "simulator": "plane-1",
        "repeats": 1,
    }
    assert written["identity"] == {"agent": ("first", "second"), "seed": (0, 3)}
    assert written["success"] == {"both": 2, "neither": 1, "wins": ["1", "3"], "losses": ["4"]}
    assert (written["mcnemar_p"], written["differences"]["nDTW"]) == (1.0, None)
    assert written["differences"]["NE"]["by_scene"] == asdict(Estimate(1.0, 4, 2, 0.0, None, None, 1.0))
    assert json.loads(json.dumps(written, allow_nan=False))["differences"]["SR"]["a"]["mean"] == 0.5


def test_unfinished_runs_are_refused_on_either_side(runs: tuple[Path, Path], tmp_path: Path) -> None:
    cut = write(tmp_path / "cut", [line(i, 1.0, 1.0) for i in range(5)])
    for order in ((runs[0], cut), (cut, runs[0])):
        with pytest.raises(UsageError, match=r"cut: 5 of 6 planned episodes are done"):
            compare(*order)


def test_runs_of_different_splits_are_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    other = write(tmp_path / "seen", [line(i, 1.0, 1.0) for i in range(6)], split="val_seen")
    with pytest.raises(UsageError, match=r"cannot share a table: split 'val_unseen' / 'val_seen'$"):
        compare(runs[0], other)


def test_a_terminal_gets_thirty_names_and_json_all(tmp_path: Path) -> None:
    runs = []
    for name, success in (("a", 0.0), ("b", 1.0)):
        rows = [{**line(0, success, 1.0), "episode_id": str(i)} for i in range(10, 75)]
        runs.append(write(tmp_path / name, rows, episodes=65))
    found = compare(*runs)
    text = " ".join(format_comparison(found).split())
    assert text.endswith(
        "only B succeeds (65): " + ", ".join(map(str, range(10, 40))) + " and 35 more (--format json has them)"
    )
    assert len(found.to_json()["success"]["wins"]) == 65
