"""The small model trained from scratch on the GPU and on the CPU: are the loss curves alike, how fast is it?"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_evidence.pieces import Job
from envs.houses.files.dataset import generate
from envs.houses.options import HousesConfig
from vlnbench.util.machine import cores

STEPS, TOY_STEPS, TOURS, TOY_TOURS, BATCH = 150, 3, 40, 2, 8
LIMIT_S = 400
"""For any one command here."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One training. Another seed says what differences mean: with it only the order of windows is another."""

    name: str
    on_gpu: bool
    dtype: str = "float32"
    seed: int = 0


ARMS = (
    Arm("GPU, float32", True),
    Arm("CPU, float32", False),
    Arm("GPU, bfloat16", True, "bfloat16"),
    Arm("GPU, float32, another seed", True, seed=1),
)


def run(job: Job) -> Mapping[str, Any]:
    """Train with each arm on the same walks; the toy trains all of them on the CPU."""
    steps = TOY_STEPS if job.toy else STEPS
    found: dict[str, Any] = {"steps": steps, "batch": BATCH, "arms": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _collect(folder, TOY_TOURS if job.toy else TOURS)
        for arm in ARMS[:2] if job.toy else ARMS:
            found["arms"][arm.name] = _train(arm, folder, steps)
            job.save(found)
    curves = {name: each["losses"] for name, each in found["arms"].items()}
    first = curves.pop(ARMS[0].name)
    found["differences"] = {
        name: round(max(abs(a - b) for a, b in zip(curve, first, strict=True)), 6)
        for name, curve in curves.items()
    }
    return found


def _collect(folder: Path, tours: int) -> None:
    """Walks in a few generated houses."""
    houses = HousesConfig(
        train_houses=4,
        val_unseen_houses=1,
        train_episodes=max(12, 2 * tours),
        val_seen_episodes=3,
        val_unseen_episodes=3,
    )
    generate(folder / "data", houses)
    command = ["collect", "--data-root", folder / "data", "--out", folder / "sets" / "R2R", "--frame-width", 128]
    command += ["--tours", tours, "--allow-partial", "--sim", "embedded", "--workers", min(8, cores())]
    _vlnbench(command, on_gpu=False)


def _train(arm: Arm, folder: Path, steps: int) -> dict[str, Any]:
    """Losses by step, and windows a second from the second half of the steps on."""
    out = folder / arm.name.replace(" ", "").replace(",", "-")
    command = ["train", "--checkpoint", "preset:streamvln-tiny", "--trajectories", folder / "sets", "--out", out]
    command += [
        "--sets",
        "R2R",
        "--steps",
        steps,
        "--batch",
        BATCH,
        "--accumulation",
        1,
        "--zero",
        0,
        "--seed",
        arm.seed,
    ]
    command += [
        "--learning-rate",
        "1e-3",
        "--adam-beta2",
        0.98,
        "--dtype",
        arm.dtype,
        "--no-tf32",
        "--log-every",
        1,
    ]
    command += ["--wording", "evaluation", "--no-augment", "--no-gradient-checkpointing", "--workers", 0]
    began = time.monotonic()
    _vlnbench(command, arm.on_gpu)
    log = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
    return {
        "losses": [entry["loss"] for entry in log],
        "windows_per_s": round(statistics.median(entry["windows_per_s"] for entry in log[len(log) // 2 :]), 2),
        "seconds": round(time.monotonic() - began, 1),
        "allocated": log[-1]["memory"][0]["allocated"],
    }


def _vlnbench(arguments: list[Any], on_gpu: bool) -> None:
    """Run a command of vlnbench in a process of its own, which sees the GPU or none."""
    environment = dict(os.environ) if on_gpu else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "vlnbench", *map(str, arguments)]
    subprocess.run(command, env=environment, check=True, timeout=LIMIT_S)
