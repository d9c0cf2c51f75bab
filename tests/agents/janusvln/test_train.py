"""From a checkpoint over a training to an evaluation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agents.janusvln import network as checkpoint
from agents.janusvln.options import PARTS
from tests.agents.janusvln.tiny import write_tiny
from tests.agents.janusvln.walks import write_trajectories
from tests.training.driver import ROOT, log_of, run_all
from vlnbench.cli import main

pytestmark = pytest.mark.slow  # importing DeepSpeed alone takes seconds

TRAINED = ("mm_mlp", "mm_llm", "geometry_merger")


def test_small_trainings_from_scratch(tmp_path: Path) -> None:
    """With ZeRO 0, 2 and 3, with features kept and not, on one epoch: the same losses up to rounding."""
    write_trajectories(tmp_path / "sets/R2R", (6, 3))
    common: dict[str, Any] = {
        "checkpoint": "preset:janusvln-tiny",
        "trajectories": tmp_path / "sets",
        "tunable_parts": TRAINED,
        "batch": 1,
        "accumulation": 1,
        "steps": 14,
        "workers": 0,
        "log_every": 7,
        "learning_rate": 1e-3,
        "geometry_lr": 1e-4,
        "gradient_checkpointing": False,
    }
    kept: dict[str, Any] = {"feature_cache": tmp_path / "cache", "zero": 0}
    ways: dict[str, dict[str, Any]] = {
        "plain": {"zero": 0},
        "zero": {"zero": 2},
        "parts": {"zero": 3},
        "cold": kept,
        "warm": kept,
    }
    answers = run_all([{**common, **way, "out": tmp_path / name} for name, way in ways.items()])
    assert [answer.get("error") for answer in answers] == [None] * 5
    logs = {name: log_of(tmp_path / name) for name in ways}
    losses = {name: [entry["loss"] for entry in log] for name, log in logs.items()}
    for name in ways:
        assert losses[name] == pytest.approx(losses["plain"], rel=1e-3), name
    assert losses["cold"] == losses["warm"]
    assert losses["plain"][1] < losses["plain"][0], "it learns"
    first = logs["plain"][0]
    assert {"load", "vision", "geometry", "language", "backward", "optimizer"} <= first["seconds"].keys()
    assert first["learning_rates"]["geometry_merger"] == pytest.approx(
        0.1 * first["learning_rates"]["mm_llm"], rel=1e-6
    )
    assert first["memory_spread"]["spread"] == 0
    found, asked = (sum(entry["feature_cache"][key] for entry in logs["cold"]) for key in ("found", "frames"))
    assert 0 < found < asked, "frames of a walk are met again, so it saves time in the first epoch, too"
    counted = [sum(entry["feature_cache"][key] for entry in logs["warm"]) for key in ("found", "frames")]
    assert counted[0] == counted[1] == asked
    trained = checkpoint.load(tmp_path / "plain/model")
    base = checkpoint.load(tmp_path / "plain/base")
    for name, parameter in base.named_parameters():
        same = bool((trained.get_parameter(name) == parameter).all())
        assert same == name.startswith(("vggt.", "visual.blocks.", "visual.patch_embed.")), name


def small(folder: Path, out: str, **changes: Any) -> dict[str, Any]:
    """A training of the smallest network, on walks whose samples have one to four frames."""
    if not (folder / "base").exists():
        write_trajectories(folder / "sets/R2R", (4, 3))
        write_tiny(folder / "base", image_width=140)
    common: dict[str, Any] = {
        "checkpoint": str(folder / "base"),
        "trajectories": folder / "sets",
        "tunable_parts": TRAINED,
        "batch": 1,
        "accumulation": 1,
        "workers": 0,
        "log_every": 1,
        "learning_rate": 1e-3,
        "gradient_checkpointing": False,
    }
    return {**common, "out": folder / out, **changes}


def test_ranks_with_unlike_numbers_of_frames_train_alike_under_zero_3(tmp_path: Path) -> None:
    """VGGT runs once per frame: were every weight of it gathered by itself, ranks would wait for each other."""
    shared_out = tmp_path / "ds.json"
    shared_out.write_text(json.dumps({"zero_optimization": {"stage3_param_persistence_threshold": 0}}))
    requests = [
        small(tmp_path, "whole", zero=0, steps=3),
        small(tmp_path, "shared out", zero=3, steps=3, deepspeed=shared_out, hang_minutes=2),
    ]
    answers = run_all(requests, processes=2)
    assert [answer.get("error") for answer in answers] == [None, None]
    whole, shared = ([entry["loss"] for entry in log_of(request["out"])] for request in requests)
    assert shared == pytest.approx(whole, rel=1e-4)


def test_a_killed_training_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """Killed after a save; what it reads anew are frames, features kept and the order of samples."""
    kept = {"steps": 8, "save_every": 2, "zero": 2, "batch": 2, "feature_cache": tmp_path / "features"}
    stopped, whole = (small(tmp_path, name, **kept, group_by_length=True) for name in ("stopped", "whole"))
    command = [sys.executable, "-m", "tests.training.driver", json.dumps([stopped], default=str)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not (tmp_path / "stopped/state/step-2").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "stopped/model").exists()
    answers = run_all([stopped, whole])
    assert [answer["steps"] for answer in answers] == [8, 8]
    again, straight = (tmp_path / name / "model/model.safetensors" for name in ("stopped", "whole"))
    assert again.read_bytes() == straight.read_bytes()


def test_the_recorded_checkpoint_is_trained_and_walks_through_corridors(
    shared: Path, goldens: Path, tmp_path: Path
) -> None:
    """On the recorded frames, with the output layer as the published code has it; then the agent runs what came
    out."""
    request = {
        "checkpoint": str(goldens / "checkpoint"),
        "trajectories": goldens / "train_data",
        "sets": ("R2R", "ScaleVLN"),
        "tunable_parts": ("mm_mlp", "geometry_merger"),
        "train_head": True,
        "accumulation": 1,
        "steps": 1,
        "workers": 0,
        "zero": 0,
        "out": tmp_path / "run",
    }
    (answer,) = run_all([request])
    assert "error" not in answer
    counts = json.loads((tmp_path / "run/counts.json").read_text())
    assert counts["trainable"] == {**dict.fromkeys(PARTS, 0), "lora": 0} | counts["trainable"]
    assert sum(counts["trainable"].values()) == 117_184, "as many as recorded for vision=0 mlp=1 llm=0"
    model = ["--agent", "janusvln", "--checkpoint", str(tmp_path / "run/model"), "--device", "cpu"]
    data = ["--benchmark", "r2r-ce", "--split", "val_seen", "--data-root", str(shared / "data"), "--episodes", "1"]
    assert main(["eval", *model, *data, "--max-steps", "3", "--out", str(tmp_path / "eval")]) == 0
    (row,) = [json.loads(line) for line in (tmp_path / "eval/episodes.jsonl").read_text().splitlines()]
    assert row["status"] == "ok"
