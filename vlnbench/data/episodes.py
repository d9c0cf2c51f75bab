"""Readers of episode files: dataset file -> validated `Episode` objects.

Formats: R2R-CE (VLN-CE's `{split}.json.gz`, preprocessed or not, tokens as words or BERT indices; EnvDrop), RxR-CE
(`{split}_{guide|follower}.json.gz`) and their ground-truth companions, keyed by episode id. Every error is one
line that names file, episode and field. Fields that an `Episode` does not hold are not looked at.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

from vlnbench.data.benchmarks import Benchmark
from vlnbench.data.datasets import ROLES, SplitFiles, expected_count, find_scenes_dir, locate, version_of
from vlnbench.data.languages import LANGUAGE, check_languages, is_wanted
from vlnbench.errors import UsageError
from vlnbench.interfaces import Episode, GroundTruth, Quaternion, Vec3
from vlnbench.util.durable.json_stream import collector_off, members, sha256
from vlnbench.util.durable.limits import MAX_COORDINATE_M, MAX_TOKEN
from vlnbench.util.loading import import_string

T = TypeVar("T")

IDENTIFIER = re.compile(r"[\w.:-]{1,100}")
GROUND_TRUTH_ACTIONS = frozenset(range(4))
NUMBERS = frozenset((int, float))
DEFAULT_RADIUS_M = 3.0
_POINT = f"three finite numbers of at most {MAX_COORDINATE_M:,.0f} m"


@dataclass(frozen=True, slots=True)
class EpisodeSet:
    """The episodes of one split.

    path, gt_path: episode and ground-truth file (of the first role, where a benchmark has several). sha256: hash
    over the bytes of all these files. scenes_dir: folder to which scene ids are relative. version: of the dataset,
    e.g. "v1-3"; "unknown" if nothing tells. partial: there are not as many episodes as were published.
    passed_over: further files of this split below the same data root that were not taken.
    """

    split: str
    path: Path
    sha256: str
    episodes: tuple[Episode, ...]
    gt_path: Path | None = None
    scenes_dir: Path = Path("scene_datasets")
    version: str = "unknown"
    partial: bool = False
    passed_over: tuple[Path, ...] = ()


def load_split(benchmark: Benchmark, split: str, data_root: Path, *, allow_partial: bool = False) -> EpisodeSet:
    """Read one split of a benchmark below a data root, in any of the layouts of `vlnbench.data.datasets`.

    Raises UsageError if the split is unknown, a file is missing or broken, an episode is invalid, or there are not
    as many episodes as were published and `allow_partial` is not set.
    """
    files = locate(benchmark, split, data_root)
    episodes = read_episodes(benchmark, files)
    version = version_of(files.paths[0], episodes)
    expected = expected_count(benchmark, split, version)
    partial = expected is not None and len(episodes) != expected
    if partial and not allow_partial:
        raise UsageError(
            f"{files.paths[0]}: has {len(episodes)} episodes, but {benchmark.name} {split} has {expected}; "
            "get the file again, or run on what is there with --allow-partial"
        )
    if files.gt_paths:
        episodes = read_ground_truth(episodes, files)
    return EpisodeSet(
        split=split,
        path=files.paths[0],
        sha256=_digest(benchmark, files, episodes),
        episodes=tuple(episodes),
        gt_path=files.gt_paths[0] if files.gt_paths else None,
        scenes_dir=find_scenes_dir(data_root, (episode.scene_id for episode in episodes)),
        version=version,
        partial=partial,
        passed_over=files.passed_over,
    )


def _digest(benchmark: Benchmark, files: SplitFiles, episodes: Sequence[Episode]) -> str:
    """Hash of the bytes of a split's files, and of the episodes where code that may change made them of these."""
    of_files = sha256(*files.paths, *files.gt_paths)
    if benchmark.reader in ("r2r", "rxr"):
        return of_files
    return hashlib.sha256(f"{of_files}{[*episodes]!r}".encode()).hexdigest()


