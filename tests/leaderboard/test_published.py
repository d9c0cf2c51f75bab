from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from vlnbench.errors import UsageError
from vlnbench.leaderboard.published import Source, read_published, schema

RESULTS = Path(__file__).parents[2] / "results"


def test_the_committed_file_is_valid_and_its_schema_is_committed() -> None:
    literature = read_published(RESULTS / "published.json")
    assert len(literature.rows) > 100
    assert (RESULTS / "published.schema.json").read_text(encoding="utf-8") == schema()


def test_known_values() -> None:
    literature = read_published(RESULTS / "published.json")
    streamvln = literature.find("streamvln-v1-3-r2r-val-unseen")
    assert streamvln.metrics.model_dump(exclude_none=True) == {"NE": 4.90, "OS": 63.6, "SR": 56.4, "SPL": 50.2}
    assert (streamvln.sensors, streamvln.dataset_version) == ("RGB", "v1-3")
    assert literature.benchmark(streamvln) == "r2r-ce"
    assert literature.find("etpnav-rxr-val-seen").metrics.SDTW == 51.28
    assert literature.find("hnr-r2r-test").metrics.TL == 13.03
    assert literature.benchmark(literature.find("bevbert-r2r-test")) is None


def test_every_row_can_be_found_and_says_who_reports_it() -> None:
    rows = read_published(RESULTS / "published.json").rows
    for row in rows:
        assert row.source.arxiv or row.source.url, row.id
        assert row.sensors or row.note, row.id
        assert date.fromisoformat(row.checked.date) <= date.today(), row.id
        assert row.gpu_hours is None or row.gpu_hours.where, row.id
    unread = [row.id for row in rows if row.checked.where.startswith("not read again")]
    assert len(unread) == 15, unread
    assert all(row_id.startswith("streamvln-") for row_id in unread), unread


def test_both_trainings_of_a_model_are_there() -> None:
    literature = read_published(RESULTS / "published.json")
    values = {
        row_id: literature.find(row_id).metrics.model_dump(include={"SR", "SPL"}, exclude_none=True)
        for row_id in (
            "navgpt3-astra-rxr-val-unseen",
            "uni-navid-r2r-val-unseen",
            "uni-navid-released-r2r-val-unseen",
            "internvla-n1-r2r-val-unseen",
            "internvla-n1-dagger-r2r-val-unseen",
        )
    }
    assert [tuple(value.values()) for value in values.values()] == [
        (90.43, 74.31),
        (47.0, 42.7),
        (51.8, 47.7),
        (58.2, 54.0),
        (64.1, 58.1),
    ]
    assert "highest of several" in str(literature.find("dualvln-r2r-val-unseen").note)
    assert "R2R only" in str(literature.find("navid-rss-r2r-val-unseen").note)
    assert literature.find("uni-lavira-r2r-val-unseen").partial
    assert literature.find("stereonav-r2r-val-unseen").privileged


def test_a_work_is_dated_by_its_arxiv_id() -> None:
    assert Source(work="x", arxiv="2507.05240").posted == 2025.5
    assert Source(work="x", url="https://example.org").posted is None


@pytest.fixture
def content() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": None}, r"field 'rows.0.source'"),
        ({"checked": None}, r"field 'rows.0.checked'"),
        ({"checked": {"date": "2026-11-22", "where": ""}}, r"field 'rows.0.checked.where'"),
        ({"evidence": None}, r"field 'rows.0.evidence'"),
        ({"metrics": {"SR": 101}}, r"field 'rows.0.metrics.SR': .* less than or equal to 100"),
        ({"metrics": {"SR": "50"}}, r"field 'rows.0.metrics.SR': .* valid number"),
        ({"metrics": {"SR": float("nan")}}, r"field 'rows.0.metrics.SR'"),
        ({"metrics": {}}, r"field 'rows.0.metrics': .* at least one metric"),
        ({"source": {"work": ""}}, r"field 'rows.0.source.work'"),
        ({"source": {"work": "x", "arxiv": None, "url": None}}, r"field 'rows.0.source': .* 'arxiv' or 'url'"),
        ({"source": {"work": "x", "arxiv": "2513.00001"}}, r"field 'rows.0.source.arxiv'"),
        ({"sensors": None, "note": None}, r"field 'rows.0': .* 'sensors' is null: expected a 'note'"),
        ({"sensors": "camera"}, r"field 'rows.0.sensors'"),
        ({"languages": ["en-US"]}, r"field 'rows.0': .* expected null outside RxR-CE"),
        ({"languages": ["en"]}, r"field 'rows.0.languages.0'"),
        ({"checked": {"date": "22.11.2026", "where": "x"}}, r"field 'rows.0.checked.date'"),
        ({"gpu_hours": {"hours": 0, "gpu": "H100", "where": "x"}}, r"field 'rows.0.gpu_hours.hours'"),
        ({"sensor": "RGB"}, r"field 'rows.0.sensor': Extra inputs"),
        ({"split": "train"}, r"field 'rows.0.split'"),
        ({"protocol": "none"}, r"protocol 'none' is not among 'protocols'"),
        ({"id": "hnr-r2r-test"}, r"id 'hnr-r2r-test' appears twice"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, content: dict[str, Any], change: dict[str, Any], message: str) -> None:
    content["rows"][0] |= change
    path = tmp_path / "published.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        read_published(path)


def test_an_absent_or_broken_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"published.json: cannot be read"):
        read_published(tmp_path / "published.json")
    (tmp_path / "published.json").write_text("{")
    with pytest.raises(UsageError, match=r"field 'the file': Invalid JSON"):
        read_published(tmp_path / "published.json")


def test_an_unknown_id_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'streamvln-v1-3-r2r-val-unseen'"):
        read_published(RESULTS / "published.json").find("streamvln-v1-3-r2r")
