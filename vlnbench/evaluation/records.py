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
import fcntl
import gzip
import io
import json
import os
import socket
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vlnbench.errors import RunError, UsageError
from vlnbench.interfaces import Action, Pose, Trajectory

MANIFEST, ROWS, TRAJECTORIES, SUMMARY = "manifest.json", "episodes.jsonl", "trajectories.jsonl", "summary.json"
ERRORS, ATTEMPTS = "errors.log", "attempts.jsonl"
FORMAT = 1

_BLOCK = 65536

RowKey = tuple[str, str, str, int]
"""(benchmark, split, episode id, repeat)."""

Score = float | int | bool | str | None
"""Value of one field of `metrics.Scores`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `episodes.jsonl`: how one episode ended.

    status: "ok"; "error" or "timeout" with the reason, which count as failed episodes; "unscored" without public
    goals. scores: the fields of `metrics.Scores`, empty unless ok. seconds: wall-clock time by part. report: what
    the agent counted, e.g. tokens.
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
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as opened:
                opened.enter_context(locked(self.path))
                _remove_temporary(self.path / MANIFEST, self.path / SUMMARY)
                if (self.path / MANIFEST).exists():
                    check_same_run(self.path, self._manifest)
                else:
                    if any(self.path.iterdir()):
                        raise UsageError(f"{self.path}: not empty and not a run folder; choose another --out")
                    write_json(self.path / MANIFEST, self._manifest)
                self._rows = opened.enter_context(open_for_append(self.path / ROWS))
                self._trajectories = opened.enter_context(open_for_append(self.path / TRAJECTORIES))
                self._files = opened.pop_all()
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be used as a run folder ({error.strerror})") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def begin_attempt(self) -> None:
        """Record that episodes are going to be run, so that speed can be told from the folder. Raises RunError."""
        try:
            attempt = {
                "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "rows": sum(1 for _ in read_jsonl(self.path / ROWS)),
            }
            with open_for_append(self.path / ATTEMPTS) as file:
                append_line(file, attempt)
        except OSError as error:
            raise _stopped(self.path, error) from error

    def append(self, row: Row, trajectory: Trajectory | None, detail: str | None = None) -> None:
        """Record a finished episode; on disk when this returns. detail: goes to `errors.log`.

        Raises RunError if it cannot be written; the folder can be opened again when that has been mended.
        """
        try:
            if detail is not None:
                with open_for_append(self.path / ERRORS) as errors:
                    _write(errors, f"episode {row.episode_id}, repeat {row.repeat}\n{detail}\n".encode())
            if trajectory is not None:
                append_line(self._trajectories, {"key": row.key, **encode_trajectory(trajectory)})
            append_line(self._rows, asdict(row))
        except OSError as error:
            raise _stopped(self.path, error) from error

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        try:
            write_json(self.path / SUMMARY, summary)
        except OSError as error:
            raise _stopped(self.path, error) from error

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


def read_manifest(path: Path) -> dict[str, Any]:
    """Manifest of a run folder. Raises UsageError if there is none."""
    if not (path / MANIFEST).is_file():
        raise UsageError(f"{path}: not a run folder ({MANIFEST} cannot be read)")
    manifest = read_object(path / MANIFEST)
    if not isinstance(manifest.get("identity"), dict):
        raise UsageError(f"{path / MANIFEST}: field 'identity': expected an object")
    return manifest


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UsageError if it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{path}: broken JSON ({error})") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: expected an object")
    return found


def check_same_run(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise UsageError naming the differing fields if the folder holds another run than `manifest`."""
    ours, theirs = manifest["identity"], read_manifest(path)["identity"]
    differing = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
    if differing:
        changes = ", ".join(f"{key} {theirs.get(key)!r} -> {ours.get(key)!r}" for key in differing[:3])
        raise UsageError(f"{path}: holds another run ({changes}); choose another --out")
    ours, theirs = manifest.get("metrics_version"), read_manifest(path).get("metrics_version")
    if ours != theirs:
        raise UsageError(
            f"{path}: scored with metrics version {theirs}, this is {ours}; "
            f"run `vlnbench rescore {path} --write` first"
        )


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each complete line. A torn last line is what a killed process leaves: skipped.

    Where the file is absent, it may lie there compressed, as in committed runs: `<name>.gz`.
    """
    packed = path.with_name(f"{path.name}.gz")
    if not path.exists() and not packed.exists():
        return
    try:  # a compressed file as a whole: half of one must not pass for a torn line
        file = path.open("rb") if path.exists() else io.BytesIO(gzip.decompress(packed.read_bytes()))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{packed}: broken gzip file ({error})") from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                entry = json.loads(line, object_pairs_hook=_object)
            except ValueError as error:
                raise UsageError(f"{path}: line {number}: broken JSON ({error})") from error
            if not isinstance(entry, dict):
                raise UsageError(f"{path}: line {number}: expected an object")
            yield number, entry


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are kept once for all lines."""
    return {sys.intern(name): value for name, value in pairs}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file as `write_bytes` does."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader sees the old file or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _write(file, content)
        finally:
            os.close(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove_temporary(*paths: Path) -> None:
    """Remove what `write_bytes` leaves of a file if it is killed."""
    for path in paths:
        for temporary in path.parent.glob(f".{path.name}.*"):
            temporary.unlink()


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


def encode_line(entry: Mapping[str, Any]) -> bytes:
    """One line of a JSON Lines file."""
    return json.dumps(entry, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def append_line(file: int, entry: Mapping[str, Any]) -> None:
    """Add a line to a JSON Lines file; when this returns, it is on disk."""
    _write(file, encode_line(entry))


def _write(file: int, content: bytes) -> None:
    """Write all of it, onto the disk. Unbuffered: after a failure, nothing is left to be written later."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)


@contextlib.contextmanager
def open_for_append(path: Path) -> Iterator[int]:
    """Descriptor of a file opened for appending, after cutting off a torn last line."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = end = os.fstat(file).st_size
        while end and os.pread(file, 1, end - 1) != b"\n":
            end = _last_newline(file, end)
        if end != size:
            os.ftruncate(file, end)
        yield file
    finally:
        os.close(file)


def _last_newline(file: int, end: int) -> int:
    """Offset behind the last newline before `end` within one block, or where that block starts."""
    start = max(0, end - _BLOCK)
    return start + os.pread(file, end - start, start).rfind(b"\n") + 1


def _stopped(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path}: cannot be written ({error.strerror}); what is recorded is safe: run the same command again when "
        "that is mended"
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a run folder. Raises UsageError if another process holds it, OSError without a folder."""
    directory = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{path}: another process is writing this run; wait for it or choose another --out"
            ) from error
        yield
    finally:
        os.close(directory)


def in_use(path: Path) -> bool:
    """Whether a process holds the lock of a run folder."""
    try:
        with locked(path):
            return False
    except UsageError:
        return True
