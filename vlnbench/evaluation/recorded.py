"""Recorded runs, read back: rows, trajectories and the plan they were made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlnbench.data.benchmarks import BENCHMARKS, Benchmark, get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.choice import read_choice
from vlnbench.evaluation.columns.read import WHOLE, read_table
from vlnbench.evaluation.columns.table import Table
from vlnbench.evaluation.evaluate import Plan, make_plan
from vlnbench.evaluation.identity import Identity, read_identity
from vlnbench.evaluation.records import (
    MANIFEST,
    Row,
    RowKey,
    read_attempts,
    read_manifest,
    read_rows,
    read_trajectories,
)
from vlnbench.interfaces import Trajectory
from vlnbench.util.visible import one_line

LONGEST_DIFFERENCE = 40
"""Characters of what tells runs apart beside their names."""


@dataclass(frozen=True, kw_only=True)
class AnyRun:
    """What a run folder says of the run.

    manifest: as it lies in the folder; `identity` is what it says of the run, whichever version wrote it.
    attempts: when and on what it was run, as far as that is known.
    """

    folder: Path
    manifest: dict[str, Any]
    identity: Identity
    benchmark: Benchmark
    attempts: tuple[dict[str, Any], ...] = ()

    @property
    def split(self) -> str:
        """Split of the benchmark."""
        return self.identity.split

    @property
    def n_planned(self) -> int:
        """Planned episodes, each `repeats` times."""
        return self.identity.episodes

    @property
    def n_split(self) -> int:
        """Episodes of the split."""
        return self.identity.split_size

    @property
    def repeats(self) -> int:
        """How many times every episode was run."""
        return self.identity.repeats


@dataclass(frozen=True, kw_only=True)
class RecordedRun(AnyRun):
    """A run with its rows and trajectories by key; that of a row that ended in an error may be missing."""

    rows: dict[RowKey, Row]
    trajectories: dict[RowKey, Trajectory]


@dataclass(frozen=True, kw_only=True)
class TabledRun(AnyRun):
    """A run with its rows as columns, for what is said of all of them."""

    table: Table


def load_run(folder: Path, *, trajectories: bool = True) -> RecordedRun:
    """Read a run folder; without its trajectories, which are most of it, where only rows are needed.

    Raises UsageError if it is none or one of its files is broken.
    """
    said = _read(folder)
    rows = {row.key: row for row in read_rows(folder)}
    return RecordedRun(**said, rows=rows, trajectories=read_trajectories(folder) if trajectories else {})


def load_table(folder: Path, seconds: Sequence[str] = WHOLE) -> TabledRun:
    """As `load_run`, with rows as columns and no trajectories. seconds: as of `read_table`."""
    return TabledRun(**_read(folder), table=read_table(folder, seconds))


def _read(folder: Path) -> dict[str, Any]:
    """Fields of `AnyRun`."""
    manifest = read_manifest(folder)
    identity = read_identity(manifest["identity"], str(folder / MANIFEST))
    return {
        "folder": folder,
        "manifest": manifest,
        "identity": identity,
        "benchmark": _benchmark(manifest, identity, str(folder / MANIFEST)),
        "attempts": tuple(read_attempts(folder)),
    }


def _benchmark(manifest: dict[str, Any], identity: Identity, where: str) -> Benchmark:
    """The benchmark of a run: ours of that name; as the manifest has it where it came with a file or a plug-in."""
    if identity.benchmark in BENCHMARKS:
        return get_benchmark(identity.benchmark)
    from vlnbench.data.benchmark_files import recorded_benchmark  # pydantic, which is rarely needed

    return recorded_benchmark(manifest.get("protocol"), identity.fingerprint, where)


def remake_plan(run: AnyRun, data_root: Path) -> Plan:
    """The plan of a run, made again from its manifest and the dataset below a data root.

    Raises UsageError unless benchmark, split, dataset and choice of episodes are those of the run.
    """
    return remake_split(run, data_root)[0]


def remake_split(run: AnyRun, data_root: Path) -> tuple[Plan, EpisodeSet]:
    """As `remake_plan`, with the split that the plan was made from."""
    benchmark = run.benchmark
    if ":" in benchmark.reader:  # code; what a manifest says is not imported
        benchmark = get_benchmark(benchmark.name)
    if "fingerprint" not in run.identity.not_known:
        _must_equal(run, "fingerprint", benchmark.fingerprint, f"benchmark {benchmark.name} of this vlnbench")
    episode_set = load_split(benchmark, run.split, data_root, allow_partial=True)
    source = f"{episode_set.path} (with its ground truth)"
    _must_equal(run, "dataset_sha256", episode_set.sha256, source)
    plan = make_plan(
        benchmark,
        episode_set,
        run.identity.agent,
        count=run.n_planned,
        seed=run.identity.seed,
        repeats=run.repeats,
        choice=read_choice(run.manifest.get("choice"), str(run.folder / MANIFEST)),
        told="other" if run.identity.told_others else "own",
    )
    source = f"the choice of {run.n_planned} episodes of {source}"
    _must_equal(run, "episodes_sha256", plan.episodes_sha256, source)
    return plan, episode_set


def _must_equal(run: AnyRun, name: str, found: str, source: str) -> None:
    recorded = run.identity.flat()[name]
    if recorded != found:
        raise UsageError(
            f"{run.folder / MANIFEST}: field 'identity.{name}': the run has {recorded!r:.100}, "
            f"but {source} has {found!r:.100}; "
            "use the data and the version of vlnbench that the run was made with (--data-root)"
        )


def named_apart(runs: Sequence[AnyRun], names: Sequence[str]) -> list[str]:
    """What runs are called: of several with one name on one split also by what their agents say of themselves
    otherwise than the others do, where that is short, or else by the name of the folder."""
    places = [(name, run.identity.benchmark, run.split) for run, name in zip(runs, names, strict=True)]
    alike: dict[tuple[str, str, str], list[AnyRun]] = defaultdict(list)
    for run, place in zip(runs, places, strict=True):
        alike[place].append(run)
    return [_apart(run, place[0], alike[place]) for run, place in zip(runs, places, strict=True)]


def _apart(run: AnyRun, name: str, alike: Sequence[AnyRun]) -> str:
    said = [each.identity.agent_identity for each in alike]
    differing = sorted({key for one in said for key in one if any(one[key] != other.get(key) for other in said)})
    texts = [", ".join(one_line(f"{key} {one[key]}") for key in differing if key in one) for one in said]
    own = texts[next(i for i, each in enumerate(alike) if each is run)]
    if len(set(texts)) < len(texts) or max(map(len, texts)) > LONGEST_DIFFERENCE:
        own = run.folder.name if len(alike) > 1 else ""
    return f"{name} ({own})" if own else name
