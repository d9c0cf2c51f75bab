"""Run folders: the rows of a run are its only truth.

A run folder holds `manifest.json` (written first), `trajectories.jsonl` and `episodes.jsonl` (one line as each
episode finishes, flushed to disk; the line in `episodes.jsonl` comes second and marks the episode as done) and
`summary.json` (written last, atomically); `attempts.jsonl` says when and where the run was begun and resumed,
`errors.log` holds the stacks of what went wrong. A process killed at
any moment leaves at most one torn last line per file, which the next one to open the folder for writing cuts off.
An episode that was run again has two rows: the last one counts.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.evaluation.identity import read_identity
from vlnbench.interfaces import Action, Pose, Trajectory
from vlnbench.util.files import (
    append_line,
    open_for_append,
    read_jsonl,
    read_object,
    stopped,
    write_all,
    write_json,
)
from vlnbench.util.folder import Kind, open_folder, refuse_another

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
    seconds: what `env` and `agent` took, the agent's also by steps (`costs.PARTS`), and `wall`: on the clock since
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
    process, or cannot be written.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self._manifest = manifest
        self._files = contextlib.ExitStack()
        self._rows: int
        self._trajectories: int

    def __enter__(self) -> RunFolder:
        with contextlib.ExitStack() as opened:
            check = partial(check_same_run, self.path, self._manifest)
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
                "rows": sum(1 for _ in read_jsonl(self.path / ROWS)),
                **(work or {}),
            }
            with open_for_append(self.path / ATTEMPTS) as file:
                append_line(file, attempt)
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
        with contextlib.suppress(OSError):  # somebody else's file in there: leave it alone
            self.path.rmdir()


def read_rows(path: Path) -> list[Row]:
    """Rows of a run folder, the last one for each key. Raises UsageError on a broken line."""
    rows: dict[RowKey, Row] = {}
    for number, entry in read_jsonl(path / ROWS):
        try:
            row = Row(**entry)
        except TypeError as error:
            raise UsageError(f"{path / ROWS}: line {number}: not an episode row ({error})") from error
        rows[row.key] = row
    return list(rows.values())


def read_trajectories(path: Path) -> dict[RowKey, Trajectory]:
    """Trajectories of a run folder by row key."""
    result: dict[RowKey, Trajectory] = {}
    for number, entry in read_jsonl(path / TRAJECTORIES):
        try:
            benchmark, split, episode_id, repeat = entry["key"]
            result[(benchmark, split, episode_id, repeat)] = decode_trajectory(entry)
        except (KeyError, TypeError, ValueError) as error:
            where = f"{path / TRAJECTORIES}: line {number}"
            raise UsageError(f"{where}: not a trajectory ({type(error).__name__}: {error})") from error
    return result


def read_attempts(path: Path) -> list[dict[str, Any]]:
    """Attempts of a run folder, oldest first; of a committed run, those that its manifest describes."""
    if not (path / ATTEMPTS).exists():
        return list(read_object(path / MANIFEST).get("attempts", ()))
    return [entry for _, entry in read_jsonl(path / ATTEMPTS)]


def read_manifest(path: Path) -> dict[str, Any]:
    """Manifest of a run folder; its identity is read by `read_identity`. Raises UsageError if there is none."""
    if not (path / MANIFEST).is_file():
        raise UsageError(f"{path}: not a run folder ({MANIFEST} cannot be read)")
    manifest = read_object(path / MANIFEST)
    if not isinstance(manifest.get("identity"), dict):
        raise UsageError(f"{path / MANIFEST}: field 'identity': expected an object")
    return manifest


def check_same_run(path: Path, manifest: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise UsageError naming the differing fields if `found`, which lies in a folder, is not of this run."""
    theirs = read_identity(found.get("identity"), str(path / MANIFEST))
    ours = read_identity(manifest["identity"], "this run")
    if found["identity"] != ours.as_version_1():
        refuse_another(path, KIND, theirs.differences(ours))
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
    poses = tuple(
        Pose(tuple(position), tuple(rotation))
        for position, rotation in zip(entry["positions"], entry["rotations"], strict=True)
    )
    return Trajectory(
        poses=poses,
        actions=tuple(Action(action) for action in entry["actions"]),
        collided=tuple(bool(flag) for flag in entry["collided"]),
        goal_distances=tuple(float("inf") if d is None else float(d) for d in entry["goal_distances"]),
    )
