"""Sets of short made walks with depth, as the collector writes them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from vlnbench.training.collect.walk import depth_png, jpeg


def write_walks(root: Path, *names: str, size: tuple[int, int] = (96, 128), **fields: Any) -> Path:
    """Sets of three walks each, with two instructions; frames of a height and width. `fields` go into records.

    The second walk is labeled by an expert, the third one has strays.
    """
    for number, name in enumerate(names):
        rng, records = random.Random(number), []
        noise = np.random.default_rng(number)
        for walk, length in enumerate((9, 6, 4)):
            video = f"images/scan_r2r_{walk:06d}"
            for kind in ("rgb", "depth"):
                (root / name / video / kind).mkdir(parents=True)
            for i in range(length):
                rgb = noise.integers(0, 256, (*size, 3), dtype=np.uint8)
                depth = noise.random(size, dtype=np.float32) * 10
                (root / name / video / f"rgb/{i:03d}.jpg").write_bytes(jpeg(rgb))
                (root / name / video / f"depth/{i:03d}.png").write_bytes(depth_png(depth))
            record = {
                "id": walk,
                "video": video,
                "instructions": [f"Go to the red chair number {number}.", "Turn left and stop."],
                "actions": [-1, *(rng.randint(1, 3) for _ in range(length - 1))],
                "distances": [round(5 - 0.25 * i, 3) for i in range(length)],
                "tokens": [[3, 4, 5], [7, 2]],
                **({"labels": [rng.randint(0, 3) for _ in range(length)]} if walk == 1 else {}),
                **({"strays": [2]} if walk == 2 else {}),
                **fields,
            }
            records.append({key: value for key, value in record.items() if value is not None})
        (root / name / "annotations.json").write_text(json.dumps(records))
    return root
