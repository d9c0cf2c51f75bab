"""Synthetic episode files in the published formats. Nothing in them is real: places, words and ids are made up."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

SCENE = "mp3d/synthetic/synthetic.glb"


def heading(degrees: float) -> list[float]:
    """Rotation about +y as (x, y, z, w), written with VLN-CE's negative zero."""
    return [-0.0, math.sin(math.radians(degrees) / 2), 0.0, math.cos(math.radians(degrees) / 2)]


def r2r_entry(episode_id: int = 7, **changes: Any) -> dict[str, Any]:
    """An R2R-CE episode with every field of the published files."""
    entry = {
        "episode_id": episode_id,
        "trajectory_id": 3,
        "scene_id": SCENE,
        "start_position": [1.0, 0.0, 2.0],
        "start_rotation": heading(60.0),
        "info": {"geodesic_distance": 6.5},
        "goals": [{"position": [4.0, 0.0, 5.0], "radius": 3.0}],
        "instruction": {"instruction_text": "Go  ahead. ", "instruction_tokens": [3, 4, 0]},
        "reference_path": [[1.0, 0.0, 2.0], [4.0, 0.0, 5.0]],
    }
    return {**entry, **changes}


def rxr_entry(
    episode_id: str = "1", role: str = "guide", language: str = "en-US", **changes: Any
) -> dict[str, Any]:
    """A synthetic RxR-CE episode with the documented fields; no real RxR-CE file was at hand to compare with."""
    info: dict[str, Any] = {"role": role}
    if role == "follower":
        info |= {"demonstration_id": "5", "metrics": {"ne": 1.0, "sr": 1.0, "spl": 1.0, "ndtw": 0.9, "sdtw": 0.9}}
    entry = {
        "episode_id": episode_id,
        "trajectory_id": "12",
        "scene_id": SCENE,
        "start_position": [0.25, 3.9, -16.0],
        "start_rotation": heading(17.9),
        "info": info,
        "goals": [{"position": [1.0, 3.9, -18.5], "radius": 3.0}],
        "instruction": {
            "instruction_id": "40",
            "instruction_text": "You are facing a wall.",
            "language": language,
            "annotator_id": "8",
            "edit_distance": 0.07,
            "timed_instruction": [{"word": "You", "start_time": 0.1, "end_time": 0.3}, {"word": "are"}],
        },
        "reference_path": [[0.25, 3.9, -16.0], [1.0, 3.9, -18.5]],
    }
    if role == "follower":
        del entry["trajectory_id"]
    return {**entry, **changes}


def ground_truth(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A ground-truth file: one step ahead from every start."""
    return {
        str(entry["episode_id"]): {
            "locations": [entry["start_position"], [4.0, 0.0, 5.0]],
            "actions": [1, 0],
            "forward_steps": 1,
        }
        for entry in entries
    }


def write(path: Path, content: Any) -> Path:
    """Write JSON, gzipped unless the name ends in .json; bytes as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
        if path.suffix != ".json":
            content = gzip.compress(content, 1, mtime=0)
    path.write_bytes(content)
    return path


def write_split(folder: Path, stem: str, entries: list[dict[str, Any]], suffix: str = ".json.gz") -> Path:
    """Write `{stem}{suffix}` and its ground truth; returns the former."""
    write(folder / f"{stem}_gt.json.gz", ground_truth(entries))
    return write(folder / f"{stem}{suffix}", {"episodes": entries})


def write_envdrop(folder: Path, count: int, split: str = "envdrop", seed: int = 0) -> Path:
    """Write an EnvDrop-like split: 200 tokens, some 140 characters, 6 viewpoints and 37 locations an episode."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}.json.gz"
    with (
        gzip.open(path, "wt", compresslevel=1) as file,
        gzip.open(folder / f"{split}_gt.json.gz", "wt", 1) as truth,
    ):
        file.write('{"episodes": [')
        truth.write("{")
        for i, (entry, walk) in enumerate(_envdrop(count, random.Random(seed))):
            separator = ", " if i else ""
            file.write(separator + json.dumps(entry))
            truth.write(f'{separator}"{entry["episode_id"]}": {json.dumps(walk)}')
        file.write('], "instruction_vocab": {"word_list": [], "num_vocab": 2504, "UNK_INDEX": 1, "PAD_INDEX": 0}}')
        truth.write("}")
    return path


def _envdrop(count: int, rng: random.Random) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    scans = [f"{i:02d}SyntheticScan"[:11] for i in range(60)]
    viewpoints = {
        scan: [[rng.uniform(-20, 20), rng.choice((0.1, 2.9)), rng.uniform(-20, 20)] for _ in range(117)]
        for scan in scans
    }
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 7))) for _ in range(2504)]
    for episode_id in range(1, count + 1):
        scan = rng.choice(scans)
        path = rng.sample(viewpoints[scan], 6)
        tokens = rng.choices(range(2504), k=rng.randint(15, 40))
        yield (
            r2r_entry(
                episode_id,
                trajectory_id=episode_id,
                scene_id=f"mp3d/{scan}/{scan}.glb",
                start_position=path[0],
                start_rotation=heading(30.0 * rng.randrange(12)),
                info={"geodesic_distance": rng.uniform(4, 20)},
                goals=[{"position": path[-1], "radius": 3.0}],
                instruction={
                    "instruction_text": " ".join(words[token] for token in tokens),
                    "instruction_tokens": tokens + [0] * (200 - len(tokens)),
                },
                reference_path=path,
            ),
            {
                "locations": [
                    path[0],
                    *([rng.uniform(-20, 20), path[0][1], rng.uniform(-20, 20)] for _ in range(36)),
                ],
                "actions": [*rng.sample([1] * 36 + [2] * 11 + [3] * 10, 57), 0],
                "forward_steps": 36,
            },
        )
