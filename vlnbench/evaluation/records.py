"""Run folders: the rows of a run are its only truth.

A run folder holds `manifest.json` (written first), `trajectories.jsonl` and `episodes.jsonl` (one line as each
episode finishes, flushed to disk; the line in `episodes.jsonl` comes second and marks the episode as done) and
`summary.json` (written last, atomically); `attempts.jsonl` says when and where the run was begun and resumed,
`errors.log` holds the stacks of what went wrong, and `answers.jsonl` what models said. A process killed at any
moment leaves at most one torn last line per file, which the next one to open the folder for writing cuts off.
An episode that was run again has two rows: the last one counts.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.evaluation.identity import read_identity
from vlnbench.evaluation.metrics import FAILURES, Scores
from vlnbench.interfaces import Action, Pose, Trajectory
from vlnbench.rollout.episode import STEP_PARTS
from vlnbench.util.durable.fields import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    LENGTH,
    NUMBER,
    OBJECT,
    SCALAR,
    SECONDS,
    SHARE,
    TEXT,
    TIME,
    WHOLE,
    check_fields,
    one_of,
)
from vlnbench.util.durable.files import (
    append_line,
    count_lines,
    decode_line,
    encode_line,
    line_blocks,
    open_for_append,
    read_jsonl,
    read_object,
    stopped,
    write_all,
    write_bytes,
    write_json,
)
from vlnbench.util.durable.folder import Kind, open_folder, refuse_another
from vlnbench.util.monitor import PEAKS

MANIFEST, ROWS, TRAJECTORIES, SUMMARY = "manifest.json", "episodes.jsonl", "trajectories.jsonl", "summary.json"
ERRORS, ATTEMPTS = "errors.log", "attempts.jsonl"
FORMAT = 1
KIND = Kind("run", MANIFEST)

RowKey = tuple[str, str, str, int]
"""(benchmark, split, episode id, repeat)."""

Score = float | int | bool | str | None
"""Value of one field of `metrics.Scores`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `episodes.jsonl`: how one episode ended.

    status: "ok"; "error" or "timeout" with the reason, which count as failed episodes; "unscored" without public
    goals. scores: the fields of `metrics.Scores`, empty unless ok. report: what the agent counted, e.g. tokens.
    seconds: what `env` and `agent` took, the agent's also by steps (`PARTS`), and `wall`: on the clock since
    the row before, or since the attempt began. No two runs have the same.
    """

    benchmark: str
    fingerprint: str
    split: str
    episode_id: str
    repeat: int
    scene_id: str
    trajectory_id: str
    seed: int
    status: str
    reason: str | None = None
    scores: dict[str, Score] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    report: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> RowKey:
        """Which episode of which split this is, and which repeat."""
        return (self.benchmark, self.split, self.episode_id, self.repeat)

    @property
    def failed(self) -> bool:
        """Whether the episode broke, so that there is nothing to score."""
        return self.status not in ("ok", "unscored")


class RunFolder:
    """An open run folder, locked against a second writer.

    Use as a context manager. Raises UsageError if the folder belongs to another run, is being written by another
    process, or cannot be written. mended: where all its episodes failed, an agent whose code was changed since
    takes the run over.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], mended: bool = False) -> None:
        self.path = path
        self._manifest, self._mended = manifest, mended
        self._files = contextlib.ExitStack()
        self._rows: int
        self._trajectories: int

    def __enter__(self) -> RunFolder:
        with contextlib.ExitStack() as opened:
            check = partial(check_same_run, self.path, self._manifest, mended=self._mended)
            opened.enter_context(open_folder(self.path, KIND, self._manifest, check))
            try:
                self._rows = opened.enter_context(open_for_append(self.path / ROWS))
                self._trajectories = opened.enter_context(open_for_append(self.path / TRAJECTORIES))
            except OSError as error:
                raise UsageError(f"{self.path}: cannot be written ({error.strerror})") from error
            self._files = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def begin_attempt(self, work: Mapping[str, Any] | None = None) -> None:
        """Record that episodes are going to be run, so that speed can be told from the folder. Raises RunError.

        work: what is going to run them, see `evaluate`.
        """
        try:
            attempt = {
                "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "rows": count_lines(self.path / ROWS),
                **(work or {}),
            }
            with open_for_append(self.path / ATTEMPTS) as file:
                append_line(file, attempt)
        except OSError as error:
            raise stopped(self.path, error) from error

    def amend_attempt(self, known: Mapping[str, Any]) -> None:
        """Add to the record of the attempt that is under way. Raises RunError if it cannot be written."""
        *before, last = read_attempts(self.path)
        try:
            write_bytes(self.path / ATTEMPTS, b"".join(map(encode_line, [*before, {**last, **known}])))
        except OSError as error:
            raise stopped(self.path, error) from error

    def append(self, row: Row, trajectory: Trajectory | None, detail: str | None = None) -> None:
        """Record a finished episode; on disk when this returns. detail: goes to `errors.log`.

        Raises RunError if it cannot be written; the folder can be opened again when that has been mended.
        """
        try:
            if detail is not None:
                with open_for_append(self.path / ERRORS) as errors:
                    write_all(errors, f"episode {row.episode_id}, repeat {row.repeat}\n{detail}\n".encode())
            if trajectory is not None:
                append_line(self._trajectories, {"key": row.key, **encode_trajectory(trajectory)})
            append_line(self._rows, asdict(row))
        except OSError as error:
            raise stopped(self.path, error) from error

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`, in one step. Raises RunError if it cannot be written."""
        try:
            write_json(self.path / SUMMARY, summary)
        except OSError as error:
            raise stopped(self.path, error) from error

    def discard_if_empty(self) -> None:
        """Remove a folder in which no episode finished, so that a refused run leaves nothing behind."""
        if any((self.path / name).stat().st_size for name in (ROWS, TRAJECTORIES)):
            return
        for name in (SUMMARY, ERRORS, ATTEMPTS, ROWS, TRAJECTORIES, MANIFEST):
            (self.path / name).unlink(missing_ok=True)
        self._files.close()  # its lock is in the folder
        with contextlib.suppress(OSError):  # somebody else's file in there: leave it alone
            self.path.rmdir()


_ROW = {
    **dict.fromkeys(("benchmark", "fingerprint", "split", "episode_id", "scene_id", "trajectory_id"), TEXT),
    "repeat": COUNT,
    "seed": WHOLE,
    "status": one_of("ok", "error", "timeout", "unscored"),
    "reason": TEXT.or_null(),
    **dict.fromkeys(("scores", "seconds", "report"), OBJECT),
}
_NEEDED = frozenset(_ROW) - {"reason", "scores", "seconds", "report"}
SHARES = ("success", "oracle_success", "spl", "ndtw", "sdtw", "cls")
"""Scores from 0 to 1."""

PARTS = (*(f"{first + 1}-{last}" for first, last in pairwise((0, *STEP_PARTS))), f"over {STEP_PARTS[-1]}")
"""Names of the parts of an episode by which the agent's time is told, by number of the step."""

_SCORES = {
    **dict.fromkeys((name for name in Scores.__slots__), LENGTH.or_null()),
    **dict.fromkeys(SHARES, SHARE.or_null()),
    "stopped": BOOLEAN,
    "failure": one_of(*FAILURES),
}


def read_rows(path: Path) -> list[Row]:
    """Rows of a run folder, the last one for each key. Raises UsageError with file, line and field."""
    rows: dict[RowKey, Row] = {}
    for number, entry in read_jsonl(path / ROWS):
        row = read_row(entry, f"{path / ROWS}: line {number}")
        rows[row.key] = row
    return list(rows.values())


def read_row(entry: Mapping[str, Any], where: str) -> Row:
    """The row in an object of JSON. Raises UsageError naming the field that is missing or of a wrong type."""
    check_fields(entry, _ROW, where, needed=_NEEDED)
    check_fields(entry.get("scores", {}), _SCORES, where, others=SCALAR, inside="scores.")
    for name, others in (("seconds", SECONDS), ("report", NUMBER)):
        check_fields(entry.get(name, {}), {}, where, others=others, inside=f"{name}.")
    return Row(**entry)


def read_trajectories(path: Path) -> dict[RowKey, Trajectory]:
    """Trajectories of a run folder by row key, the last one for each."""
    return dict(each_trajectory(path))


def each_trajectory(path: Path, only: Collection[RowKey] | None = None) -> Iterator[tuple[RowKey, Trajectory]]:
    """One after the other, as they lie in the folder. only: of these keys; others are passed over."""
    for first, lines in line_blocks(path / TRAJECTORIES):
        for number, line in enumerate(lines, first):
            if only is None or begins_with(line, only):
                yield _read_trajectory(line, f"{path / TRAJECTORIES}: line {number}")


def begins_with(line: bytes, keys: Collection[RowKey]) -> bool:
    """Whether a line may be of one of these keys, by its beginning if that can be told from there."""
    begun = _KEY.match(line)
    try:
        return begun is None or tuple(json.loads(begun[1])) in keys
    except (ValueError, TypeError):
        return True


_KEY = re.compile(rb'\{"key":(\[[^\]]{,400}\]),')


def _read_trajectory(line: bytes, where: str) -> tuple[RowKey, Trajectory]:
    entry = decode_line(line, where)
    key = read_key(entry, where)
    try:
        return key, decode_trajectory(entry)
    except KeyError as error:
        raise UsageError(f"{where}: field {error}: missing") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{where}: not a trajectory ({error})") from error


def read_key(entry: Mapping[str, Any], where: str) -> RowKey:
    """The key that a line begins with. Raises UsageError where it has none."""
    key = entry.get("key")
    if type(key) is not list or [type(part) for part in key] != [str, str, str, int]:
        raise UsageError(f"{where}: field 'key': expected benchmark, split, episode id and repeat")
    return key[0], key[1], key[2], key[3]


def read_attempts(path: Path) -> list[dict[str, Any]]:
    """Attempts of a run folder, oldest first; of a committed run, those that its manifest describes.

    Raises UsageError with file, line and field for what is none.
    """
    if (path / ATTEMPTS).exists():
        found = [(f"{path / ATTEMPTS}: line {number}", entry) for number, entry in read_jsonl(path / ATTEMPTS)]
    else:
        entries = read_object(path / MANIFEST).get("attempts", [])
        if type(entries) is not list or not all(type(entry) is dict for entry in entries):
            raise UsageError(f"{path / MANIFEST}: field 'attempts': expected a list of objects")
        found = [(f"{path / MANIFEST}: attempt {i}", entry) for i, entry in enumerate(entries, start=1)]
    for where, entry in found:
        check_fields(entry, _ATTEMPT, where, needed=frozenset({"began", "rows"}), others=ANYTHING)
        check_fields(entry.get("hardware", {}), _HARDWARE, where, others=ANYTHING, inside="hardware.")
    return [entry for _, entry in found]


_ATTEMPT = {
    "began": TIME,
    "host": TEXT,
    **dict.fromkeys(("pid", "rows", "agents", "simulators"), COUNT),
    "hardware": OBJECT,
    "status": TEXT,
    "memory": PEAKS,
}
_HARDWARE = {"cpu": TEXT.or_null(), "cores": COUNT.or_null(), "gpu": TEXT.or_null()}


def read_manifest(path: Path) -> dict[str, Any]:
    """Manifest of a run folder; its identity is read by `read_identity`. Raises UsageError if there is none."""
    if not (path / MANIFEST).is_file():
        raise UsageError(f"{path}: not a run folder ({MANIFEST} cannot be read)")
    manifest = read_object(path / MANIFEST)
    if not isinstance(manifest.get("identity"), dict):
        raise UsageError(f"{path / MANIFEST}: field 'identity': expected an object")
    check_fields(manifest, _SHOWN, str(path / MANIFEST), others=ANYTHING)
    packages = manifest.get("packages", {})
    if not all(map(TEXT.fits, packages)):
        raise UsageError(f"{path / MANIFEST}: field 'packages': expected names that are text")
    check_fields(packages, {}, str(path / MANIFEST), others=TEXT.or_null(), inside="packages.")
    return manifest


_SHOWN = {**dict.fromkeys(("created", "vlnbench", "git", "python"), TEXT.or_null()), "packages": OBJECT}
"""Fields of a manifest that reports show as they are."""


def check_same_run(
    path: Path, manifest: Mapping[str, Any], found: Mapping[str, Any], mended: bool = False
) -> None:
    """Raise UsageError naming the differing fields if `found`, which lies in a folder, is not of this run.

    mended: see `RunFolder`, which holds the folder's lock.
    """
    theirs = read_identity(found.get("identity"), str(path / MANIFEST))
    ours = read_identity(manifest["identity"], "this run")
    if found["identity"] != ours.as_version_1():
        differing = theirs.differences(ours)
        if mended and set(differing) == {"agent_code"} and all(row.failed for row in read_rows(path)):
            write_json(path / MANIFEST, manifest)  # no row of the old code will count
            return
        edited = "the agent's code or a file that it reads was changed since: another --out keeps both runs"
        refuse_another(path, KIND, differing, *([edited] if "agent_code" in differing else []))
    scored, scoring = found.get("metrics_version"), manifest.get("metrics_version")
    if scored != scoring:
        raise UsageError(
            f"{path}: scored with metrics version {scored}, this is {scoring}; "
            f"run `vlnbench rescore {path} --write` first"
        )


def encode_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    """JSON form of a trajectory; an unreachable goal distance (inf) becomes null."""
    return {
        "positions": [pose.position for pose in trajectory.poses],
        "rotations": [pose.rotation for pose in trajectory.poses],
        "actions": [int(action) for action in trajectory.actions],
        "collided": [int(flag) for flag in trajectory.collided],
        "goal_distances": [None if d == float("inf") else d for d in trajectory.goal_distances],
    }


def decode_trajectory(entry: Mapping[str, Any]) -> Trajectory:
    """Inverse of `encode_trajectory`. Raises KeyError, TypeError or ValueError on malformed input."""
    steps = len(entry["actions"])
    _check_numbers(entry, "positions", steps + 1, 3)
    _check_numbers(entry, "rotations", steps + 1, 4)
    if len(entry["collided"]) != steps or len(entry["goal_distances"]) not in (0, steps + 1):
        raise ValueError(f"field 'collided' or 'goal_distances': expected {steps} and {steps + 1} values, or none")
    if not _are_numbers([each for each in entry["goal_distances"] if each is not None]):
        raise ValueError("field 'goal_distances': expected finite numbers and null")
    return Trajectory(
        poses=tuple(map(Pose, map(tuple, entry["positions"]), map(tuple, entry["rotations"]))),
        actions=tuple([_ACTIONS.get(action) or Action(action) for action in entry["actions"]]),
        collided=tuple(map(bool, entry["collided"])),
        goal_distances=tuple([math.inf if d is None else float(d) for d in entry["goal_distances"]]),
    )


_ACTIONS = {action.value: action for action in Action}
"""Found at once, where `Action` takes a microsecond; of the one that is 0, `Action` finds it."""


def _check_numbers(entry: Mapping[str, Any], name: str, rows: int, columns: int) -> None:
    found = entry[name]
    shaped = len(found) == rows and set(map(type, found)) <= {list} and set(map(len, found)) <= {columns}
    if not shaped or not _are_numbers(list(chain.from_iterable(found))):
        raise ValueError(f"field '{name}': expected {rows} times {columns} finite numbers")


def _are_numbers(found: Sequence[Any]) -> bool:
    """As `NUMBER` of each, at once."""
    same = set(map(type, found)) <= {int, float}
    return not found or (same and NUMBER.fits(min(found)) and NUMBER.fits(max(found)))
