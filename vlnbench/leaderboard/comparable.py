"""Which runs may share a table, and by which fields others differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlnbench.data.protocol import COSMETIC
from vlnbench.errors import UsageError
from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.recorded import AnyRun, TabledRun


def check_complete(run: TabledRun) -> None:
    """Raise UsageError if planned episodes of a run are missing."""
    if len(run.table) != run.n_planned * run.repeats:
        raise UsageError(
            f"{run.folder}: {len(run.table)} of {run.n_planned * run.repeats} planned episodes are done; "
            "finish it with the command it was started with (without --until)"
        )


def check_comparable(runs: Sequence[AnyRun], but: str = "") -> None:
    """Raise UsageError for the first run that differs from the first one in a field of `SHARED` but this."""
    first = runs[0]
    for other in runs[1:]:
        if said := mismatches(first, other, but):
            raise UsageError(f"{first.folder} and {other.folder} cannot share a table: {'; '.join(said)}")


def mismatches(a: AnyRun, b: AnyRun, but: str = "") -> list[str]:
    """What two runs differ in that would have to be the same, in words; hashes are told by what they are of.

    What imported results do not tell is no difference; `not_told` names it.
    """
    found = a.identity.differences(b.identity)
    untold = {*a.identity.not_known, *b.identity.not_known, but}
    if {"benchmark", "split"} & found.keys():  # which have other files and episodes
        untold |= {"dataset_sha256", "episodes_sha256"}
    return [_said(name, found[name], a, b) for name in SHARED if name in found and name not in untold]


def not_told(runs: Sequence[AnyRun]) -> list[str]:
    """For each imported run a line about it: what of the protocol is not known and may be another one."""
    lines = []
    for identity in (run.identity for run in runs if run.identity.imported):
        names = ", ".join("protocol" if name == "fingerprint" else name for name in identity.not_known)
        lines.append(
            f"IMPORTED, not run here: {identity.called}; not known and perhaps not the same: {names or '-'}"
        )
    return lines


def _said(name: str, values: tuple[Any, Any], a: AnyRun, b: AnyRun) -> str:
    if name == "fingerprint":
        fields = list(_protocol_differences(a.manifest.get("protocol"), b.manifest.get("protocol")))
        unknown = "fields that their manifests do not tell"
        return f"fingerprint of the protocol: {', '.join(fields) or unknown}"
    if name == "dataset_sha256":
        return f"dataset_sha256: the files of {a.identity.benchmark} {a.split} are not the same"
    if name == "episodes_sha256":
        ours, theirs = (run.identity.episodes_of for run in (a, b))
        chosen = f"{ours} / {theirs}" if ours != theirs else f"{ours} in both, but not the same ones"
        return f"episodes_sha256: {chosen} (`vlnbench compare --common` takes those that both have)"
    return f"{name} {values[0]!r} / {values[1]!r}"


def _protocol_differences(ours: object, theirs: object, prefix: str = "") -> Iterator[str]:
    """Fields in which two protocols differ that can change a score, as `body.turn_deg 15.0 / 30.0`."""
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        if ours != theirs and prefix:
            yield f"{prefix} {ours!r} / {theirs!r}"
        return
    for name in {**ours, **theirs}:
        if prefix or name not in COSMETIC:
            each = f"{prefix}.{name}" if prefix else str(name)
            yield from _protocol_differences(ours.get(name), theirs.get(name), each)
