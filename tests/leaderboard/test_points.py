"""Which rows the pictures show, that a file tells what it shows, and that matplotlib may be missing."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.leaderboard.test_board import RESULTS
from vlnbench.cli import main
from vlnbench.leaderboard.points import outdated_pictures, over_hours, over_time, pictures, records
from vlnbench.leaderboard.published import Literature, read_published


def literature(*changes: dict[str, Any]) -> Literature:
    """Rows of one paper each, of which only what differs is given."""
    rows = []
    for number, change in enumerate(changes):
        row: dict[str, Any] = {
            "id": f"row-{number}",
            "method": f"method {number}",
            "dataset": "R2R-CE",
            "split": "val_unseen",
            "metrics": {"SR": 50.0 + number},
            "sensors": "RGB",
            "evidence": "authors",
            "source": {"work": "a paper", "arxiv": f"25{number + 1:02d}.00001"},
            "checked": {"date": "2026-11-22", "where": "the paper"},
        }
        rows.append(row | change)
    return Literature.model_validate_json(json.dumps({"protocols": {}, "rows": rows}), strict=True)


def test_the_best_of_a_paper_is_shown_by_sensors() -> None:
    paper = {"source": {"work": "one", "arxiv": "2507.00001"}}
    found = over_time(
        literature(
            {"metrics": {"SR": 40.0}, **paper},
            {"metrics": {"SR": 60.0}, **paper},
            {"metrics": {"SR": 55.0}, "sensors": "RGB-D", **paper},
            {"metrics": {"SR": 99.0}, "evidence": "third party", **paper},
            {"metrics": {"SR": 98.0}, "split": "val_seen", **paper},
            {"metrics": {"SPL": 97.0}, **paper},
            {"metrics": {"SR": 96.0}, "source": {"work": "no date", "url": "https://example.org"}},
            {"metrics": {"SR": 80.0}, "privileged": True, **paper},
            {"metrics": {"SR": 30.0}, "dataset": "RxR-CE", **paper},
        )
    )
    assert [(p.x, p.sr, p.sensors, p.apart) for p in found.panels["R2R-CE"]] == [
        (2025.5, 55.0, "RGB-D", False),
        (2025.5, 60.0, "RGB", False),
        (2025.5, 80.0, "RGB", True),
    ]
    assert [p.sr for p in found.panels["RxR-CE"]] == [30.0]


def test_the_line_of_the_best_leaves_out_what_stands_apart() -> None:
    found = over_time(
        literature(
            {}, {"metrics": {"SR": 70.0}, "partial": True}, {"metrics": {"SR": 49.0}}, {"metrics": {"SR": 60.0}}
        )
    )
    assert [p.sr for p in records(found.panels["R2R-CE"])] == [50.0, 60.0]


def test_a_picture_needs_enough_rows() -> None:
    cost = {"gpu_hours": {"hours": 282, "gpu": "H800", "where": "abstract"}}
    few = literature(*[cost] * 4)
    assert len(over_hours(few).panels["R2R-CE"]) == 4
    assert pictures(few) == []
    assert [each.file for each in pictures(literature(*[cost] * 5))] == ["sr_over_time.svg", "sr_vs_gpu_hours.svg"]


def test_the_committed_pictures_show_the_committed_rows() -> None:
    made = pictures(read_published(RESULTS / "published.json"))
    assert outdated_pictures(made, RESULTS) == []
    assert all((RESULTS / each.file).stat().st_size < 150_000 for each in made)
    assert len(over_hours(read_published(RESULTS / "published.json")).panels["R2R-CE"]) >= 5


def test_a_picture_is_the_same_every_time_and_tells_its_points(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vlnbench.leaderboard.pictures import svg, write_pictures

    [made] = pictures(literature(*[{}] * 5, {"method": "costs $1 $2, with a price", "metrics": {"SR": 90.0}}))
    assert svg(made) == svg(made)
    assert "costs $1 $2" in svg(made).decode()
    assert outdated_pictures([made], tmp_path) == [made]
    write_pictures([made], tmp_path)
    assert outdated_pictures([made], tmp_path) == []
    [other] = pictures(literature(*[{}] * 5, {"metrics": {"SR": 80.0}}))
    assert outdated_pictures([other], tmp_path) == [other]


def test_without_matplotlib_the_tables_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(RESULTS / "published.json", tmp_path)
    monkeypatch.setitem(sys.modules, "vlnbench.leaderboard.pictures", None)
    assert main(["leaderboard", "--results", str(tmp_path)]) == 0
    assert "no pictures (pip install" in capsys.readouterr().out
    assert (tmp_path / "leaderboard.md").is_file()
    assert not list(tmp_path.glob("*.svg"))
