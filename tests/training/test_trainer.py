from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from agents.streamvln.checkpoint import load
from agents.streamvln.model import part_of
from agents.streamvln.presets import Preset, create
from tests.training.driver import ROOT, log_of, run_all
from vlnbench.training.options import PARTS

SMALL = Preset(
    hidden_size=32,
    intermediate_size=48,
    layers=2,
    heads=4,
    kv_heads=2,
    vision_width=16,
    vision_mlp=32,
    blocks=1,
    vision_heads=2,
    image_size=32,
    patch_size=16,
    vocabulary=300,
)
TEXTS = ("Walk to the red chair and stop.", "Turn left, then enter the kitchen.")
RATES = {"learning_rate": 1e-3, "vision_tower_lr": 1e-4, "projector_lr": 3e-3}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small checkpoint, base/, and a trajectory set, trajectories/R2R."""
    root = tmp_path_factory.mktemp("workshop")
    create(SMALL, root / "base", TEXTS * 20, seed=0)
    rng = random.Random(0)
    records = []
    for number, length in enumerate((40, 12, 9)):
        video = f"images/scan_r2r_{number:06d}"
        folder = root / "trajectories" / "R2R" / video / "rgb"
        folder.mkdir(parents=True)
        for i in range(length):
            colours = np.full((24, 32, 3), [rng.randrange(256) for _ in range(3)], dtype=np.uint8)
            Image.fromarray(colours).save(folder / f"{i:03d}.jpg")
        actions = [-1, *(rng.randint(1, 3) for _ in range(length - 1))]
        records.append({"id": number, "video": video, "instructions": list(TEXTS), "actions": actions})
    (root / "trajectories" / "R2R" / "annotations.json").write_text(json.dumps(records))
    return root


def options(workshop: Path, out: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "checkpoint": workshop / "base",
        "trajectories": workshop / "trajectories",
        "out": out,
        "steps": 2,
        "log_every": 1,
        "workers": 0,
        "warmup": 0.0,
        "schedule": "constant",
        **RATES,
    }
    return {**settings, **changes}


def digests(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()
        for name, parameter in load(folder).named_parameters()
    }


@pytest.mark.parametrize("zero", [0, 2])
def test_frozen_parts_keep_every_byte_and_tuned_ones_move(workshop: Path, tmp_path: Path, zero: int) -> None:
    chosen = [parts for size in (1, 2, 3) for parts in combinations(PARTS, size)]
    requests = [
        options(workshop, tmp_path / "-".join(parts), tunable_parts=",".join(parts), zero=zero)
        for parts in chosen
        if all(part in parts for part in PARTS if part in RATES)
    ]
    for request in requests:
        for name, part in (("vision_tower_lr", PARTS[0]), ("projector_lr", PARTS[1])):
            if part not in request["tunable_parts"]:
                del request[name]
    answers = run_all(requests)
    assert [answer.get("steps") for answer in answers] == [2] * len(chosen)
    before = digests(workshop / "base")
    for parts, request in zip(chosen, requests, strict=True):
        after = digests(request["out"] / "model")
        for name in before:
            trained = part_of(name) in parts and "post_layernorm" not in name
            if not trained:
                assert after[name] == before[name], (parts, name)
            elif "embed_tokens" not in name and "k_proj.bias" not in name:  # those may have no gradient
                assert after[name] != before[name], (parts, name)


def test_every_zero_stage_trains_alike_and_at_the_rates_of_the_parts(workshop: Path, tmp_path: Path) -> None:
    requests = [options(workshop, tmp_path / str(zero), zero=zero, steps=1) for zero in range(4)]
    requests += [
        options(workshop, tmp_path / "offload", zero=2, steps=1, offload_optimizer=True),
        options(workshop, tmp_path / "offload3", zero=3, steps=1, offload_optimizer=True, offload_parameters=True),
    ]
    losses = [answer["loss"] for answer in run_all(requests)]
    assert losses == pytest.approx([losses[0]] * len(losses), abs=1e-6)
    base = dict(load(workshop / "base").named_parameters())
    expected = {PARTS[0]: 1e-4, PARTS[1]: 3e-3, PARTS[2]: 1e-3}
    for request in requests:
        largest = dict.fromkeys(PARTS, 0.0)
        for name, parameter in load(request["out"] / "model").named_parameters():
            moved = float((parameter - base[name]).detach().abs().max())
            largest[part_of(name)] = max(largest[part_of(name)], moved)
        for part, rate in expected.items():  # the first step of Adam moves by its learning rate
            assert largest[part] == pytest.approx(rate, rel=2e-3), (request["out"].name, part)
        (entry,) = log_of(request["out"])
        assert entry["learning_rates"] == expected


def test_two_processes_see_the_batches_of_one(workshop: Path, tmp_path: Path) -> None:
    one = options(workshop, tmp_path / "one", zero=2, batch=2, accumulation=2, steps=3)
    (alone,) = run_all([one])
    requests = [
        options(workshop, tmp_path / f"two-{zero}", zero=zero, batch=2, accumulation=1, steps=3) for zero in (2, 3)
    ]
    answers = run_all(requests, processes=2)
    for request, answer in zip(requests, answers, strict=True):
        assert answer["loss"] == pytest.approx(alone["loss"], abs=1e-5)
        one_model, two_models = (load(folder / "model") for folder in (one["out"], request["out"]))
        for first, second in zip(one_model.parameters(), two_models.parameters(), strict=True):
            torch.testing.assert_close(first, second, atol=2e-4, rtol=0)


def test_a_resumed_run_is_bit_equal(workshop: Path, tmp_path: Path) -> None:
    """Interrupted after a save: the run goes on and ends with the same bytes, dropout of adapters included."""
    settings = {"steps": 6, "save_every": 2, "tunable_parts": "mm_mlp_adapter", "lora_rank": 4}
    whole, stopped = (options(workshop, tmp_path / name, **settings) for name in ("whole", "stopped"))
    for request in (whole, stopped):
        del request["vision_tower_lr"]
    run_all([whole])
    command = [sys.executable, "-m", "tests.training.driver", json.dumps([stopped], default=str)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "stopped" / "state" / "step-2").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    interrupted = not (tmp_path / "stopped" / "model").exists()
    run_all([stopped])
    assert interrupted
    assert digests(tmp_path / "stopped" / "model") == digests(tmp_path / "whole" / "model")


def test_adapters_train_beside_a_frozen_model_and_are_merged(workshop: Path, tmp_path: Path) -> None:
    request = options(workshop, tmp_path / "lora", tunable_parts="", lora_rank=4, learning_rate=1e-2)
    del request["vision_tower_lr"], request["projector_lr"]
    run_all([request])
    before, after = digests(workshop / "base"), digests(tmp_path / "lora" / "model")
    changed = {name for name in before if after[name] != before[name]}
    projections = {name for name in before if name.startswith("model.layers.") and name.endswith("_proj.weight")}
    assert changed == projections


def test_steps_of_matches_compute(workshop: Path, tmp_path: Path) -> None:
    copied = tmp_path / "trajectories"
    shutil.copytree(workshop / "trajectories", copied)
    shutil.copytree(copied / "R2R", copied / "EnvDrop")
    requests = [
        options(workshop, tmp_path / name, trajectories=copied, steps=None, **changes)
        for name, changes in {
            "r2r": {},
            "both": {"envdrop": True},
            "matched": {"envdrop": True, "steps_of": ["R2R"]},
            "twice": {"sets": ["R2R:2"], "epochs": 0.5},
        }.items()
    ]
    assert [answer["steps"] for answer in run_all(requests)] == [2, 4, 2, 2]


def test_a_preset_trains_from_scratch(workshop: Path, tmp_path: Path) -> None:
    request = options(workshop, tmp_path / "tiny", checkpoint="streamvln-tiny", steps=1)
    (answer,) = run_all([request])
    assert answer["steps"] == 1
    assert (tmp_path / "tiny" / "model" / "tokenizer.json").exists()


def test_bad_input_is_one_line_and_writes_nothing(workshop: Path, tmp_path: Path) -> None:
    contradicting = tmp_path / "ds.json"
    contradicting.write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}))
    optimizing = tmp_path / "optimizer.json"
    optimizing.write_text(json.dumps({"optimizer": {"type": "AdamW"}}))
    lost = tmp_path / "lost"
    shutil.copytree(workshop / "trajectories", lost)
    next(lost.rglob("003.jpg")).unlink()
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes").write_text("mine")
    cases: dict[str, dict[str, Any]] = {
        "unknown tunable part 'mm_vision_towr': did you mean 'mm_vision_tower'": {
            "tunable_parts": "mm_vision_towr"
        },
        "--tunable-parts: nothing would be trained": {"tunable_parts": ""},
        "--vision-tower-lr: mm_vision_tower is not in --tunable-parts": {"tunable_parts": PARTS[1]},
        "--zero 4: expected a stage from 0 to 3": {"zero": 4},
        "--offload-parameters: needs --zero 3": {"offload_parameters": True},
        "--batch 0: expected at least 1": {"batch": 0},
        "zero_optimization.stage 3 contradicts the options, which make it 2": {"deepspeed": contradicting},
        "optimizer: would override the learning rates": {"deepspeed": optimizing},
        "annotations.json: not there": {"sets": ["R2"]},
        "--sets R2R:0: expected NAME or NAME:WEIGHT": {"sets": ["R2R:0"]},
        "(1 frames missing)": {"trajectories": lost},
        "no such folder, and no preset of that name (presets: streamvln-tiny": {"checkpoint": "streamvln-tiney"},
        "--feature-cache: the vision tower is trained": {"feature_cache": tmp_path / "cache"},
        "not one step; lower --batch": {"steps": None, "batch": 100},
        "not empty and not a training run": {"out": other},
        "num_history 5: expected a divisor of num_frames, 32": {"history": 5},
    }
    requests = [{**options(workshop, tmp_path / "out"), **changes} for changes in cases.values()]
    for expected, answer in zip(cases, run_all(requests), strict=True):
        assert expected in answer.get("error", "trained"), expected
        assert "\n" not in answer["error"]
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_run_is_refused(workshop: Path, tmp_path: Path) -> None:
    first = options(workshop, tmp_path / "run", steps=4, save_every=1)
    (tmp_path / "run" / "state").mkdir(parents=True)
    answers = run_all([first, {**first, "out": tmp_path / "fresh"}, {**first, "out": tmp_path / "fresh"}])
    assert "not empty and not a training run" in answers[0]["error"]
    assert answers[1]["steps"] == 4
    assert answers[2]["steps"] == 0  # complete: nothing is done again
    shutil.rmtree(tmp_path / "fresh" / "model")
    (changed,) = run_all([{**first, "out": tmp_path / "fresh", "learning_rate": 2e-3}])
    assert "holds another run: learning_rate 0.001 (now 0.002); choose another --out" in changed["error"]
