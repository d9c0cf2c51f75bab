"""Parts of a matrix: which one machine runs, and how the results of several are put together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError, unknown
from vlnbench.evaluation.choice.choice import CHOICE
from vlnbench.evaluation.identity import SHARED
from vlnbench.matrix.rows import DOCUMENT
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.matrix.statistics.contrasts import SEED
from vlnbench.matrix.work.folder import read_json
from vlnbench.matrix.work.older import document_of_today
from vlnbench.matrix.work.stages import Stage, Stages, stages_of
from vlnbench.matrix.work.store import evaluation_identity
from vlnbench.util.durable.files import write_json


@dataclass(frozen=True)
class Unit:
    """What runs in one place: the stages of settings that share a training, or those of a reference."""

    members: tuple[Stages, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called, a name for every setting."""
        return tuple(each.of.name for each in self.members)

    @property
    def train(self) -> Stage | None:
        """The training that its settings share, None for a reference."""
        return self.members[0].train

    @property
    def setting(self) -> Setting | None:
        """One of its settings, None for a reference."""
        first = self.members[0].of
        return first if isinstance(first, Setting) else None

    @property
    def evaluations(self) -> list[Stage]:
        """Its evaluations, and last its scoring on held-out walks."""
        found = [stage for each in self.members for stage in each.evaluations.values()]
        scored = self.members[0].score
        return found if scored is None else [*found, scored]

    def identity(self, stage: Stage, trained: dict[str, Any] | None) -> dict[str, Any] | None:
        """What one of its trainings or evaluations is, to be shared; None for a scoring, which takes seconds.

        trained: the identity of its training, None for a reference.
        """
        if stage is self.train:
            return trained
        for each in self.members:
            for split, evaluation in each.evaluations.items():
                if stage is evaluation:
                    return evaluation_identity(trained, each.of.evaluate, split)
        return None


@dataclass(frozen=True)
class Part:
    """What of a matrix is run. only: names of settings and references, with * and ?; none for all. shard: i/n."""

    only: tuple[str, ...] = ()
    shard: str = ""

    def choose(self, units: Sequence[Unit]) -> list[Unit]:
        """Those units. Settings that share a training stay together. Raises UsageError for a name of nothing."""
        chosen = list(units)
        if self.only:
            names = [name for unit in units for name in unit.names]
            for pattern in self.only:
                if not any(_matches(name, pattern) for name in names):
                    raise UsageError(f"--only: {unknown('setting or reference', pattern, names)}")
            chosen = [
                u for u in units if any(_matches(name, pattern) for name in u.names for pattern in self.only)
            ]
        if self.shard:
            match = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", self.shard)
            if match is None or int(match[1]) > int(match[2]):
                raise UsageError(f"--shard {self.shard}: expected I/N with I from 1 to N, such as 1/4")
            chosen = chosen[int(match[1]) - 1 :: int(match[2])]
        return chosen

    def of(self, matrix: Matrix, work: Path) -> Matrix:
        """The matrix with these settings alone. Raises UsageError where there are none."""
        names = {name for unit in self.choose(units_of(matrix, work)) if unit.train for name in unit.names}
        if not names:
            raise UsageError("--only, --shard: no setting is among them")
        return replace(matrix, settings=tuple(each for each in matrix.settings if each.name in names))


ALL = Part()
"""Everything."""


def units_of(matrix: Matrix, work: Path, gpus: int = 0) -> list[Unit]:
    """Everything that a matrix runs: the references, which are soon done, then all settings of one seed at a time.

    So what is there of an unfinished matrix can be compared. gpus: how many a training has.
    """
    groups: dict[str, list[Setting]] = {}
    for setting in matrix.settings:
        groups.setdefault(setting.train_key, []).append(setting)
    seeds = matrix.axes.get(SEED, ())
    ordered = sorted(groups.values(), key=lambda settings: seeds.index(settings[0].labels[SEED]) if seeds else 0)
    beside = [Unit((stages_of(matrix, work, each),)) for each in matrix.references]
    return [
        *beside,
        *(Unit(tuple(stages_of(matrix, work, each, gpus) for each in members)) for members in ordered),
    ]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


# putting parts together


