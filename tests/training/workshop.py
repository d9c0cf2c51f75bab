"""A small StreamVLN, and walks whose frames have a color each, to train it on."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from agents.streamvln.options import Preset

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


def write_walks(folder: Path, lengths: Sequence[int]) -> None:
    """A set of walks of so many steps under both texts, in the layout of `vlnbench collect`."""
    rng = random.Random(0)
    records = []
    for number, length in enumerate(lengths):
        video = f"images/scan_r2r_{number:06d}"
        frames = folder / video / "rgb"
        frames.mkdir(parents=True)
        for i in range(length):
            colors = np.full((24, 32, 3), [rng.randrange(256) for _ in range(3)], dtype=np.uint8)
            Image.fromarray(colors).save(frames / f"{i:03d}.jpg")
        actions = [-1, *(rng.randint(1, 3) for _ in range(length - 1))]
        records.append({"id": number, "video": video, "instructions": list(TEXTS), "actions": actions})
    (folder / "annotations.json").write_text(json.dumps(records))
