"""Runs that are committed as evidence: what a run folder holds, compressed.

`<results>/runs/<name>/` holds `manifest.json`, `episodes.jsonl.gz`, `trajectories.jsonl.gz` and `entry.json`. What
is shown of a run is computed from its rows, and the rows can be made again from the trajectories
(`vlnbench rescore`). Trajectories that are too large are left out; the manifest then says how they are made again,
with their hash.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.choice import CHOICE, read_choice
from vlnbench.evaluation.identity import MARK, TOLD_MARK
from vlnbench.evaluation.recorded import AnyRun, RecordedRun, load_run
from vlnbench.evaluation.records import MANIFEST, ROWS, TRAJECTORIES, encode_trajectory
from vlnbench.interfaces import Scalar
from vlnbench.leaderboard.published import invalid
from vlnbench.util.durable.files import encode_line, leftover_of, pack, write_bytes, write_json
from vlnbench.util.durable.limits import read_bounded

RUNS, ENTRY = "runs", "entry.json"
MAX_TRAJECTORY_BYTES = 5_000_000
"""Compressed trajectories of more bytes than this are not committed."""
DESCRIBED = "trajectories"
"""Field of a committed manifest: number and hash of the trajectories, if they are there, how they are made."""
_FOLDERS = re.compile(r"(?<!\S)/(?:[^\s/]+/)+")
"""Where on a machine something lies, up to its own name."""


class Entry(BaseModel):
    """What a manifest does not know of a run.

    name: shown in tables. sensors: class of sensors of the agent. backbone: the model that it was made of.
    reproduces: what the run claims to reproduce: id of a published row, or `runs/<name>` of another committed run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sensors: str | None = None
    backbone: str | None = None
    reproduces: str | None = None


def add_run(folder: Path, results: Path, entry: Entry) -> Path:
    """Commit a run: write its manifest, rows and trajectories below `results`. Returns the folder made.

    The same run gives the same bytes. A folder that a killed process left unfinished is made anew.

    Raises UsageError, with nothing written, if the run cannot be read, has no row, or its name is taken.
    """
    run = load_run(folder)
    if not run.rows:
        raise UsageError(f"{folder}: no episode is done; nothing to add")
    parts = (run.identity.benchmark, run.identity.split, entry.name)
    target = results / RUNS / re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
    packed, described = _packed_trajectories(run)
    files = {
        ENTRY: (json.dumps(entry.model_dump(), indent=2) + "\n").encode(),
        f"{ROWS}.gz": pack(b"".join(encode_line(asdict(row)) for row in run.rows.values())),
        **({f"{TRAJECTORIES}.gz": packed} if described["committed"] else {}),
    }
    if target.is_dir():
        found = {leftover_of(path) or path.name for path in target.iterdir()}
        if MANIFEST in {path.name for path in target.iterdir()} or not found <= {MANIFEST, *files}:
            raise UsageError(f"{target}: exists already; remove it, or choose another --name")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_bytes(target / name, content)
        manifest = {**run.manifest, DESCRIBED: described, "attempts": _attempts(run)}
        write_json(target / MANIFEST, manifest)  # last: without it, this is no run
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror}); choose another --results") from error
    return target


def trajectories_sha256(run: RecordedRun) -> str:
    """Hash of the trajectories of a run's rows, one line each, in the order of the lines."""
    return hashlib.sha256(b"".join(sorted(_trajectory_lines(run)))).hexdigest()


def _trajectory_lines(run: RecordedRun) -> list[bytes]:
    found = ((key, run.trajectories[key]) for key in run.rows if key in run.trajectories)
    return [encode_line({"key": key, **encode_trajectory(trajectory)}) for key, trajectory in found]


def _packed_trajectories(run: RecordedRun) -> tuple[bytes, dict[str, Any]]:
    """Trajectories as they are committed, and what the manifest says of them."""
    lines, identity = _trajectory_lines(run), run.identity
    packed = pack(b"".join(lines))
    options: dict[str, Scalar] = {name: identity.flat()[name] for name in ("agent", "benchmark", "split")}
    choice = read_choice(run.manifest.get("choice"), str(run.folder / MANIFEST))
    if identity.episodes != identity.split_size and not choice.episode_ids:
        options |= {"episodes": identity.episodes}
    parts = {name.replace("_", "-"): getattr(choice, name) for name in CHOICE}
    options |= {name: part if isinstance(part, str) else ",".join(part) for name, part in parts.items() if part}
    options |= {"seed": identity.seed, "repeats": identity.repeats}
    command = shlex.join(["vlnbench", "eval", *(f"--{name}={value}" for name, value in options.items())])
    made_by = f"{command} and the agent's options, such that identity.agent_identity is this one"
    if identity.imported:
        made_by = "vlnbench import of the files that 'imported' names"
    return packed, {
        "count": len(lines),
        "sha256": trajectories_sha256(run),
        "committed": len(packed) <= MAX_TRAJECTORY_BYTES,
        "made_by": made_by,
    }


def _attempts(run: RecordedRun) -> list[dict[str, Any]]:
    """When and on what a run was made, without names of machines and of folders on them."""
    return [
        {
            name: _without_folders(value) if name == "agent" else value
            for name, value in each.items()
            if name not in ("host", "pid")
        }
        for each in run.attempts
    ]


def _without_folders(said: Any) -> Any:
    """What an agent said, if it is lines of text as agents write them."""
    if not isinstance(said, list):
        return said
    return [_FOLDERS.sub("", line) if isinstance(line, str) else line for line in said]


def committed_runs(results: Path, *, trajectories: bool = True) -> list[tuple[RecordedRun, Entry]]:
    """The runs below `results`, by name. trajectories: as of `load_run`."""
    folders = [manifest.parent for manifest in sorted((results / RUNS).glob(f"*/{MANIFEST}"))]
    return [read_run(folder, trajectories=trajectories) for folder in folders]


def find_run(run: Path, results: Path | None) -> Path:
    """The folder of a run that is given as one, or by the name that it has below `results`."""
    if results is None or (run / MANIFEST).exists():
        return run
    return found if (found := results / RUNS / run).is_dir() else run


def read_run(folder: Path, *, trajectories: bool = True) -> tuple[RecordedRun, Entry]:
    """A run and its entry."""
    run = load_run(folder, trajectories=trajectories)
    return run, read_entry(run)


def read_entry(run: AnyRun) -> Entry:
    """The entry of a run; a run folder without one is shown under its agent's name. Raises UsageError.

    The name of an imported one ends with `MARK`, that of one told other instructions with `TOLD_MARK`, whatever
    the file says.
    """
    path = run.folder / ENTRY
    if not path.exists():
        return Entry(name=run.identity.called)
    try:
        entry = Entry.model_validate_json(read_bounded(path))
    except ValidationError as error:
        raise UsageError(f"{path}: {invalid(error)}") from error
    marks = [MARK] * bool(run.identity.imported) + [TOLD_MARK] * run.identity.told_others
    name = entry.name + "".join(mark for mark in marks if mark not in entry.name)
    return entry.model_copy(update={"name": name})


def read_runs(results: Path, folders: Sequence[Path]) -> list[tuple[RecordedRun, Entry]]:
    """Committed runs, and those in the given folders, without trajectories; a run that is in both counts once.

    Runs of one identity with other rows are two: somebody has run the same thing again.
    """
    found = committed_runs(results, trajectories=False)
    known = [(run.identity, run.rows) for run, _ in found]
    others = (read_run(folder, trajectories=False) for folder in folders)
    return found + [(run, entry) for run, entry in others if (run.identity, run.rows) not in known]
