"""Where the files of a split lie, which of several is taken, and what is known about a published dataset.

One data root may hold any of the layouts in use: VLN-CE (`datasets/R2R_VLNCE_v1-3_preprocessed/`,
`datasets/RxR_VLNCE_v0/`, scenes in `scene_datasets/`), StreamVLN and JanusVLN (`datasets/r2r/`, `datasets/rxr/`,
`datasets/envdrop/`) and InternNav (`vln_ce/raw_data/r2r/`, scenes in `scene_data/mp3d_ce/`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlnbench.data.benchmarks import Benchmark
from vlnbench.data.shipped import SCALEVLN
from vlnbench.defaults import GENERATORS
from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Episode
from vlnbench.util.durable.files import read_object

BASES = ("datasets", "vln_ce/raw_data")
"""Folders below the data root that hold dataset folders, best first."""

SCENES = ("scene_datasets", "scene_data/mp3d_ce")
"""Folders below the data root to which scene ids are relative, best first."""

SUFFIXES = (".json.gz", ".gz", ".json", "")
"""The joint EnvDrop file is delivered as `joint_train_envdrop.gz` or without any suffix."""

OTHER_SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".tsv", ".parquet")
"""Of files that a benchmark's own reader reads."""

ROLES = ("guide", "follower")
AUGMENTATIONS = ("envdrop", "joint_train_envdrop", "noise", "speaker", "recolored")
"""Sets to train on, which may also lie beside the dataset folders, as in StreamVLN."""

V1_2_COUNTS = {"envdrop": 146413, "joint_train_envdrop": 157232}
"""Episodes of v1-2 where they differ from v1-3, which removed 109 EnvDrop episodes (VLN-CE)."""

