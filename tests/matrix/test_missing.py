"""Sets as they are published, of which the frames still have to be rendered: said before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.matrix.conftest import Write
from vlnbench.cli import main

RECORD = {"id": 1, "video": "images/s_envdrop_000001", "instructions": ["Go."], "actions": [-1, 1, 1, 1]}


@pytest.fixture
def file(folder: Path, write: Write) -> Path:
    """Two settings, one of which trains on walks without frames."""
    (folder / "sets" / "EnvDrop").mkdir()
    (folder / "sets" / "EnvDrop" / "annotations.json").write_text(json.dumps([RECORD]))
    arms = [{"label": "R2R", "sets": ["R2R"]}, {"label": "both", "sets": ["R2R", "EnvDrop"]}]
    return write(collect={"EnvDrop": {"set": "envdrop"}}, axes={"data": arms}, run={"gpus_per_setting": 0})


MISSING = (
    "sets/EnvDrop: 1 of 1 walks have no frames; extract the archives of frames, or where none are published "
    "render them: `vlnbench data render sets/EnvDrop` (needed by 1 of 2 settings: 'both')"
)


def test_a_dry_run_names_walks_without_frames(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "run", str(file), "--dry-run"]) == 0
    assert f"missing: {MISSING}" in capsys.readouterr().out
    frame = file.parent / "sets" / "EnvDrop" / RECORD["video"] / "rgb" / "000.jpg"
    frame.parent.mkdir(parents=True)
    frame.touch()
    assert main(["matrix", "run", str(file), "--dry-run"]) == 0
    assert "missing:" not in capsys.readouterr().out


def test_nothing_is_run_over_walks_without_frames(
    file: Path, faked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(file.parent.rglob("*"))
    assert main(["matrix", "run", str(file)]) == 2
    error = capsys.readouterr().err
    assert MISSING in error
    assert error.count("\n") == 1
    assert sorted(file.parent.rglob("*")) == before
