"""The folder in which the work of a matrix lies, and what is read of it.

The work folder holds `matrix.json` (which matrix this is; written first), `plans.json`, and for every command a
folder with its log, its attempts and what it makes: `prepare/`, `train/<key>/` and `eval/<key>/`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.generator import get_generator
from vlnbench.defaults import BENCHMARK
from vlnbench.errors import UsageError
from vlnbench.evaluation.records import SUMMARY
from vlnbench.matrix.fields import HASHED
from vlnbench.matrix.spec import Matrix
from vlnbench.matrix.work.older import link_older, manifest_of_today
from vlnbench.util.durable.files import read_object, write_json
from vlnbench.util.durable.folder import Kind, find_manifest, open_folder
from vlnbench.util.durable.limits import regular

MANIFEST, PLANS, RUN, MODEL = "matrix.json", "plans.json", "run", "model"
SCORES = "score.json"
KIND = Kind("matrix", MANIFEST)
EXIT_HANGS, EXIT_GPU_MEMORY = 124, 3


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a finished evaluation, None before."""
    summary = read_json(folder / RUN / SUMMARY)
    return summary if summary is not None and summary["n_done"] == summary["n_planned"] else None


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object on disk, None where there is none. Raises UsageError for a broken one."""
    try:
        found: dict[str, Any] = json.loads(regular(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: cannot be read as JSON ({error}); delete it and run the matrix again"
        ) from error
    return found


def check_work(matrix: Matrix, work: Path) -> None:
    """Raise UsageError if the folder is another matrix's, or this one's from before its file changed.

    A file may grow: settings that are added are no change to those that are there.
    """
    found = find_manifest(work, KIND)
    if found is not None:
        _check_same(matrix, work, found)


def _check_same(matrix: Matrix, work: Path, found: Mapping[str, Any]) -> None:
    found = manifest_of_today(found, matrix.settings, work)
    before = {each["key"]: each["name"] for each in found["settings"]}
    now = {each.key: each.name for each in matrix.settings}
    changes = [f"{name!r} is gone or another" for key, name in before.items() if key not in now]
    protocols = _protocols(matrix)
    for name, protocol in found.get("protocols", {}).items():
        if protocol != protocols.get(name, protocol):
            changes.insert(0, f"the protocol of {name} is another")
    if found.get("data_key") != matrix.data_key:
        changes.insert(0, "what is generated or collected")
    if found.get("looks", list(matrix.looks)) != list(matrix.looks):
        changes.insert(0, "looks, which are said beforehand")
    if changes:
        what = ", ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
        raise UsageError(
            f"{matrix.path}: changed since {work} was begun ({what}); restore it (settings may be added), or give "
            "the changed matrix a name or --out of its own"
        )


@contextmanager
def open_work(matrix: Matrix, work: Path) -> Iterator[None]:
    """Make the work folder, or find this matrix's, and hold its lock. Raises UsageError as `check_work` does."""
    settings = [{"name": each.name, "key": each.key, "options": asdict(each.train)} for each in matrix.settings]
    content = {
        "format": HASHED,
        "name": matrix.name,
        "data_key": matrix.data_key,
        "protocols": _protocols(matrix),
        "looks": list(matrix.looks),
        "settings": settings,
    }
    manifest = json.loads(json.dumps(content, default=str))
    with open_folder(work, KIND, manifest, partial(_check_same, matrix, work)):
        before = read_object(work / MANIFEST)
        link_older(before, matrix.settings, work)
        if before != manifest:  # settings were added, or their order is another
            write_json(work / MANIFEST, manifest)
        yield


def _protocols(matrix: Matrix) -> dict[str, list[str | None]]:
    """Of the benchmarks that a matrix names: the fingerprint, and the version of what generates the data."""
    options = [setting.evaluate for setting in matrix.settings] + [
        *matrix.collect.values(),
        *matrix.offline.values(),
    ]
    named = (get_benchmark(str(each.get("benchmark", BENCHMARK))) for each in options)
    return {
        each.name: [each.fingerprint, each.generator and get_generator(each.generator).version] for each in named
    }


def default_folders(matrix: Matrix) -> tuple[Path, Path]:
    """Where work and results go unless the user says otherwise."""
    return Path("runs", "matrix", matrix.name), Path("results", matrix.name)