def read_episodes(benchmark: Benchmark, files: SplitFiles) -> list[Episode]:
    """The episodes of a split in the benchmark's languages, without ground truth.

    Raises UsageError for the first field that is not valid, an id that appears twice, or if there are no episodes,
    none in a language that is asked for, or only some have goals: an episode without would take the scores of all.
    """
    memo = _Memo()
    episodes: dict[str, Episode] = {}
    with collector_off():
        for path in files.paths:
            for episode in parse_episodes(_entries(benchmark, path), path, benchmark, memo):
                if episode.episode_id in episodes:
                    raise UsageError(f"{path}: episode {episode.episode_id}: field 'episode_id' appears twice")
                episodes[episode.episode_id] = episode
    check_languages(benchmark, files.paths[0], memo.languages)
    if not episodes:
        raise UsageError(f"{files.paths[0]}: field 'episodes' holds no episode; is this the right file?")
    hidden = [name for name, episode in episodes.items() if not episode.goals]
    if 0 < len(hidden) < len(episodes):
        raise UsageError(
            f"{', '.join(map(str, files.paths))}: episode {hidden[0]}: field 'goals': missing in {len(hidden)} of "
            f"{len(episodes)} episodes; expected in all or in none: add them, or leave these episodes out"
        )
    return list(episodes.values())


def _entries(benchmark: Benchmark, path: Path) -> Iterator[Any]:
    """The entries of an episode file. Raises UsageError for whatever a benchmark's own reader raises."""
    if benchmark.reader in ("r2r", "rxr"):
        yield from (entry for name, entry in members(path, "episodes") if name == "episodes")
        return
    try:
        yield from import_string(benchmark.reader)(path)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UsageError(f"{path}: cannot be read by {benchmark.reader} ({reason})") from error


def read_ground_truth(episodes: Sequence[Episode], files: SplitFiles) -> list[Episode]:
    """The same episodes with the entries of their ground-truth files, which must have one for each.

    Raises UsageError for the first field that is not valid. Entries of other episodes are not looked at.
    """
    memo = _Memo()
    truths: dict[str, GroundTruth | None] = dict.fromkeys(episode.episode_id for episode in episodes)
    with collector_off():
        for path in files.gt_paths:
            for name, entry in members(path):
                if name in truths:
                    truths[name] = _parse_ground_truth(entry, _Place(path, name), memo)
    missing = [name for name, truth in truths.items() if truth is None]
    if missing:
        raise UsageError(
            f"{files.gt_paths[-1]}: episode {missing[0]}: no entry ({len(missing)} of {len(truths)} have none); "
            "the file belongs to other episodes: get both again"
        )
    return [replace(episode, ground_truth=truths[episode.episode_id]) for episode in episodes]


def parse_episodes(
    entries: Iterable[Any], path: Path, benchmark: Benchmark, memo: _Memo | None = None
) -> Iterator[Episode]:
    """Turn the decoded entries of the episode file `path` into episodes; other languages are left out."""
    memo = memo or _Memo()
    for index, entry in enumerate(entries):
        place = _Place(path, index)
        fields = _Fields(_object(entry, "(whole entry)", place), place, memo)
        fields.place = _Place(path, fields.identifier("episode_id"))
        if benchmark.reader != "rxr":
            yield _episode(fields, {"trajectory_id": fields.identifier("trajectory_id")})
        elif (own := _rxr_fields(fields, benchmark)) is not None:
            yield _episode(fields, own)


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


class _Memo:
    """One object instead of many equal ones: tokens, viewpoints and scenes of a file come again and again."""

    def __init__(self) -> None:
        self.ints = _Ints()
        self.points = _Points()
        self.languages: set[str] = set()
        self._others: dict[Any, Any] = {}

    def same(self, value: T) -> T:
        return cast("T", self._others.setdefault(value, value))


class _Ints(dict[int, int]):
    """Numbers of tokens and actions. Raises ValueError for what can be none."""

    def __missing__(self, value: int) -> int:
        if not 0 <= value < MAX_TOKEN:
            raise ValueError
        return self.setdefault(value, value)


