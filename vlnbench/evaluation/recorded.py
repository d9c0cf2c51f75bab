"""Recorded runs, read back: rows, trajectories and the plan they were made from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vlnbench.data.benchmarks import Benchmark, get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.evaluate import Plan, make_plan
from vlnbench.evaluation.records import MANIFEST, Row, RowKey, read_manifest, read_rows, read_trajectories
from vlnbench.interfaces import Trajectory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a run folder holds.

    n_planned of n_split episodes, each `repeats` times. rows and trajectories by key; the trajectory of a row that
    ended in an error may be missing.
    """

    folder: Path
    manifest: dict[str, Any]
    benchmark: Benchmark
    split: str
    n_planned: int
    n_split: int
    repeats: int
    rows: dict[RowKey, Row]
    trajectories: dict[RowKey, Trajectory]

    @property
    def identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = self.manifest["identity"]
        return identity


def load_run(folder: Path) -> RecordedRun:
    """Read a run folder. Raises UsageError if it is none or one of its files is broken."""
    manifest = read_manifest(folder)
    counts = re.fullmatch(r"(\d+) of (\d+)", _field(folder, manifest, "episodes", str))
    if counts is None:
        raise UsageError(f"{folder / MANIFEST}: field 'identity.episodes': expected 'N of M'")
    return RecordedRun(
        folder=folder,
        manifest=manifest,
        benchmark=get_benchmark(_field(folder, manifest, "benchmark", str)),
        split=_field(folder, manifest, "split", str),
        n_planned=int(counts[1]),
        n_split=int(counts[2]),
        repeats=_field(folder, manifest, "repeats", int),
        rows={row.key: row for row in read_rows(folder)},
        trajectories=read_trajectories(folder),
    )


def remake_plan(run: RecordedRun, data_root: Path) -> Plan:
    """The plan of a run, made again from its manifest and the dataset below a data root.

    Raises UsageError unless benchmark, split, dataset and choice of episodes are those of the run.
    """
    return remake_split(run, data_root)[0]


def remake_split(run: RecordedRun, data_root: Path) -> tuple[Plan, EpisodeSet]:
    """As `remake_plan`, with the split that the plan was made from."""
    benchmark = run.benchmark
    _must_equal(run, "fingerprint", benchmark.fingerprint, f"benchmark {benchmark.name} of this vlnbench")
    episode_set = load_split(benchmark, run.split, data_root, allow_partial=True)
    source = f"{episode_set.path} (with its ground truth)"
    _must_equal(run, "dataset_sha256", episode_set.sha256, source)
    agent, seed = _field(run.folder, run.manifest, "agent", str), _field(run.folder, run.manifest, "seed", int)
    plan = make_plan(benchmark, episode_set, agent, count=run.n_planned, seed=seed, repeats=run.repeats)
    source = f"the choice of {run.n_planned} episodes of {source}"
    _must_equal(run, "episodes_sha256", plan.episodes_sha256, source)
    return plan, episode_set


def _must_equal(run: RecordedRun, name: str, found: str, source: str) -> None:
    recorded = run.identity.get(name)
    if recorded != found:
        raise UsageError(
            f"{run.folder / MANIFEST}: field 'identity.{name}': the run has {recorded!r}, "
            f"but {source} has {found!r}; "
            "use the data and the version of vlnbench that the run was made with (--data-root)"
        )


def _field(folder: Path, manifest: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = manifest["identity"].get(name)
    if not isinstance(value, kind):
        raise UsageError(
            f"{folder / MANIFEST}: field 'identity.{name}': expected {kind.__name__}, found {value!r}"
        )
    return value
