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
    "sets/EnvDrop: 1 of 1 walks lack frames; extract the archives of frames, or where none are published "
    "render them: `vlnbench data render sets/EnvDrop` (needed by 1 of 2 settings: 'both')"
)


def test_a_dry_run_names_walks_without_frames(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "run", str(file), "--dry-run"]) == 0
    assert f"missing: {MISSING}" in " ".join(capsys.readouterr().out.split())
    assert main(["matrix", "run", str(file), "--dry-run", "--only", "R2*"]) == 0
    shown = capsys.readouterr().out
    assert "missing:" not in shown
    assert "1 settings, 1 trainings" in shown
    assert main(["matrix", "run", str(file), "--dry-run", "--shard", "3/4"]) == 2
    assert "--only, --shard: no setting is among them" in capsys.readouterr().err
    frames = file.parent / "sets" / "EnvDrop" / str(RECORD["video"]) / "rgb"
    frames.mkdir(parents=True)
    for step in range(3):  # one is still missing
        (frames / f"{step:03d}.jpg").touch()
    assert main(["matrix", "run", str(file), "--dry-run"]) == 0
    assert f"missing: {MISSING}" in " ".join(capsys.readouterr().out.split())
    (frames / "003.jpg").touch()
    assert main(["matrix", "run", str(file), "--dry-run"]) == 0
    assert "missing:" not in capsys.readouterr().out


@pytest.mark.needs("deepspeed")
def test_nothing_is_run_over_walks_without_frames(
    file: Path, faked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(file.parent.rglob("*"))
    assert main(["matrix", "run", str(file)]) == 2
    error = capsys.readouterr().err
    assert MISSING in error
    assert error.count("\n") == 1
    assert sorted(file.parent.rglob("*")) == before


@pytest.mark.needs("deepspeed")
def test_nothing_is_run_with_inputs_that_do_not_go_with_the_checkpoint(
    write: Write, faked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the checkpoint says is not known to whoever reads the file."""
    file = write(axes={"history": [4, 5]})
    before = sorted(file.parent.rglob("*"))
    assert main(["matrix", "run", str(file)]) == 2
    error = capsys.readouterr().err
    assert "setting 'history=5': num_history 5: expected a divisor of num_frames, 32" in error
    assert error.count("\n") == 1
    assert sorted(file.parent.rglob("*")) == before


def test_a_checkpoint_without_its_tokenizer_is_named(
    folder: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the released v1_3 checkpoint comes; and one that is not there at all."""
    shipped = Path(__file__).parents[2] / "agents" / "checkpoints" / "streamvln-tiny"
    (folder / "bare").mkdir()
    for file in shipped.iterdir():
        if "token" not in file.name and file.name not in ("vocab.json", "merges.txt"):
            (folder / "bare" / file.name).symlink_to(file)
    for checkpoint, said in (
        ("bare", "bare has no tokenizer files: give --tokenizer"),
        ("nowhere", "checkpoint nowhere is not there"),
    ):
        train = {"family": "streamvln", "checkpoint": checkpoint, "trajectories": "sets", "steps": 4}
        path = write(train=train, run={"gpus_per_setting": 0})
        assert main(["matrix", "run", str(path), "--dry-run"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"missing: {said}" in shown
        assert "needed by 3 of 3 settings" in shown
