"""Model families: the contract, and a family that the core has never heard of going the whole way."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from agents.streamvln.options import FAMILY, StreamVLNTraining
from tests.training.driver import ROOT, kill_after, log_of, run_all
from tests.training.recurrent import RECURRENT, RecurrentTraining
from vlnbench.cli import main
from vlnbench.conformance import FamilyConformance
from vlnbench.errors import UsageError
from vlnbench.training.family import find as families
from vlnbench.training.family.checkpoints import Source
from vlnbench.training.family.find import find_family
from vlnbench.training.family.sources import find_source, shipped
from vlnbench.training.family.spec import FamilySpec
from vlnbench.training.options import TrainOptions

NAME = "tests.training.recurrent:RECURRENT"


def write_walks(root: Path, *names: str) -> Path:
    """Sets of three short walks each, with pictures and depth maps."""
    for number, name in enumerate(names):
        rng, records = random.Random(number), []
        for walk, length in enumerate((14, 9, 5)):
            video = f"images/scan_r2r_{walk:06d}"
            for kind, mode in (("rgb", "jpg"), ("depth", "png")):
                (root / name / video / kind).mkdir(parents=True)
                for i in range(length):
                    pixels = np.full((12, 16), rng.randrange(256), dtype=np.uint8)
                    Image.fromarray(pixels).convert("RGB").save(root / name / video / kind / f"{i:03d}.{mode}")
            actions = [-1, *(rng.randint(1, 3) for _ in range(length - 1))]
            texts = [f"Go to the red chair number {number}.", "Turn left and stop."]
            records.append({"id": walk, "video": video, "instructions": texts, "actions": actions})
        (root / name / "annotations.json").write_text(json.dumps(records))
    return root


class TestRecurrent(FamilyConformance):
    def make_spec(self) -> FamilySpec:
        return RECURRENT

    def make_options(self, folder: Path) -> TrainOptions:
        sets = write_walks(folder / "sets", "Rooms", "Halls")
        return RecurrentTraining(
            family=NAME,
            checkpoint="preset:recurrent-small",
            out=folder / "out",
            trajectories=sets,
            sets=("Rooms", "Halls"),
        )

    def make_walk_options(self, options: TrainOptions) -> TrainOptions:
        return dataclasses.replace(options, length=14)  # windows begin without memory


class TestStreamVLN(FamilyConformance):
    @pytest.fixture(autouse=True)
    def _one_phrase(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Training and agent draw the words before a frame, each its own."""
        monkeypatch.setattr(random.Random, "choice", lambda _, phrases: phrases[0])

    def make_spec(self) -> FamilySpec:
        return FAMILY

    def make_options(self, folder: Path) -> TrainOptions:
        sets = write_walks(folder / "sets", "R2R")
        kind = StreamVLNTraining
        return kind(checkpoint="preset:streamvln-tiny", out=folder / "out", trajectories=sets, frames=8, history=2)

    def make_walk_options(self, options: TrainOptions) -> TrainOptions:
        return dataclasses.replace(options, wording="evaluation", augment=False)


def request(root: Path, out: str, **changes: Any) -> dict[str, Any]:
    settings = {
        "family": NAME,
        "checkpoint": "preset:recurrent-small",
        "trajectories": root / "sets",
        "sets": ["Rooms", "Halls:2"],
        "sight": "depth",
        "memory_lr": 3e-3,
        "learning_rate": 1e-2,
        "out": root / out,
        "batch": 2,
        "accumulation": 1,
        "steps": 6,
        "log_every": 1,
        "save_every": 2,
        "workers": 0,
    }
    return {**settings, **changes}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recurrent")
    write_walks(root / "sets", "Rooms", "Halls")
    run_all([request(root, "whole"), request(root, "rgb", sight="rgb", steps=2)], processes=2)
    return root


def weights(out: Path) -> bytes:
    return (out / "model" / "weights.safetensors").read_bytes()


@pytest.mark.slow
def test_it_trains_on_two_processes_with_its_own_options(trained: Path) -> None:
    entries = log_of(trained / "whole")
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert set(entries[0]["learning_rates"]) == {"reader", "eyes", "memory", "head"}
    assert entries[0]["learning_rates"]["memory"] == pytest.approx(0.3 * entries[0]["learning_rates"]["head"])
    assert {"seeing", "remembering"} <= set(entries[0]["seconds"])
    assert len(entries[0]["memory"]) == 2
    manifest = json.loads((trained / "whole" / "train.json").read_text())
    assert (manifest["family"], manifest["world_size"]) == ("recurrent", 2)
    assert set(manifest["data"]) == {"Rooms", "Halls"}
    assert weights(trained / "whole") != weights(trained / "rgb")
    assert json.loads((trained / "whole" / "model" / "recurrent.json").read_text())["sight"] == "depth"


@pytest.mark.slow
def test_killed_it_goes_on_byte_equal(trained: Path, tmp_path: Path) -> None:
    stopped = {**request(trained, "unused"), "out": tmp_path / "stopped", "steps": 30}
    whole = {**stopped, "out": tmp_path / "whole"}
    kill_after(stopped, 2)
    assert not (tmp_path / "stopped" / "model").exists()
    run_all([stopped, whole])
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def hostile(path: Path, witness: Path) -> None:
    """A state file whose unpickling would run a command."""

    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {witness}",)

    torch.save({"module": Runs()}, path)


