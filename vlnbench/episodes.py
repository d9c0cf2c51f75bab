"""Readers of episode files: dataset file -> validated `Episode` objects.

Format: VLN-CE's R2R-CE files (`{split}.json.gz` with `episodes` and `instruction_vocab`) and their ground-truth
companions (`{split}_gt.json.gz`, keyed by episode id). Every error names file, episode and field.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from vlnbench.benchmarks import Benchmark, unknown
from vlnbench.errors import UsageError
from vlnbench.interfaces import Episode, GroundTruth, Quaternion, Vec3

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class EpisodeSet:
    """The episodes of one split.

    path: the episode file. sha256: hash over the bytes of the episode file and its ground-truth file.
    """

    split: str
    path: Path
    sha256: str
    episodes: tuple[Episode, ...]


def load_split(benchmark: Benchmark, split: str, data_root: Path) -> EpisodeSet:
    """Read one split of a benchmark below a VLN-CE data root.

    Raises UsageError if the split is unknown, a file is missing or broken, or an episode is invalid.
    """
    if split not in benchmark.splits:
        raise UsageError(unknown(f"split of {benchmark.name}", split, benchmark.splits))
    path = find_split_file(benchmark, split, data_root)
    content = _read_bytes(path)
    episodes = parse_r2r(_parse_json(content, path), path)
    digest = hashlib.sha256(content)
    gt_path = path.with_name(f"{split}_gt.json.gz")
    if gt_path.exists():
        gt_content = _read_bytes(gt_path)
        digest.update(gt_content)
        episodes = attach_ground_truth(episodes, _parse_json(gt_content, gt_path), gt_path)
    return EpisodeSet(split, path, digest.hexdigest(), tuple(episodes))


def find_split_file(benchmark: Benchmark, split: str, data_root: Path) -> Path:
    """The episode file of a split, in the first dataset folder that has it. Raises UsageError if none does."""
    candidates = [
        data_root / "datasets" / folder / split / f"{split}.json.gz" for folder in benchmark.dataset_folders
    ]
    for path in candidates:
        if path.is_file():
            return path
    raise UsageError(
        f"no episode file for {benchmark.name} {split}: expected {' or '.join(map(str, candidates))}; "
        "set --data-root to the folder that holds datasets/ and scene_datasets/"
    )


def parse_r2r(document: Any, path: Path) -> list[Episode]:
    """Turn a decoded R2R-CE file into episodes. `path` is used in error messages only."""
    if not isinstance(document, dict) or not isinstance(document.get("episodes"), list):
        raise UsageError(f"{path}: field 'episodes': expected a list at the top level; is this an R2R-CE file?")
    if not document["episodes"]:
        raise UsageError(f"{path}: field 'episodes' is empty")
    episodes = [_parse_episode(entry, _Place(path, i)) for i, entry in enumerate(document["episodes"])]
    seen: set[str] = set()
    for episode in episodes:
        if episode.episode_id in seen:
            raise UsageError(f"{path}: episode {episode.episode_id}: field 'episode_id' appears twice")
        seen.add(episode.episode_id)
    return episodes


def attach_ground_truth(episodes: Sequence[Episode], document: Any, path: Path) -> list[Episode]:
    """Add the entries of a decoded ground-truth file to their episodes."""
    if not isinstance(document, dict):
        raise UsageError(f"{path}: expected an object keyed by episode id")
    result = []
    for episode in episodes:
        place = _Place(path, episode.episode_id)
        entry = document.get(episode.episode_id)
        if not isinstance(entry, dict):
            raise place.error("(whole entry)", "an object with locations and actions", entry)
        locations = _points(entry, "locations", place)
        actions = entry.get("actions")
        if not isinstance(actions, list) or not all(type(a) is int and 0 <= a <= 3 for a in actions):
            raise place.error("actions", "a list of integers 0-3", actions)
        truth = GroundTruth(locations=locations, actions=tuple(actions))
        result.append(replace(episode, ground_truth=truth))
    return result


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a file we are, for error messages."""

    path: Path
    episode: int | str

    def error(self, field: str, expected: str, found: object) -> UsageError:
        where = f"episode {self.episode}" if isinstance(self.episode, str) else f"episode at index {self.episode}"
        shown = "nothing" if found is None else repr(found)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        return UsageError(f"{self.path}: {where}: field {field!r}: expected {expected}, found {shown}")


