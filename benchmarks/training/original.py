"""Training steps beside those of the original StreamVLN: same checkpoint, windows and machine, taking turns.

    git clone https://github.com/InternRobotics/StreamVLN /tmp/streamvln && git -C /tmp/streamvln checkout e48f6ff
    python -m venv /tmp/old-env && /tmp/old-env/bin/pip install torch torchvision pillow transformers==4.45.1 \\
        accelerate==0.28.0 einops timm av
    OMP_NUM_THREADS=1 python -m benchmarks.training.original --code /tmp/streamvln \\
        --python /tmp/old-env/bin/python

The checkpoint is a tiny one whose vision tower takes what the original's code insists on, images of 384 pixels in
patches of 14; windows are the published ones, 32 steps of 640x480 JPEG frames, two per batch. A step reads and
collates them, runs forward and backward in float32 and takes a step of AdamW; nothing is recomputed. Seconds are
those of the CPU, so that other work on the machine counts little: give one thread. In the second table the vision
tower is frozen, and vlnbench finds its features in the cache. Both sides run SDPA attention in the language model;
the original's vision tower knows no other than its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from agents.streamvln.family import create
from agents.streamvln.options import FAMILY as STREAMVLN
from agents.streamvln.options import PARTS, Preset, StreamVLNTraining
from benchmarks.training.feature_cache import TEXTS, write_trajectories
from benchmarks.training.original_steps import SEED
from vlnbench.training.family.sources import find_source
from vlnbench.training.feature_cache import open_cache
from vlnbench.training.parts import freeze
from vlnbench.training.setup import Process

SIZES = Preset(
    hidden_size=64,
    intermediate_size=128,
    layers=2,
    heads=4,
    kv_heads=2,
    vision_width=48,
    vision_mlp=96,
    blocks=2,
    vision_heads=4,
    image_size=384,
    patch_size=14,
    vocabulary=1000,
)
BATCH = 2
Step = Callable[[list[int]], dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, required=True)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        prepare(root)
        for frozen in (False, True):
            print(("vision tower frozen, features cached" if frozen else "everything trained") + "\n", flush=True)
            print(compare(root, options, frozen) + "\n", flush=True)


def prepare(root: Path) -> None:
    """A checkpoint that both sides read, and trajectories."""
    create(SIZES, root / "checkpoint", TEXTS * 20, seed=0)
    path = root / "checkpoint" / "config.json"
    extra = {"mm_tunable_parts": ",".join(PARTS), "mm_patch_merge_type": "flat"}
    path.write_text(json.dumps(json.loads(path.read_text()) | extra))
    write_trajectories(root / "trajectories" / "R2R")


def compare(root: Path, options: argparse.Namespace, frozen: bool) -> str:
    """Table of both sides. The first round warms up and fills the cache; its losses have to agree."""
    command = [options.python, Path(__file__).with_name("original_steps.py"), options.code, root / "checkpoint"]
    arguments = [*command, root / "trajectories" / "R2R", "frozen" if frozen else "trained"]
    child = subprocess.Popen(
        [str(each) for each in arguments], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    stdin, stdout = child.stdin, child.stdout

    def original(indices: list[int]) -> dict[str, float]:
        stdin.write(json.dumps({"step": indices}) + "\n")
        stdin.flush()
        answer: dict[str, float] = json.loads(stdout.readline())
        return answer

    sides: dict[str, Step] = {"original": original, "vlnbench": ours(root, frozen)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    indices = [1, 3]  # one trajectory's second window under two of its instructions: eight memory frames
    try:
        for _ in range(1 + options.rounds):
            for name, step in sides.items():
                found[name].append(step(indices))
    finally:
        stdin.close()
        child.wait()
    seconds = {name: [each["seconds"] for each in steps[1:]] for name, steps in found.items()}
    base = statistics.median(seconds["original"])
    rows = [
        [
            name,
            BATCH / statistics.median(taken),
            base / statistics.median(taken),
            *(step["loss"] for step in steps),
        ]
        for (name, steps), taken in zip(found.items(), seconds.values(), strict=True)
    ]
    headers = [
        "side",
        "windows/s of CPU",
        "ratio",
        *(f"loss {number + 1}" for number in range(1 + options.rounds)),
    ]
    return str(tabulate(rows, headers=headers, floatfmt=("", ".3f", ".2f", *[".5f"] * (1 + options.rounds))))


def ours(root: Path, frozen: bool) -> Step:
    """A step of vlnbench's, on the pieces that `vlnbench train` is made of, without DeepSpeed around them."""
    checkpoints, family = STREAMVLN.load_trainable()
    settings: dict[str, Any] = {
        "checkpoint": str(root / "checkpoint"),
        "out": root / "out",
        "tunable_parts": PARTS[1:] if frozen else PARTS,
        "augment": False,
        "gradient_checkpointing": False,
        "zero": 0,
        "feature_cache": root / "cache" if frozen else None,
    }
    source = find_source(str(root / "checkpoint"), [STREAMVLN])
    options = checkpoints.settled(source, StreamVLNTraining(**settings))
    device = torch.device("cpu")
    network = family.fitted(
        checkpoints.load(root / "checkpoint", options, checkpoints.placement(options, device)), options
    )
    freeze(network, family, options)
    network.train()
    tower = open_cache(options, family.features(network, device), Process(0, 0, 1, device)) if frozen else None
    found = family.read_set(root / "trajectories" / "R2R", options)
    known = None if tower is None else tower.known
    (samples,) = family.samples([found], network, root / "checkpoint", options, known)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def step(indices: list[int]) -> dict[str, float]:
        began = time.process_time()
        batch = family.collate([samples.sample(index, random.Random(SEED + index)) for index in indices])
        if tower is not None:
            batch["images"] = tower.features(batch["images"])
        loss = family.loss(network, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.item(), "seconds": time.process_time() - began}

    return step


if __name__ == "__main__":
    main()