class _Points(dict[tuple[float, ...], "Vec3 | None"]):
    """Numbers as decoded -> the point they make, None if one is not finite or too large."""

    def __missing__(self, numbers: tuple[float, ...]) -> Vec3 | None:
        point = cast("Vec3 | None", _floats([*numbers], 3))
        return self.setdefault(point, point) if point is not None else None


class _Fields:
    """Takes validated fields out of one decoded entry."""

    def __init__(self, entry: Mapping[str, Any], place: _Place, memo: _Memo) -> None:
        self.entry = entry
        self.place = place
        self.memo = memo

    def inner(self, field: str) -> Mapping[str, Any]:
        return _object(self.entry.get(field), field, self.place)

    def identifier(self, field: str) -> str:
        return _identifier(self.entry.get(field), field, self.place)

    def start_position(self) -> Vec3:
        return self._point(self.entry.get("start_position"), "start_position")

    def reference_path(self) -> tuple[Vec3, ...]:
        value = self.entry.get("reference_path")
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.place.error("reference_path", "a list of points", value)
        return tuple([self._point(point, "reference_path") for point in value])

    def _point(self, value: Any, field: str) -> Vec3:
        if isinstance(value, list) and len(value) == 3 and NUMBERS.issuperset(map(type, value)):
            point = self.memo.points[tuple(value)]
            if point is not None:
                return point
        raise self.place.error(field, _POINT, value)

    def scene_id(self) -> str:
        value = _text(self.entry.get("scene_id"), "scene_id", self.place).removeprefix("data/scene_datasets/")
        if value.startswith("/") or ".." in value.split("/") or not value.isprintable():
            raise self.place.error("scene_id", "a path relative to the scenes directory", value)
        return self.memo.same(value)

    def start_rotation(self) -> Quaternion:
        value = self.entry.get("start_rotation")
        rotation = _floats(value, 4)
        if rotation is None or abs(math.hypot(*rotation) - 1.0) > 1e-3:
            raise self.place.error("start_rotation", "a unit quaternion (x, y, z, w)", value)
        return cast("Quaternion", rotation)

    def goals(self) -> tuple[tuple[Vec3, ...], float]:
        goals = self.entry.get("goals")
        if goals is None:  # test splits keep their goals secret
            return (), DEFAULT_RADIUS_M
        if not isinstance(goals, list) or not goals or not all(isinstance(goal, dict) for goal in goals):
            raise self.place.error("goals", "a non-empty list of objects", goals)
        positions = [self._point(goal.get("position"), "goals.position") for goal in goals]
        radius = goals[0].get("radius")
        if radius is None:
            return tuple(positions), DEFAULT_RADIUS_M
        checked = _floats([radius], 1)
        if checked is None or checked[0] <= 0:
            raise self.place.error("goals.radius", "a positive number of meters", radius)
        return tuple(positions), self.memo.same(checked[0])

    def geodesic_distance(self) -> float | None:
        """Meters; inf where the goal cannot be reached, which files write as Infinity, NaN or too large."""
        info = self.entry.get("info")
        value = _object(info, "info", self.place).get("geodesic_distance") if info is not None else None
        if value is None:
            return None
        if type(value) not in NUMBERS or value < 0:
            raise self.place.error("info.geodesic_distance", "a number of meters", value)
        return float(value) if value <= MAX_COORDINATE_M else math.inf

    def tokens(self, instruction: Mapping[str, Any]) -> tuple[int, ...]:
        value = instruction.get("instruction_tokens")
        if value is None:
            return ()
        if isinstance(value, list) and not set(map(type, value)) - {int}:
            with suppress(ValueError):
                return tuple(map(self.memo.ints.__getitem__, value))
        expected = f"a list of integers from 0, below {MAX_TOKEN}"
        raise self.place.error("instruction.instruction_tokens", expected, value)


def _episode(fields: _Fields, own: Mapping[str, Any]) -> Episode:
    """An episode of the fields that both formats have and those that only one has."""
    instruction = fields.inner("instruction")
    goals, radius = fields.goals()
    return Episode(
        episode_id=str(fields.place.episode),
        scene_id=fields.scene_id(),
        start_position=fields.start_position(),
        start_rotation=fields.start_rotation(),
        instruction=_text(instruction.get("instruction_text"), "instruction.instruction_text", fields.place),
        instruction_tokens=fields.tokens(instruction),
        goals=goals,
        goal_radius=radius,
        reference_path=fields.reference_path(),
        geodesic_distance=fields.geodesic_distance(),
        **own,
    )


