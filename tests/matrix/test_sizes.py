"""Beside the SR of a small model, what the same parts of a published size take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.streamvln.options import StreamVLNPlanning
from tests.matrix.documents import make_document
from vlnbench.cli import main
from vlnbench.matrix.plots import memory_axis
from vlnbench.matrix.sheet import read_document, sheet_of
from vlnbench.training.memory.plan import plan
from vlnbench.util.tables.sheet import written

AXES = {"tunable_parts": ["projector", "adapters"], "seed": ["seed=0", "seed=1"]}
CHOICES: dict[str, dict[str, Any]] = {
    "projector": {"tunable_parts": ["mm_mlp_adapter"], "lora_rank": 0},
    "adapters": {"tunable_parts": ["mm_mlp_adapter"], "lora_rank": 16},
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    document = make_document(AXES)
    for row in document["rows"]:
        row["options"] = {**CHOICES[row["labels"]["tunable_parts"]], "batch": 32, "optimizer": "muon"}
    (tmp_path / "matrix.json").write_text(json.dumps(document))
    return tmp_path


@pytest.mark.slow
def test_parts_and_adapters_are_planned_alone(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "table", str(results), "--sizes", "streamvln-8b", "--format", "csv"]) == 0
    assert "vram_sizes_bytes" in capsys.readouterr().out
    peaks = [
        plan(StreamVLNPlanning(model="streamvln-8b", tunable_parts=("mm_mlp_adapter",), lora_rank=rank)).peak
        for rank in (0, 0, 16, 16)
    ]
    document = read_document(results)
    assert [row["vram"]["sizes"] for row in document["rows"]] == peaks
    title, values = memory_axis(document)
    assert title == "streamvln-8b, the same parts on one card: planned (GB)"
    assert values == [peak / 1e9 for peak in peaks]
    table = written(sheet_of(results), "text")
    assert "streamvln-8b, planned" in table
    assert f"{peaks[-1] / 1e9:.1f}" in table


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("streamvln-tiny", "--sizes streamvln-tiny: expected published sizes, such as streamvln-8b"),
        ("nothing", "--sizes nothing: no such file or folder"),
    ],
)
def test_other_names_are_refused(
    results: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    before = (results / "matrix.json").read_bytes()
    assert main(["matrix", "table", str(results), "--sizes", name]) == 2
    assert message in capsys.readouterr().err
    assert (results / "matrix.json").read_bytes() == before


def test_parts_of_another_family_are_refused(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "table", str(results), "--sizes", "navila-8b"]) == 2
    assert "mm_mlp_adapter" in capsys.readouterr().err
    assert [path.name for path in results.iterdir()] == ["matrix.json"]


def test_a_document_without_options_is_refused(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((results / "matrix.json").read_text())
    del document["rows"][0]["options"]["lora_rank"]
    (results / "matrix.json").write_text(json.dumps(document))
    assert main(["matrix", "table", str(results), "--sizes", "streamvln-8b"]) == 2
    assert "matrix.json: lacks 'lora_rank'; run the matrix again" in capsys.readouterr().err
