"""Episode and ground-truth files in the formats of R2R-CE and RxR-CE (VLN-CE), written as streams."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.houses.language.grammar import RXR_VOICES, encode, vocabulary
from envs.houses.routes.follow import rotation_of
from envs.houses.routes.trajectories import Trajectory
from vlnbench.util.durable.files import replacing

GOAL_RADIUS_M = 3.0
_GZIP_LEVEL = 6


@dataclass(frozen=True)
class Told:
    """A trajectory and the instructions that lead along it: R2R-like texts, and one RxR-like text per language."""

    scene_id: str
    trajectory: Trajectory
    texts: tuple[str, ...]
    long_texts: tuple[str, ...] = ()


def write_r2r_split(
    folder: Path, split: str, rows: Iterable[Told], first: tuple[int, int], voices: tuple[str, ...]
) -> int:
    """Write `{split}.json.gz` and `{split}_gt.json.gz`; the number of trajectories.

    `first`: the first episode id and the first trajectory id. `voices`: whose words the vocabulary holds.
    """
    words = vocabulary(voices)
    index = {word: i for i, word in enumerate(words)}
    vocab = {
        "word_list": words,
        "word2idx_dict": index,
        "stoi": index,
        "itos": words,
        "num_vocab": len(words),
        "UNK_INDEX": 1,
        "PAD_INDEX": 0,
    }
    end = f'], "instruction_vocab": {_json(vocab)}}}'
    episode_id, trajectory_id = first
    with (
        json_stream(folder / f"{split}.json.gz", '{"episodes": [', end) as out,
        json_stream(folder / f"{split}_gt.json.gz", "{", "}") as truth,
    ):
        for row in rows:
            walk = walk_json(row.trajectory)
            for text in row.texts:
                instruction = {"instruction_text": text, "instruction_tokens": encode(text, index)}
                out(_json(_r2r_episode(row, (episode_id, trajectory_id), instruction)))
                truth(f'"{episode_id}": {walk}')
                episode_id += 1
            trajectory_id += 1
    return trajectory_id - first[1]


def write_rxr_split(folder: Path, split: str, rows: Sequence[Told], first: tuple[int, int]) -> tuple[int, int]:
    """Write guide and follower files of RxR-CE with their ground truth; the numbers of episodes of both.

    Guides speak every language along every trajectory; a follower walks after the first of them. `first`: the
    first instruction id and the first trajectory id.
    """
    guides = [(number, row, i) for number, row in enumerate(rows) for i in range(len(RXR_VOICES))]
    followed = [guide for guide in guides if guide[2] == guide[0] % len(RXR_VOICES)]
    for role, chosen, ahead in (("guide", guides, 0), ("follower", followed, len(guides))):
        stem = f"{split}_{role}"
        with (
            json_stream(folder / f"{stem}.json.gz", '{"episodes": [', "]}") as out,
            json_stream(folder / f"{stem}_gt.json.gz", "{", "}") as truth,
        ):
            for episode_id, (number, row, voice_index) in enumerate(chosen, start=ahead + 1):
                instruction_id = first[0] + number * len(RXR_VOICES) + voice_index
                entry = _rxr_episode(row, (episode_id, first[1] + number, instruction_id), voice_index)
                if role == "follower":
                    del entry["trajectory_id"]
                    entry["info"] = _followed(row.trajectory, instruction_id)
                out(_json(entry))
                truth(f'"{episode_id}": {walk_json(row.trajectory)}')
    return len(guides), len(followed)


def walk_json(trajectory: Trajectory) -> str:
    """The ground-truth entry of a trajectory."""
    walk = trajectory.walk
    return _json({"locations": walk.locations, "actions": walk.actions, "forward_steps": len(walk.locations) - 1})


def cut(rows: Iterable[Told], episodes: int) -> Iterator[Told]:
    """Rows until they hold this many R2R-like episodes; the last one may lose texts."""
    for row in rows:
        if episodes <= 0:
            return
        yield Told(row.scene_id, row.trajectory, row.texts[:episodes], row.long_texts)
        episodes -= len(row.texts)


@contextmanager
def json_stream(path: Path, head: str, tail: str) -> Iterator[Callable[[str], None]]:
    """Write a gzipped JSON file of many entries between a head and a tail; all or nothing, without a time stamp.

    The block calls what it gets with one entry after the other, each JSON already.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as file,
        os.fdopen(os.dup(file), "wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=_GZIP_LEVEL) as zipped,
        io.TextIOWrapper(zipped, encoding="ascii", write_through=False) as text,
    ):
        text.write(head)
        between = ""

        def add(entry: str) -> None:
            nonlocal between
            text.write(between + entry)
            between = ", "

        yield add
        text.write(tail)


def _json(value: Any) -> str:
    return json.dumps(value)


def _r2r_episode(row: Told, ids: tuple[int, int], instruction: dict[str, Any]) -> dict[str, Any]:
    trajectory = row.trajectory
    return {
        "episode_id": ids[0],
        "trajectory_id": ids[1],
        "scene_id": row.scene_id,
        "start_position": trajectory.start,
        "start_rotation": rotation_of(trajectory.yaw),
        "info": {"geodesic_distance": trajectory.geodesic},
        "goals": [{"position": trajectory.goal, "radius": GOAL_RADIUS_M}],
        "instruction": instruction,
        "reference_path": trajectory.reference_path,
    }


def _rxr_episode(row: Told, ids: tuple[int, int, int], voice_index: int) -> dict[str, Any]:
    trajectory, text = row.trajectory, row.long_texts[voice_index]
    return {
        "episode_id": str(ids[0]),
        "trajectory_id": str(ids[1]),
        "scene_id": row.scene_id,
        "start_position": trajectory.start,
        "start_rotation": rotation_of(trajectory.yaw),
        "info": {"role": "guide"},
        "goals": [{"position": trajectory.goal, "radius": GOAL_RADIUS_M}],
        "instruction": {
            "instruction_id": str(ids[2]),
            "instruction_text": text,
            "language": RXR_VOICES[voice_index],
            "annotator_id": str(voice_index),
            "edit_distance": 0.0,
            "timed_instruction": [{"word": word} for word in text.split()],
        },
        "reference_path": trajectory.reference_path,
    }


def _followed(trajectory: Trajectory, instruction_id: int) -> dict[str, Any]:
    """The follower's demonstration is the ground-truth walk itself."""
    length = trajectory.walk.length
    metrics = {
        "ne": trajectory.walk.goal_distance,
        "sr": 1.0,
        "spl": trajectory.geodesic / max(trajectory.geodesic, length),
        "ndtw": 1.0,
        "sdtw": 1.0,
    }
    return {"role": "follower", "metrics": metrics, "demonstration_id": str(instruction_id)}