def _rxr_fields(fields: _Fields, benchmark: Benchmark) -> dict[str, Any] | None:
    """What only RxR-CE has; None for an episode in a language that the benchmark leaves out.

    Follower episodes have no trajectory id. They get one made of scene and path, so that episodes along the same
    path still share it.
    """
    instruction = fields.inner("instruction")
    language = instruction.get("language")
    if not isinstance(language, str) or not LANGUAGE.fullmatch(language):
        raise fields.place.error("instruction.language", "a language code such as en-US", language)
    fields.memo.languages.add(language)
    if not is_wanted(language, benchmark):
        return None
    info = fields.entry.get("info")
    role = _object(info, "info", fields.place).get("role") if info is not None else None
    roles = benchmark.roles or ROLES
    if role is not None and role not in roles:
        raise fields.place.error("info.role", " or ".join(roles), role)
    if fields.entry.get("trajectory_id") is not None:
        trajectory_id = fields.identifier("trajectory_id")
    else:
        path = (fields.scene_id(), fields.start_position(), fields.goals()[0], fields.reference_path())
        trajectory_id = f"path-{hashlib.sha256(repr(path).encode()).hexdigest()[:12]}"
    name = _identifier(instruction.get("instruction_id"), "instruction.instruction_id", fields.place)
    return {"trajectory_id": trajectory_id, "language": fields.memo.same(language), "instruction_id": name}


def _parse_ground_truth(entry: Any, place: _Place, memo: _Memo) -> GroundTruth:
    fields = _object(entry, "(whole entry)", place)
    actions = fields.get("actions")
    if not isinstance(actions, list) or set(map(type, actions)) != {int} or set(actions) - GROUND_TRUTH_ACTIONS:
        raise place.error("actions", "a list of integers 0-3", actions)
    return GroundTruth(
        _points(fields.get("locations"), "locations", place), tuple(map(memo.ints.__getitem__, actions))
    )


def _object(value: Any, field: str, place: _Place) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise place.error(field, "an object", value)
    return value


def _identifier(value: Any, field: str, place: _Place) -> str:
    if type(value) is int and abs(value) < 2**63:
        return str(value)
    if isinstance(value, str) and IDENTIFIER.fullmatch(value):
        return value
    raise place.error(field, "an integer or a string of letters, digits and . : _ -", value)


def _text(value: Any, field: str, place: _Place) -> str:
    if not isinstance(value, str) or not value.strip():
        raise place.error(field, "a non-empty text", value)
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise place.error(field, "Unicode text without lone surrogates", value)
    return value


def _points(value: Any, field: str, place: _Place) -> tuple[Vec3, ...]:
    """Checked as a whole, because ground-truth files hold millions of points. Equal coordinates are one object."""
    if not isinstance(value, list) or not value:
        raise place.error(field, "a non-empty list of points", value)
    if set(map(type, value)) == {list} and set(map(len, value)) == {3}:
        flat = _floats([*chain.from_iterable(value)], 3 * len(value))
        if flat is not None:
            shared: dict[float, float] = {}
            coordinates = map(shared.setdefault, flat, flat)
            return tuple(zip(coordinates, coordinates, coordinates, strict=True))
    wrong = next((point for point in value if _floats(point, 3) is None), value)
    raise place.error(field, f"points of {_POINT}", wrong)


def _floats(value: Any, count: int) -> tuple[float, ...] | None:
    """A list of `count` finite numbers up to the limit as floats; None if it is something else."""
    if not isinstance(value, list) or len(value) != count or not NUMBERS.issuperset(map(type, value)):
        return None
    if not -MAX_COORDINATE_M <= min(value) <= max(value) <= MAX_COORDINATE_M:
        return None
    # NaN, which slips through comparisons, makes the sum NaN
    return tuple(map(float, value)) if math.isfinite(sum(value)) else None
