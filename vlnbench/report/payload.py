"""What the page's script reads: entries and maps as compact JSON.

Lengths are whole centimeters. A path is its first point followed by differences, [x, z, dx, dz, ...]; its heights
[y, dy, ...] stand beside it where they differ by 5 cm or more. A letter per action says what was done, whether the
agent moved and whether it collided: "A" + action + 6 * moved + 12 * collided. Goal distances hold one value at the
start and one after each action that moved the agent, -1 where there is no path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlnbench.evaluation.choice.shape import scene_name
from vlnbench.interfaces import Trajectory
from vlnbench.report.data import ReportRow, RunData
from vlnbench.report.failures import kinds
from vlnbench.report.maps import METERS_PER_PIXEL, Storey

_FLAT_CM = 5
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


def payload(data: RunData, floors: Mapping[str, Sequence[Storey]], videos: Videos) -> dict[str, Any]:
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
            _entry(entry, scenes[entry.row.scene_id], list(found).index(entry.ending), videos)
            for entry in data.entries
        ],
    }


def to_script(value: Any) -> str:
    """JSON that may stand inside a script element: no character in it can end the element or begin a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII only
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def storey_json(storey: Storey) -> dict[str, Any]:
    result: dict[str, Any] = {"y": _cm(storey.height)}
    if storey.png is not None:
        width, height = (round(100 * METERS_PER_PIXEL * cells) for cells in storey.size)
        x, z = map(_cm, storey.origin)
        result |= {"png": storey.png, "box": [x, z, width, height]}
    return result


def _entry(entry: ReportRow, scene: int, kind: int, videos: Videos) -> dict[str, Any]:
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
        result |= {"text": episode.instruction, "words": entry.words, "lang": episode.language}
        result["turns"] = entry.turns
        result["goals"] = [[_cm(value) for value in goal] for goal in episode.goals]
        reference = truth.locations if truth is not None else episode.reference_path
        if reference:
            result["ref"] = encode_path(np.array(reference, dtype=np.float64).reshape(-1, 3))
    if entry.trajectory is not None:
        result |= _walk(entry.trajectory)
    video = videos.get((row.episode_id, row.repeat))
    if video is not None:
        result["video"] = video
    return result


def _walk(trajectory: Trajectory) -> dict[str, Any]:
    positions = trajectory.positions
    moved = np.any(positions[1:] != positions[:-1], axis=1)
    letters = [
        chr(ord("A") + int(action) + 6 * int(there) + 12 * int(hit))
        for action, there, hit in zip(trajectory.actions, moved, trajectory.collided, strict=True)
    ]
    kept = np.concatenate([[True], moved])
    result: dict[str, Any] = {
        "acts": "".join(letters),
        "yaw": round(math.degrees(trajectory.poses[0].yaw)),
        "path": encode_path(positions[kept]),
    }
    if trajectory.goal_distances:
        distances = np.array(trajectory.goal_distances)[kept]
        result["dist"] = [_cm(value) if math.isfinite(value) else -1 for value in distances]
    return result


def encode_path(points: NDArray[np.float64]) -> list[list[int]]:
    """(n, 3) points in meters as [[x, z, dx, dz, ...]], with [y, dy, ...] unless they lie on one level."""
    whole = np.round(100 * points).astype(int)
    steps = np.diff(whole, axis=0, prepend=0)
    level = [int(whole[0, 1])] if np.ptp(whole[:, 1]) < _FLAT_CM else steps[:, 1].tolist()
    return [steps[:, [0, 2]].ravel().tolist(), level]


def _cm(meters: float) -> int:
    return round(100 * meters)


def _rounded(value: Any, places: int) -> float | int | None:
    if value is None:
        return None
    return round(float(value), places) if places else int(value)