NAMED_VERSION = re.compile(r"^R[2x]R_VLNCE_(v\d+(?:-\d+)?)")
VERSION = re.compile(r"[\w.:-]{1,100}")
UNNAMED_R2R = ("r2r", *AUGMENTATIONS)
HEADING_STEP_DEG = 30.0


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The files chosen for a split.

    paths: episode files, one for each role. gt_paths: their ground-truth files, as far as there are any.
    passed_over: further episode files of the same split that the documented order ranks lower.
    """

    paths: tuple[Path, ...]
    gt_paths: tuple[Path, ...]
    passed_over: tuple[Path, ...]


def locate(benchmark: Benchmark, split: str, data_root: Path) -> SplitFiles:
    """Find the files of a split below a data root.

    The order is that of `BASES`, then of the benchmark's dataset folders, then of `SUFFIXES`. Files of several
    roles are taken from one folder. Raises UsageError if the split is unknown or no folder has it.
    """
    if split not in benchmark.splits:
        raise UsageError(unknown(f"split of {benchmark.name}", split, benchmark.splits))
    folders = list(_folders(benchmark, split, data_root))
    by_folder = [_episode_files(benchmark, split, folder) for folder in folders]
    found = [files for files in by_folder if all(files)]
    if not found:
        for folder, files in zip(folders, by_folder, strict=True):
            if any(files):
                raise _without_a_role(benchmark, split, folder, files)
        name = f"{_stems(benchmark, split)[0][0]}{SUFFIXES[0]}"
        others = ", ".join(benchmark.dataset_folders[1:])
        if benchmark.generator is not None and (added := augmentation(split)):
            look = split[len(added) + 1 :]
            raise UsageError(
                f"no episode file for {benchmark.name} {split}: expected {folders[0] / name}; generate it with "
                f"`vlnbench data {benchmark.generator} --{added}{f' --look {look}' if look else ''}`"
            )
        raise UsageError(
            f"no episode file for {benchmark.name} {split}: expected {folders[0] / name}"
            f"{f' (or the same in {others})' if others else ''}; "
            "set --data-root to the folder that holds datasets/ and scene_datasets/"
        )
    paths = tuple(files[0] for files in found[0])
    present = [path for by_role in found for files in by_role for path in files]
    gt_paths = (_ground_truth_file(path) for path in paths)
    return SplitFiles(
        paths,
        tuple(path for path in gt_paths if path is not None),
        tuple(path for path in present if path not in paths),
    )


def find_scenes_dir(data_root: Path, scene_ids: Iterable[str]) -> Path:
    """The folder to which `scene_ids` are relative: the first that has one of them, else the first there is."""
    candidates = [data_root / name for name in SCENES]
    wanted = sorted(set(scene_ids))
    for folder in candidates:
        if any((folder / scene_id).is_file() for scene_id in wanted):
            return folder
    return next((folder for folder in candidates if folder.is_dir()), candidates[0])


def version_of(path: Path, episodes: Sequence[Episode]) -> str:
    """Version of the dataset that an episode file belongs to, e.g. "v1-3", "v0", "houses-1"; or "unknown".

    It is told by the name of the dataset folder (links are followed), by `houses.json` beside generated splits
    or, in folders called r2r or envdrop, by the start headings.
    """
    for folder in (path.parents[1], path.resolve().parents[1]):
        if named := NAMED_VERSION.match(folder.name):
            return named[1]
    for name in GENERATORS:
        if (generated := path.parents[1] / f"{name}.json").is_file():
            return _generated_version(generated, name)
    if path.parents[1].name in UNNAMED_R2R or path.parent.name in AUGMENTATIONS:
        return r2r_version(episodes)
    return "unknown"


def r2r_version(episodes: Iterable[Episode]) -> str:
    """v1-3 if every start heading is a multiple of 30 degrees, to which R2R-CE v1-3 rounded them, else v1-2."""
    for episode in episodes:
        _, y, _, w = episode.start_rotation
        heading = math.degrees(2.0 * math.atan2(y, w))
        if abs(math.remainder(heading, HEADING_STEP_DEG)) > 0.01:
            return "v1-2"
    return "v1-3"


def expected_count(benchmark: Benchmark, split: str, version: str) -> int | None:
    """Number of published episodes of a split, None where it is not known."""
    published = benchmark.splits[split]
    return V1_2_COUNTS.get(split, published) if version == "v1-2" else published


def _folders(benchmark: Benchmark, split: str, data_root: Path) -> Iterator[Path]:
    for base in BASES:
        for name in benchmark.dataset_folders:
            yield data_root / base / name / split
            if split == SCALEVLN:
                yield data_root / base / name
        if split in AUGMENTATIONS and benchmark.reader == "r2r":
            yield data_root / base / split


def augmentation(split: str) -> str:
    """The set to train on that a split holds, in whatever look; "" for others."""
    return next((name for name in (split, split.rpartition("_")[0]) if name in AUGMENTATIONS), "")


def _stems(benchmark: Benchmark, split: str) -> list[list[str]]:
    """For each role, the names without suffix that its episode file may have, best first."""
    if benchmark.reader != "rxr":
        return [[split, f"{split}_bertidx"]]
    stems = [[f"{split}_{role}"] for role in benchmark.roles or ROLES]
    if benchmark.languages and all(language.startswith("en") for language in benchmark.languages):
        for names in stems:  # the English part, as StreamVLN and InternNav cut it out
            names.append(f"{names[0]}_en")
    return stems


def _episode_files(benchmark: Benchmark, split: str, folder: Path) -> list[list[Path]]:
    """For each role, the episode files in a folder."""
    suffixes = SUFFIXES if benchmark.reader in ("r2r", "rxr") else (*SUFFIXES, *OTHER_SUFFIXES)
    return [
        [path for stem in stems for suffix in suffixes if (path := folder / f"{stem}{suffix}").is_file()]
        for stems in _stems(benchmark, split)
    ]


def _without_a_role(benchmark: Benchmark, split: str, folder: Path, found: list[list[Path]]) -> UsageError:
    """For a folder that has the episode files of some roles only."""
    roles = [(role, bool(files)) for role, files in zip(benchmark.roles or ROLES, found, strict=True)]
    missing = next(role for role, there in roles if not there)
    kept = ", ".join(role for role, there in roles if there)
    return UsageError(
        f"{folder / f'{split}_{missing}{SUFFIXES[0]}'}: there is no such file, expected by benchmark "
        f"{benchmark.name} beside that of {kept}; get it, or leave it out with `roles: [{kept}]`"
    )


def _ground_truth_file(path: Path) -> Path | None:
    """The companion of an episode file; the one of a BERT-index file lies with the words it was made from."""
    suffix = next(suffix for suffix in SUFFIXES if path.name.endswith(suffix))
    stem = path.name.removesuffix(suffix)
    plain = stem.removesuffix("_bertidx").removesuffix("_en")
    dataset = path.parents[1]
    folders = [path.parent, dataset.with_name(dataset.name.removesuffix("_BERTidx")) / path.parent.name]
    names = [f"{name}_gt{suffix}" for name in dict.fromkeys((stem, plain)) for suffix in SUFFIXES]
    return next((file for folder in folders for name in names if (file := folder / name).is_file()), None)


def _generated_version(manifest: Path, generator: str) -> str:
    version = read_object(manifest).get("version")
    if not isinstance(version, str) or not VERSION.fullmatch(version):
        raise UsageError(f"{manifest}: field 'version' cannot be read; run `vlnbench data {generator}`")
    return version
