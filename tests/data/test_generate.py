"""Houses that an evaluation or a collection asks for are made split by split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from envs.houses import generator
from envs.houses.edition import HOUSES as EDITION
from envs.houses.options import HousesConfig
from vlnbench.data import generate
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.errors import UsageError

HOUSES = get_benchmark("houses-r2r")
OTHER = HousesConfig(seed=7, train_houses=3)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[HousesConfig, tuple[str, ...]]]:
    """What was generated, in place of generating it."""
    calls: list[tuple[HousesConfig, tuple[str, ...]]] = []

    def note(root: Path, config: HousesConfig, splits: Sequence[str] = ()) -> str:
        calls.append((config, tuple(splits)))
        return ""

    monkeypatch.setattr(generator, "generate_houses", note)
    return calls


def there(root: Path, **changes: object) -> Path:
    """A data root whose manifest says that val_unseen is there."""
    content = {"version": EDITION.version, "config": asdict(OTHER), "counts": {"val_unseen": {}}} | changes
    (root / EDITION.manifest).parent.mkdir(parents=True)
    (root / EDITION.manifest).write_text(json.dumps(content))
    return root


def test_a_split_is_made_when_it_is_asked_for(tmp_path: Path, made: list[object]) -> None:
    generate.ensure_data(HOUSES, tmp_path, "val_unseen")
    assert made == [(HousesConfig(), ("val_unseen",))]


def test_what_is_there_is_kept_and_decides_the_houses_of_the_rest(tmp_path: Path, made: list[object]) -> None:
    there(tmp_path)
    generate.ensure_data(HOUSES, tmp_path, "val_unseen")
    generate.ensure_data(HOUSES, tmp_path, "envdrop")  # never by itself
    assert made == []
    generate.ensure_data(HOUSES, tmp_path, "train")
    assert made == [(OTHER, ("train",))]


def test_other_benchmarks_need_nothing(tmp_path: Path, made: list[object]) -> None:
    generate.ensure_data(get_benchmark("r2r-ce"), tmp_path, "val_unseen")
    assert made == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"version": "houses-2"},
            f"holds data of houses-2, but this is {EDITION.version}; run `vlnbench data houses`",
        ),
        ({"counts": 3}, "field 'version' or 'counts' cannot be read"),
        ({"config": {"seed": 7}}, "field 'config' cannot be read"),
    ],
)
def test_other_data_are_refused(
    tmp_path: Path, made: list[object], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        generate.ensure_data(HOUSES, there(tmp_path, **changes), "train")
    assert made == []