def _parse_episode(entry: Any, place: _Place) -> Episode:
    if not isinstance(entry, dict):
        raise place.error("(whole entry)", "an object", entry)
    episode_id = _identifier(entry, "episode_id", place)
    place = _Place(place.path, episode_id)
    instruction = entry.get("instruction")
    if not isinstance(instruction, dict):
        raise place.error("instruction", "an object", instruction)
    tokens = instruction.get("instruction_tokens", [])
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise place.error("instruction.instruction_tokens", "a list of integers", tokens)
    goals, radius = _goals(entry, place)
    return Episode(
        episode_id=episode_id,
        trajectory_id=_identifier(entry, "trajectory_id", place),
        scene_id=_scene_id(entry, place),
        start_position=_vec3(entry.get("start_position"), "start_position", place),
        start_rotation=_quaternion(entry.get("start_rotation"), place),
        instruction=_text(instruction.get("instruction_text"), "instruction.instruction_text", place),
        instruction_tokens=tuple(tokens),
        goals=goals,
        goal_radius=radius,
        reference_path=_points(entry, "reference_path", place) if entry.get("reference_path") else (),
        geodesic_distance=_geodesic(entry, place),
    )


def _identifier(entry: dict[str, Any], field: str, place: _Place) -> str:
    value = entry.get(field)
    if type(value) is int or (isinstance(value, str) and value):
        return str(value)
    raise place.error(field, "an integer or a non-empty string", value)


def _text(value: Any, field: str, place: _Place) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise place.error(field, "a non-empty text", value)


def _scene_id(entry: dict[str, Any], place: _Place) -> str:
    value = _text(entry.get("scene_id"), "scene_id", place).removeprefix("data/scene_datasets/")
    if value.startswith("/") or ".." in Path(value).parts:
        raise place.error("scene_id", "a path relative to the scenes directory", value)
    return value


def _goals(entry: dict[str, Any], place: _Place) -> tuple[tuple[Vec3, ...], float]:
    goals = entry.get("goals")
    if goals is None:  # test splits keep their goals secret
        return (), 3.0
    if not isinstance(goals, list) or not goals or not all(isinstance(goal, dict) for goal in goals):
        raise place.error("goals", "a non-empty list of objects", goals)
    positions = tuple(_vec3(goal.get("position"), "goals.position", place) for goal in goals)
    radius = goals[0].get("radius", 3.0)
    if not _is_number(radius) or radius <= 0:
        raise place.error("goals.radius", "a positive number of metres", radius)
    return positions, float(radius)


def _geodesic(entry: dict[str, Any], place: _Place) -> float | None:
    info = entry.get("info")
    if not isinstance(info, dict) or info.get("geodesic_distance") is None:
        return None
    value = info["geodesic_distance"]
    if type(value) not in (int, float):
        raise place.error("info.geodesic_distance", "a number", value)
    return float(value)  # unreachable goals are recorded as Infinity; metrics never use this field


def _points(entry: dict[str, Any], field: str, place: _Place) -> tuple[Vec3, ...]:
    value = entry.get(field)
    if not isinstance(value, list) or not value:
        raise place.error(field, "a non-empty list of points", value)
    return tuple(_vec3(point, field, place) for point in value)


def _vec3(value: Any, field: str, place: _Place) -> Vec3:
    if not isinstance(value, list) or len(value) != 3 or not all(map(_is_number, value)):
        raise place.error(field, "three finite numbers", value)
    return cast("Vec3", tuple(map(float, value)))


def _quaternion(value: Any, place: _Place) -> Quaternion:
    if not isinstance(value, list) or len(value) != 4 or not all(map(_is_number, value)):
        raise place.error("start_rotation", "four finite numbers (x, y, z, w)", value)
    norm = math.sqrt(sum(component * component for component in value))
    if abs(norm - 1.0) > 1e-3:
        raise place.error("start_rotation", "a unit quaternion (x, y, z, w)", value)
    return cast("Quaternion", tuple(map(float, value)))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error


def _parse_json(content: bytes, path: Path) -> Any:
    """Decode a JSON file, gzipped or not: the suffix of published files is not reliable."""
    try:
        if content.startswith(GZIP_MAGIC):
            content = gzip.decompress(content)
        return json.loads(content)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path}: not a readable (gzipped) JSON file ({reason}); download it again") from error
