"""Named, versioned evaluation protocols.

A benchmark fixes everything about a task that can change a score: the episodes, the body and its camera, the
step budget and the success rule. Two runs are comparable only if their fingerprints are equal.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from vlnbench.errors import UsageError
from vlnbench.interfaces import Camera, Embodiment


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One evaluation protocol.

    dataset_folders: names under `<data root>/datasets` in which the episode files may lie, best first.
    max_steps: actions per episode, STOP included. success_distance_m: the agent succeeds if it calls STOP
    strictly closer than this to the goal (geodesic). generator: module that makes the data, for
    benchmarks that need no download.
    """

    name: str
    version: int
    summary: str
    dataset_folders: tuple[str, ...]
    splits: tuple[str, ...]
    body: Embodiment
    max_steps: int = 500
    success_distance_m: float = 3.0
    generator: str | None = None

    @property
    def fingerprint(self) -> str:
        """Hash of every field that can change a score (sha256, 12 hex digits)."""
        protocol = asdict(self)
        for cosmetic in ("summary", "dataset_folders", "splits", "generator"):
            del protocol[cosmetic]
        text = json.dumps(protocol, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


VLM_BODY = Embodiment(camera=Camera(width=640, height=480, hfov=79.0, height_m=1.25))
"""The body that StreamVLN, JanusVLN and InternNav evaluate with on R2R-CE and RxR-CE."""

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="houses-r2r",
            version=1,
            summary="generated houses, R2R-like instructions; needs no download",
            dataset_folders=("houses_r2r",),
            splits=("train", "val_seen", "val_unseen"),
            body=VLM_BODY,
            generator="envs.houses",
        ),
        Benchmark(
            name="r2r-ce",
            version=1,
            summary="R2R-CE (VLN-CE v1-3) with the body of StreamVLN and JanusVLN",
            dataset_folders=("R2R_VLNCE_v1-3_preprocessed", "R2R_VLNCE_v1-3", "r2r"),
            splits=("train", "val_seen", "val_unseen", "test"),
            body=VLM_BODY,
        ),
    )
}


def get_benchmark(name: str) -> Benchmark:
    """Look a benchmark up by name. Raises UsageError naming the nearest known one."""
    if name not in BENCHMARKS:
        raise UsageError(unknown("benchmark", name, BENCHMARKS))
    return BENCHMARKS[name]


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """One line for a name that is not in a table, with the nearest known name."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}"
