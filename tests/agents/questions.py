"""Sets of questions about views with depth and semantic images, as `vlnbench data questions` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from vlnbench.training.collect.walk import depth_png, jpeg, png

SIZE = (96, 128)
OBJECTS, ROOMS = 3, 2


def write_questions(folder: Path, count: int = 3, *, depth: bool = True, **changes: Any) -> Path:
    """Views with two instructions and two questions, one of which actions answer too; `changes` go into the first
    record."""
    noise, records = np.random.default_rng(0), []
    for i in range(count):
        for kind, image in (
            ("images", jpeg(noise.integers(0, 256, (*SIZE, 3), dtype=np.uint8))),
            ("depth", depth_png(noise.random(SIZE, dtype=np.float32) * 10)),
        ):
            (folder / kind / "house").mkdir(parents=True, exist_ok=True)
            if kind == "images" or depth:
                suffix = "jpg" if kind == "images" else "png"
                (folder / kind / f"house/{i:04d}.{suffix}").write_bytes(image)
        pairs = [
            ("<image>\nFace the red sofa.", "←←" if i % 2 else "→"),
            ("What do you see?", "red sofa"),
            ("How far can you walk ahead?", "↑↑"),
            (f"Face the door number {i}.", "↑"),
        ]
        turns = [
            {"from": who, "value": text}
            for pair in pairs
            for who, text in zip(("human", "gpt"), pair, strict=True)
        ]
        records.append({"id": str(i), "image": f"images/house/{i:04d}.jpg", "conversations": turns})
    records[0] |= changes
    (folder / "conversations.json").write_text(json.dumps(records))
    return folder


def write_semantics(folder: Path, image: np.ndarray[Any, Any] | None = None, **changes: Any) -> Path:
    """Semantic images for the views of a set: an object in the upper left cell, one room everywhere."""
    (folder / "categories.json").write_text(
        json.dumps(
            {"object": [f"o{i}" for i in range(OBJECTS)], "room": [f"r{i}" for i in range(ROOMS)], **changes}
        )
    )
    if image is None:
        image = np.zeros((*SIZE, 2), np.uint8)
        image[:24, :32, 0], image[..., 1] = 3, 2
        image[84:, 100:104, 0] = 1  # 48 of the 768 pixels of a cell
        image[:9, 124:, 0] = 2  # 36 of them
    for path in (folder / "images").rglob("*.jpg"):
        semantic = folder / "semantic" / path.relative_to(folder / "images").with_suffix(".png")
        semantic.parent.mkdir(parents=True, exist_ok=True)
        semantic.write_bytes(png(image))
    return folder
