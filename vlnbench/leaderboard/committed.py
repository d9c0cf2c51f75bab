"""Runs that are committed as evidence: what a run folder holds, without trajectories, compressed.

`<results>/runs/<name>/` holds `manifest.json`, `episodes.jsonl.gz` and `entry.json`. Whatever is shown of a run is
computed from its rows; commands that read run folders read these too.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from vlnbench.errors import UsageError
from vlnbench.evaluation.recorded import RecordedRun, load_run
from vlnbench.evaluation.records import MANIFEST, ROWS
from vlnbench.util.files import encode_line, write_bytes, write_json

RUNS, ENTRY = "runs", "entry.json"


class Entry(BaseModel):
    """What a manifest does not know of a run.

    name: shown in tables. sensors: class of sensors of the agent. reproduces: what the run claims to
    reproduce: id of a published row, or `runs/<name>` of another committed run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sensors: str | None = None
    reproduces: str | None = None


def add_run(folder: Path, results: Path, entry: Entry) -> Path:
    """Commit a run: write its manifest and rows below `results`. Returns the folder made.

    Raises UsageError, with nothing written, if the run cannot be read, has no row, or its name is taken.
    """
    run = load_run(folder)
    if not run.rows:
        raise UsageError(f"{folder}: no episode is done; nothing to add")
    identity = run.identity
    parts = (identity.benchmark, identity.split, entry.name)
    target = results / RUNS / re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
    if target.exists():
        raise UsageError(f"{target}: exists already; remove it, or choose another --name")
    lines = b"".join(encode_line(asdict(row)) for row in run.rows.values())
    try:
        target.mkdir(parents=True)
        write_json(target / ENTRY, entry.model_dump())
        write_bytes(target / f"{ROWS}.gz", gzip.compress(lines, mtime=0))
        write_json(target / MANIFEST, run.manifest)  # last: without it, the folder is no run
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror}); choose another --results") from error
    return target


def committed_runs(results: Path) -> list[tuple[RecordedRun, Entry]]:
    """The runs below `results`, by name."""
    return [read_run(manifest.parent) for manifest in sorted((results / RUNS).glob(f"*/{MANIFEST}"))]


def read_run(folder: Path) -> tuple[RecordedRun, Entry]:
    """A run and its entry; a run folder without one is shown under its agent's name."""
    run = load_run(folder)
    path = folder / ENTRY
    if not path.exists():
        return run, Entry(name=run.identity.agent)
    try:
        return run, Entry.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: field '{'.'.join(map(str, first['loc']))}': {first['msg']}") from error


def read_runs(results: Path, folders: Sequence[Path]) -> list[tuple[RecordedRun, Entry]]:
    """Committed runs, and those in the given folders; a run that is in both counts once.

    Runs of one identity with other rows are two: somebody has run the same thing again.
    """
    found = committed_runs(results)
    known = [(run.identity, run.rows) for run, _ in found]
    return found + [(run, entry) for run, entry in map(read_run, folders) if (run.identity, run.rows) not in known]
