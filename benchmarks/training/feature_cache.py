"""Speed of training with and without kept features of a frozen vision tower, as ratios within one run.

    python -m benchmarks.training.feature_cache [--steps 12] [--rounds 2]

Trains projector and language model on synthetic trajectories of 640x480 JPEG frames, which are read in the
training process (`--workers 0`), so that decoding shows. "cold" starts with an empty cache, "warm" finds all
frames in it. The arms take turns; the best round of each counts, without its first steps.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tabulate import tabulate

from agents.streamvln.family import create
from agents.streamvln.options import PRESETS, Preset
from tests.training.driver import log_of, run_all

TINY = PRESETS["streamvln-tiny"]
SIZES = {
    "streamvln-tiny": TINY,
    "tower of 11 M": replace(TINY, vision_width=384, vision_mlp=1536, blocks=6, vision_heads=6, image_size=160),
}
TEXTS = ("Walk to the red chair and stop.", "Turn left, then enter the kitchen.", "Go up the stairs and wait.")
TRAJECTORIES, LENGTH = 6, 64
WARM_UP = 2
ARMS = ("none", "cold", "warm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    for name, preset in SIZES.items():
        with tempfile.TemporaryDirectory() as made:
            print(f"{name}\n{measure(Path(made), preset, options.steps, options.rounds)}\n", flush=True)


def measure(root: Path, preset: Preset, steps: int, rounds: int) -> str:
    """Table of the arms for one size of model."""
    create(preset, root / "base", TEXTS * 20, seed=0)
    write_trajectories(root / "trajectories" / "R2R")
    for number in range(rounds):
        run_all([request(root, arm, number, steps) for arm in ARMS])
    best: dict[str, Mapping[str, float]] = {}
    for arm, number in product(ARMS, range(rounds)):
        seconds = seconds_by_phase(root / f"{arm}-{number}")
        if arm not in best or sum(seconds.values()) < sum(best[arm].values()):
            best[arm] = seconds
    uncached = sum(best["none"].values())
    windows = 2 * (steps - WARM_UP)
    rows = [
        [arm, windows / sum(seconds.values()), uncached / sum(seconds.values()), *seconds.values()]
        for arm, seconds in best.items()
    ]
    headers = ["cache", "windows/s", "speed-up", *(f"{phase} (s)" for phase in best["none"])]
    return tabulate(rows, headers=headers, floatfmt=".2f")


def request(root: Path, arm: str, number: int, steps: int) -> dict[str, Any]:
    """Options of one run; "warm" uses the cache that "cold" of the same round filled."""
    return {
        "checkpoint": root / "base",
        "trajectories": root / "trajectories",
        "out": root / f"{arm}-{number}",
        "tunable_parts": ["mm_mlp_adapter", "mm_language_model"],
        "learning_rate": 1e-4,
        "augment": False,
        "batch": 2,
        "accumulation": 1,
        "steps": steps,
        "log_every": 1,
        "workers": 0,
        "feature_cache": None if arm == "none" else root / f"cache-{number}",
    }


def seconds_by_phase(out: Path) -> dict[str, float]:
    """Seconds of a run after its first steps."""
    steps = [entry["seconds"] for entry in log_of(out)][WARM_UP:]
    return {
        phase: sum(step[phase] for step in steps)
        for phase in ("load", "vision", "language", "backward", "optimizer")
    }


def write_trajectories(folder: Path) -> None:
    """Smooth pictures that compress like photographs of rooms."""
    rng, pixels = random.Random(0), np.random.default_rng(0)
    records = []
    for number in range(TRAJECTORIES):
        video = f"images/scan_r2r_{number:06d}"
        (folder / video / "rgb").mkdir(parents=True)
        for i in range(LENGTH):
            small = Image.fromarray(pixels.integers(0, 256, (48, 64, 3), dtype=np.uint8))
            small.resize((640, 480), Image.Resampling.BICUBIC).save(folder / video / "rgb" / f"{i:03d}.jpg")
        actions = [-1, *(rng.randint(1, 3) for _ in range(LENGTH - 1))]
        records.append({"id": number, "video": video, "instructions": list(TEXTS), "actions": actions})
    (folder / "annotations.json").write_text(json.dumps(records))


if __name__ == "__main__":
    main()
