"""Named, versioned evaluation protocols.

A benchmark fixes everything about a task that can change a score: the episodes, the body and its camera, the
step budget and the success rule. Two runs are comparable only if their fingerprints are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Camera, Embodiment
from vlnbench.util.plugins import Plugin, plugins, readable

Reader = Literal["r2r", "rxr"]
"""Episode file format: R2R-CE (VLN-CE) or RxR-CE (RxR_VLNCE_v0)."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One evaluation protocol.

    reader: format of the episode files. dataset_folders: names under `<data root>/datasets` in which they may lie,
    best first. splits: name -> number of published episodes, None where it is not known. roles, languages: which
    RxR episodes belong (empty: all). max_steps: actions per episode, STOP included. success_distance_m: the agent
    succeeds if it calls STOP strictly closer than this to the goal (geodesic). generator: module that makes the
    data, for benchmarks that need no download.
    """

    name: str
    version: int
    summary: str
    reader: Reader
    dataset_folders: tuple[str, ...]
    splits: Mapping[str, int | None]
    body: Embodiment
    roles: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
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

CMA_BODY = Embodiment(
    camera=Camera(width=224, height=224, hfov=90.0, height_m=1.25),
    depth_camera=Camera(width=256, height=256, hfov=90.0, height_m=1.25),
)
"""The body of VLN-CE's CMA and Seq2Seq baselines."""

CHALLENGE_BODY = Embodiment(
    camera=Camera(width=640, height=480, hfov=79.0, height_m=0.88),
    depth_range_m=(0.5, 5.0),
    agent_height_m=0.88,
    agent_radius_m=0.18,
    turn_deg=30.0,
    tilt_deg=30.0,
    allow_sliding=False,
)
"""The body of the RxR-Habitat challenge and VLN-CE's RxR baselines. Its navmesh is built from the scene."""

R2R_SPLITS = {
    "train": 10819,
    "val_seen": 778,
    "val_unseen": 1839,
    "test": 3408,
    "envdrop": 146304,
    "joint_train_envdrop": 157123,
}
R2R_FOLDERS = (
    "R2R_VLNCE_v1-3_preprocessed",
    "R2R_VLNCE_v1-3",
    "r2r",
    "R2R_VLNCE_v1-2_preprocessed",
    "R2R_VLNCE_v1-2",
    "R2R_VLNCE_v1-2_preprocessed_BERTidx",
)
RXR_FOLDERS = ("RxR_VLNCE_v0", "rxr")
ENGLISH = ("en-US", "en-IN")

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="houses-r2r",
            version=1,
            summary="generated houses, R2R-like instructions; needs no download",
            reader="r2r",
            dataset_folders=("houses_r2r",),
            splits={"train": None, "val_seen": None, "val_unseen": None, "envdrop": None},
            body=VLM_BODY,
            generator="envs.houses.files.dataset",
        ),
        Benchmark(
            name="houses-rxr",
            version=1,
            summary="the same houses, RxR-like instructions in four languages; needs no download",
            reader="rxr",
            dataset_folders=("houses_rxr",),
            splits={"train": None, "val_seen": None, "val_unseen": None},
            body=VLM_BODY,
            roles=("guide",),
            generator="envs.houses.files.dataset",
        ),
        Benchmark(
            name="r2r-ce",
            version=1,
            summary="R2R-CE v1-3 with the body of StreamVLN and JanusVLN",
            reader="r2r",
            dataset_folders=R2R_FOLDERS,
            splits=R2R_SPLITS,
            body=VLM_BODY,
        ),
        Benchmark(
            name="r2r-vlnce",
            version=1,
            summary="R2R-CE v1-3 with the body of VLN-CE's CMA and Seq2Seq",
            reader="r2r",
            dataset_folders=R2R_FOLDERS,
            splits=R2R_SPLITS,
            body=CMA_BODY,
        ),
        Benchmark(
            name="rxr-ce",
            version=1,
            summary="RxR-CE, English guide, with the body of StreamVLN and JanusVLN (not the challenge's)",
            reader="rxr",
            dataset_folders=RXR_FOLDERS,
            splits={"train": None, "val_seen": None, "val_unseen": None},
            body=VLM_BODY,
            roles=("guide",),
            languages=ENGLISH,
        ),
        Benchmark(
            name="rxr-habitat",
            version=1,
            summary="RxR-CE, guide, all languages, with the body of the RxR-Habitat challenge",
            reader="rxr",
            dataset_folders=RXR_FOLDERS,
            splits={"train": 60300, "val_seen": None, "val_unseen": 11006, "test_challenge": None},
            body=CHALLENGE_BODY,
            roles=("guide",),
        ),
    )
}


def get_benchmark(name: str) -> Benchmark:
    """Look a benchmark up by name. Raises UsageError naming the nearest known one."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    added = plugins("benchmarks", BENCHMARKS)
    if name not in added:
        raise UsageError(unknown("benchmark", name, [*BENCHMARKS, *added]))
    return _added(added[name])


def every_benchmark() -> list[Benchmark]:
    """The benchmarks that have a name, but for those of other distributions that cannot be loaded."""
    return [*BENCHMARKS.values(), *readable("benchmarks", BENCHMARKS, _added).values()]


def _added(plugin: Plugin) -> Benchmark:
    found = plugin.load()
    if not isinstance(found, Benchmark) or found.name != plugin.name:
        raise plugin.error(f"expected a vlnbench.data.benchmarks.Benchmark of the name {plugin.name!r}")
    return found
