"""Training sets in both published layouts, with frames by formula."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from tests.agents.janusvln.tiny import tiny_frames

TEXT = "  Walk to the red chair and stop. "


def write_frame(path: Path, seed: int, size: tuple[int, int] = (48, 64)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(tiny_frames(1, *size, seed=seed)[0].numpy()).save(path)


def write_trajectories(folder: Path, lengths: tuple[int, ...] = (11, 3)) -> Path:
    """The layout of ScaleVLN and of `vlnbench collect`: every action in turn, then STOP; two instructions each."""
    records = []
    for number, length in enumerate(lengths):
        video = f"images/scene_{number}"
        for i in range(length):
            write_frame(folder / video / "rgb" / f"{i:03d}.png", seed=17 * number + i)
        actions = [-1, *(1 + i % 3 for i in range(length - 1))]
        texts = [TEXT, f"Turn left {number} times."]
        records.append({"id": number, "video": video, "instructions": texts, "actions": actions})
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


def write_episodes(folder: Path, names: dict[int, list[str]], frames: str = "train") -> Path:
    """The layout of R2R and RxR: `names` are the frames' names of every episode."""
    episodes = [{"episode_id": number, "instruction": {"instruction_text": TEXT}} for number in names]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.json").write_text(json.dumps({"episodes": episodes}))
    for number, files in names.items():
        for i, name in enumerate(files):
            write_frame(folder / frames / str(number) / name, seed=number + i)
    return folder