def merge(folders: Sequence[Path], results: Path) -> dict[str, Any]:
    """Put the results of parts of one matrix into one document and write it.

    Of every row the part that has got furthest counts. Raises UsageError, with nothing written, for results of
    different matrices, for rows that two parts have with different results, and for trainings or evaluations that
    do not belong side by side: other data, checkpoints, simulators, processes, precision.
    """
    documents = {folder: _read(folder) for folder in folders}
    first_folder, first = next(iter(documents.items()))
    for folder, document in documents.items():
        asked = (name for name in ("contrasts", "looks") if (document.get(name) or []) != (first.get(name) or []))
        if differing := _differing(document, first) or next(asked, ""):
            raise UsageError(f"{folder}: {differing} is not that of {first_folder}; merge parts of one matrix")
    merged = {
        **first,
        "episodes": {sha: each for found in documents.values() for sha, each in found.get("episodes", {}).items()},
        "references": _rows("references", documents),
        "rows": _rows("rows", documents),
    }
    _check_alike(merged)
    there = results / DOCUMENT
    if there.exists() and results not in folders and _differing(_read(results), first):
        raise UsageError(f"{results}: holds the results of another matrix; choose another --results")
    results.mkdir(parents=True, exist_ok=True)
    write_json(there, merged)
    return merged


def _read(folder: Path) -> dict[str, Any]:
    document = read_json(folder / DOCUMENT)
    if document is None:
        raise UsageError(f"{folder / DOCUMENT}: not there; expected the results folder of `vlnbench matrix run`")
    if not isinstance(document.get("rows"), list) or not document["rows"]:
        raise UsageError(f"{folder / DOCUMENT}: field 'rows': expected a list of settings; run the matrix again")
    return document_of_today(document)


def _differing(document: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first field in which two matrices differ; empty for parts of one."""
    names = ["name", "axes", "splits"]
    if ("data_key" in document) == ("data_key" in other):
        names.insert(1, "key")
    else:  # one of them is older, and its key does not tell how data were made: `_check_alike` looks at these
        keys = {row["name"]: row["key"] for row in document["rows"]}
        if any(keys.get(row["name"]) != row["key"] for row in other["rows"]):
            return "key"
    return next((name for name in names if document.get(name) != other.get(name)), "")


def _rows(name: str, documents: Mapping[Path, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of all documents, each once, in the order in which they stand there first."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder, document in documents.items():
        for row in document.get(name, ()):
            before = found.get(row["name"])
            if before is None or _progress(row) > _progress(before[1]):
                found[row["name"]] = (folder, row)
            elif _progress(row) == _progress(before[1]) == _DONE and row["results"] != before[1]["results"]:
                raise UsageError(
                    f"{row['name']!r} is done in {before[0]} and in {folder}, with different results; keep one"
                )
    return [row for _, row in found.values()]


_DONE = 4
_FURTHEST = {"done": _DONE, "unfinished": 2, "running": 2, "skipped": 1, "pending": 0}


def _progress(row: Mapping[str, Any]) -> int:
    """How far a row is: failures say more than what is unfinished."""
    return _FURTHEST.get(row["status"], 3)


def _check_alike(document: Mapping[str, Any]) -> None:
    """Raise UsageError where rows that are compared differ in what no axis of the matrix varies."""
    seen: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}

    def check(what: str, of: Any, name: str, values: dict[str, Any]) -> None:
        place = (what, repr(of))
        other, before = seen.setdefault(place, (name, values))
        for field, value in values.items():
            if value != before[field]:
                raise UsageError(
                    f"{name!r} and {other!r} do not belong to one table: {what} differ in {field} ({value} and "
                    f"{before[field]}); run one of them again"
                )

    for row in [*document["rows"], *document["references"]]:
        for split, result in row["results"].items():
            if result:
                named = ("benchmark", "episodes", "repeats", "sim", *CHOICE)
                protocol = {key: row["evaluate"].get(key) for key in named}
                values = {field: result["identity"].get(field) for field in SHARED}
                check("their evaluations", (split, protocol), row["name"], values)
    for row in document["rows"]:
        trained, options = row.get("train") or {}, row["options"]
        if trained.get("started_from") is not None:
            values = {name: trained.get(name) for name in ("started_from", "world_size", "dtype")}
            check("their trainings", options["checkpoint"], row["name"], values)
            data = {"data_sha256": trained.get("data_sha256")}
            check("their data", (options["sets"], options.get("envdrop")), row["name"], data)