@pytest.mark.slow
def test_a_hostile_or_damaged_state_runs_nothing_and_is_one_line(trained: Path, tmp_path: Path) -> None:
    asked = {**request(trained, "unused"), "out": tmp_path / "run", "steps": 2}
    run_all([asked])
    whole = weights(tmp_path / "run")
    model = tmp_path / "run" / "model"
    model.rename(tmp_path / "finished")
    state = tmp_path / "run" / "state" / "step-1" / "all"
    state.mkdir(parents=True)
    witness, file = tmp_path / "ran", state / "mp_rank_00_model_states.pt"
    for damage in (
        lambda: hostile(file, witness),
        lambda: file.write_bytes(b""),
        lambda: file.write_bytes(b"PK\x03\x04" + b"\0" * 99),
        lambda: torch.save([1], file),
        lambda: torch.save({"module": {}}, file),
        lambda: os.mkfifo(file),
    ):
        damage()
        (answer,) = run_all([asked])
        assert f"{state.parent}: no state that training has saved (" in answer["error"]
        assert "\n" not in answer["error"]
        assert not witness.exists()
        assert not model.exists()
        file.unlink()
    assert (tmp_path / "finished" / "weights.safetensors").read_bytes() == whole


def test_the_command_shows_its_options_and_refuses_those_of_another(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--family", NAME, "--help"])
    printed = capsys.readouterr().out
    assert "--memory-lr" in printed
    assert "--frames" not in printed
    given = ["--family", NAME, "--checkpoint", "preset:recurrent-small", "--out", str(tmp_path), "--frames", "8"]
    assert main(["train", *given]) == 2
    line = capsys.readouterr().err
    assert line.startswith("vlnbench: error: family 'recurrent' takes other options: leave out --frames")
    assert "(--frames is an option of streamvln" in line


def test_it_is_planned_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--family", NAME, "--model", "recurrent-small", "--length", "9", "--format", "json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["tokens"] == 9
    assert set(planned["parts"]) == set(RecurrentTraining.PARTS)


def test_a_family_that_cannot_be_planned_says_so() -> None:
    mute = dataclasses.replace(RECURRENT, planning=None, unplanned="its memory grows with the episode")
    with pytest.raises(
        UsageError, match="family 'recurrent' cannot be planned: its memory grows with the episode"
    ):
        mute.check_plannable()


def test_a_bare_name_is_the_trained_checkpoint_and_a_preset_is_spelled_apart(tmp_path: Path) -> None:
    assert find_family("", "streamvln-tiny")[1] == Source(
        "checkpoint", "streamvln-tiny", shipped()["streamvln-tiny"]
    )
    assert find_family("", "preset:streamvln-tiny")[1] == Source("preset", "streamvln-tiny")
    assert find_source("recurrent-small", [RECURRENT]) == Source("preset", "recurrent-small")
    with pytest.raises(UsageError, match="no checkpoint of a family known here"):
        find_family("", str(tmp_path))


def test_a_checkpoint_of_two_families_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("agents.table.FAMILIES", {"streamvln": "agents.streamvln.options:FAMILY", "other": NAME})
    greedy = dataclasses.replace(RECURRENT, name="other", recognizes=lambda path: True)
    monkeypatch.setattr("tests.training.recurrent.RECURRENT", greedy)
    families._load.cache_clear()
    try:
        with pytest.raises(UsageError, match="may be of the families streamvln, other; say which with --family"):
            find_family("", "streamvln-tiny")
    finally:
        families._load.cache_clear()


MATRIX = f"""
name: recurrent
houses: {{data_root: data, train_houses: 2, val_unseen_houses: 1, train_episodes: 12, val_seen_episodes: 2,
         val_unseen_episodes: 2, rooms_min: 4, rooms_max: 5}}
collect:
  R2R: {{benchmark: houses-r2r, set: r2r, data_root: data, frame_width: 64, tours: 4}}
train: {{family: "{NAME}", checkpoint: preset:recurrent-small, trajectories: data/trajectories, batch: 1,
        accumulation: 1, steps: 2, workers: 0, log_every: 1, memory_lr: 1e-3}}
evaluate: {{data_root: data, splits: [val_unseen], episodes: 2, envs: 1}}
axes:
  tunable_parts:
    - {{label: all, tunable_parts: [reader, eyes, memory, head]}}
    - {{label: head, tunable_parts: [head]}}
run: {{jobs: 1, gpus_per_setting: 0}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_it_runs_in_a_matrix_and_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    command = [sys.executable, "-m", "vlnbench", "matrix", "run", "matrix.yaml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    assert "recurrent: 2 done" in result.stdout
    rows = json.loads((tmp_path / "results" / "recurrent" / "matrix.json").read_text())["rows"]
    for row in rows:
        assert row["evaluate"]["agent"] == RECURRENT.agent
        assert row["vram"]["planned"] > 0
        assert row["trainable"]["head"] > 0
        assert (row["trainable"]["memory"] > 0) == (row["name"] == "all")
        assert ("memory_lr" in row["options"] and row["options"]["memory_lr"] is not None) == (
            row["name"] == "all"
        )
        assert row["results"]["val_unseen"]["episodes"] == 2
        assert row["results"]["val_unseen"]["n_errors"] == 0
