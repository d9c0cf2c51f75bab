"""Named, versioned evaluation protocols: those that ship with vlnbench, of other distributions, and in files.

A benchmark fixes everything about a task that can change a score: the episodes, the body and its camera, the
step budget and the success rule. Two runs are comparable only if their fingerprints are equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlnbench.data.protocol import Benchmark as Benchmark
from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Camera, Embodiment
from vlnbench.util.loading import import_string
from vlnbench.util.plugins import Plugin, plugins, readable

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
            generator="envs.houses.files.manifest",
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
            generator="envs.houses.files.manifest",
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
    """A benchmark by its name, from a file `FILE.yaml` or `FILE.py`, or by an import string `package.module:NAME`.

    A Python file calls its benchmark BENCHMARK. Raises UsageError naming the nearest known one, or what is wrong
    with the file.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name.endswith((".yaml", ".yml", ".py")) or ":" in name:
        return _of_a_user(name)
    added = plugins("benchmarks", BENCHMARKS)
    if name not in added:
        raise UsageError(unknown("benchmark", name, [*BENCHMARKS, *added]) + "; or give a file .yaml or .py")
    return _added(added[name])


def every_benchmark() -> list[Benchmark]:
    """The benchmarks that have a name, but for those of other distributions that cannot be loaded."""
    return [*BENCHMARKS.values(), *readable("benchmarks", BENCHMARKS, _added).values()]


def _added(plugin: Plugin) -> Benchmark:
    from vlnbench.data.benchmark_files import problem

    found: Benchmark = plugin.load()
    if wrong := problem(found):
        raise plugin.error(wrong)
    if found.name != plugin.name:
        raise plugin.error(f"expected a benchmark of the name {plugin.name!r}, found {found.name!r}")
    return found


def _of_a_user(name: str) -> Benchmark:
    """A benchmark from a file or an import string, unless it has the name of another one."""
    from vlnbench.data import benchmark_files  # pydantic and yaml, which nobody else here needs

    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        found: Any = benchmark_files.read_benchmark(path, BENCHMARKS)
    else:
        found = benchmark_files.run_benchmark(path) if path.suffix == ".py" else import_string(name)
    if wrong := benchmark_files.problem(found):
        raise UsageError(f"benchmark {name!r}: {wrong}")
    if found.name in BENCHMARKS or found.name in plugins("benchmarks", BENCHMARKS):
        raise UsageError(f"benchmark {name!r}: name {found.name!r} is taken (`vlnbench list`); choose another one")
    return found  # type: ignore[no-any-return]
