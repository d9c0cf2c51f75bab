"""The family of one file keeps the contract, and is trained and evaluated from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.test_examples import EXAMPLES
from tests.training.workshop import write_walks
from vlnbench.cli import main
from vlnbench.conformance import CheckpointsConformance, TrainsConformance
from vlnbench.training.family.find import get_family
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.options import TrainOptions

NAME = "small_family:FAMILY"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


class TestSmall(CheckpointsConformance, TrainsConformance):
    def make_spec(self) -> FamilySpec:
        return get_family(NAME)

    def make_options(self, folder: Path) -> TrainOptions:
        write_walks(folder / "sets/R2R", [5, 4])
        kind = get_family(NAME).check_training()
        return kind(family=NAME, checkpoint="preset:small", out=folder / "out", trajectories=folder / "sets")


def test_it_is_a_hundred_lines() -> None:
    lines = (EXAMPLES / "small_family.py").read_text().splitlines()
    assert len([line for line in lines if line.strip() and '"""' not in line]) <= 100


@pytest.mark.needs("deepspeed")
def test_it_trains_from_the_command_line(tmp_path: Path) -> None:
    write_walks(tmp_path / "sets/R2R", [5, 4])
    sets = ["--trajectories", str(tmp_path / "sets"), "--sets", "R2R", "--zero", "0", "--steps", "2"]
    start = ["train", "--family", NAME, "--checkpoint", "preset:small", "--workers", "0"]
    assert main([*start, *sets, "--out", str(tmp_path / "run")]) == 0
    assert get_family(NAME).recognizes(tmp_path / "run/model")
