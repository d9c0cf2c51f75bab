"""What the page's script reads: entries and maps as compact JSON.

Lengths are whole centimeters. A path is its first point followed by differences, [x, z, dx, dz, ...]; its heights
[y, dy, ...] stand beside it where they differ by 5 cm or more. A letter per action says what was done, whether the
agent moved and whether it collided: "A" + action + 6 * moved + 12 * collided. Goal distances hold one value at the
start and one after each action that moved the agent, -1 where there is no path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlnbench.evaluation.choice.shape import scene_name, turns, words
from vlnbench.report.answers import Said
from vlnbench.report.data import ReportRow, RunData
from vlnbench.report.failures import kinds
from vlnbench.report.frames import Frames
from vlnbench.report.maps import METERS_PER_PIXEL, Storey
from vlnbench.report.walks import cm, encode_path

_SCORES = {
    "spl": 4,
    "distance_to_goal": 2,
    "oracle_distance": 2,
    "geodesic_start": 2,
    "ndtw": 4,
    "sdtw": 4,
    "cls": 4,
    "path_length": 2,
    "steps": 0,
    "collisions": 0,
}
"""Scores in the page, with their decimal places."""

Videos = Mapping[tuple[str, int], str]
"""MP4 in base64 by (episode id, repeat)."""


def payload(
    data: RunData, floors: Mapping[str, Sequence[Storey]], videos: Videos, frames: Frames
) -> dict[str, Any]:
    """The data of the page as JSON values."""
    benchmark = data.run.benchmark
    scenes = {scene: i for i, scene in enumerate(floors)}
    found = kinds(benchmark.success_distance_m)
    return {
        "turn": benchmark.body.turn_deg,
        "success": benchmark.success_distance_m,
        "repeats": data.run.repeats,
        "kinds": [{"name": name, "label": kind.label} for name, kind in found.items()],
        "scores": list(_SCORES),
        "scenes": [
            {"name": scene_name(scene), "storeys": [storey_json(level) for level in levels]}
            for scene, levels in floors.items()
        ],
        "episodes": [
            _entry(entry, scenes[entry.row.scene_id], list(found).index(entry.ending))
            | _shown(entry, data.said, videos, frames)
            for entry in data.entries
        ],
    }


def to_script(value: Any) -> str:
    """JSON that may stand inside a script element: no character in it can end the element or begin a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), default=np.ndarray.tolist)  # ASCII only
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def storey_json(storey: Storey) -> dict[str, Any]:
    result: dict[str, Any] = {"y": cm(storey.height)}
    if storey.png is not None:
        width, height = (round(100 * METERS_PER_PIXEL * cells) for cells in storey.size)
        x, z = map(cm, storey.origin)
        result |= {"png": storey.png, "box": [x, z, width, height]}
    return result


def _shown(entry: ReportRow, said: Said, videos: Videos, frames: Frames) -> dict[str, Any]:
    """What is there of some episodes only."""
    place = entry.row.episode_id, entry.row.repeat
    found = {"video": videos.get(place), "frames": frames.get(place), "said": said.columns.get(entry.row.key)}
    return {name: value for name, value in found.items() if value}


def _entry(entry: ReportRow, scene: int, kind: int) -> dict[str, Any]:
    row = entry.row
    result: dict[str, Any] = {"id": row.episode_id, "scene": scene, "kind": kind}
    if row.repeat:
        result["repeat"] = row.repeat
    if row.status == "ok":
        result["s"] = [_rounded(row.scores.get(name), places) for name, places in _SCORES.items()]
    if row.reason is not None:
        result["reason"] = row.reason
    if entry.episode is not None:
        episode = entry.episode
        truth = episode.ground_truth
        result |= {"text": episode.instruction, "words": words(episode), "lang": episode.language}
        result["turns"] = turns(episode)
        result["goals"] = [[cm(value) for value in goal] for goal in episode.goals]
        reference = truth.locations if truth is not None else episode.reference_path
        if reference:
            result["ref"] = encode_path(np.array(reference, dtype=np.float64).reshape(-1, 3))
    if entry.walk is not None:
        result |= entry.walk.shown
    return result


def _rounded(value: Any, places: int) -> float | int | None:
    if value is None:
        return None
    return round(float(value), places) if places else int(value)
