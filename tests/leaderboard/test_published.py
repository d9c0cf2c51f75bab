from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vlnbench.errors import UsageError
from vlnbench.leaderboard.published import read_published, schema

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


def test_every_row_has_a_source() -> None:
    assert all(row.source.work for row in read_published(RESULTS / "published.json").rows)


@pytest.fixture
def content() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": {"SR": 101}}, r"field 'rows.0.metrics.SR': .* less than or equal to 100"),
        ({"metrics": {"SR": "50"}}, r"field 'rows.0.metrics.SR': .* valid number"),
        ({"metrics": {"SR": float("nan")}}, r"field 'rows.0.metrics.SR'"),
        ({"metrics": {}}, r"field 'rows.0.metrics': .* at least one metric"),
        ({"source": {"work": ""}}, r"field 'rows.0.source.work'"),
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
