"""What `vlnbench data check` looks at: is all there that an evaluation of a split needs, and is it sound?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlnbench.data.benchmarks import Benchmark, every_benchmark, get_benchmark
from vlnbench.data.datasets import (
    AUGMENTATIONS,
    SplitFiles,
    augmentation,
    expected_count,
    find_scenes_dir,
    locate,
    r2r_version,
    version_of,
)
from vlnbench.data.episodes import read_episodes, read_ground_truth
from vlnbench.data.generator import get_generator
from vlnbench.data.trajectory_sets import check_sets
from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Episode
from vlnbench.util.durable.json_stream import sha256

NAMED_SCENES = 3
"""How many missing scenes a line names."""

AUGMENTED_CHECKED = 2000
"""How many instructions of an augmentation set are checked."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the report. subject: split and benchmarks. name: what was looked at."""

    ok: bool
    subject: str
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{'ok' if self.ok else 'FAIL':<4}  {self.subject}  {self.name}: {self.detail}"


def check_data(data_root: Path, benchmark: str | None = None, split: str | None = None) -> Iterator[Item]:
    """Check splits below a data root: those of one benchmark or of all, one split or all that are found.

    Benchmarks that read the same episodes of the same files share their lines. Where none is named, the trajectory
    sets that others published are looked at, too. Raises UsageError for names that do not exist and if nothing is
    found.
    """
    found = 0
    for item in check_splits(data_root, benchmark, split):
        found += 1
        yield item
    if benchmark is None and split is None:
        for name, (ok, what, detail) in check_sets(data_root):
            found += 1
            yield Item(ok, name, what, detail)
    if not found:
        raise UsageError(
            f"{data_root}: no split of {benchmark or 'any benchmark'} is there; "
            "set --data-root to the folder that holds datasets/ and scene_datasets/"
        )


def check_splits(data_root: Path, benchmark: str | None = None, split: str | None = None) -> Iterator[Item]:
    """As `check_data`, without trajectory sets; yields nothing where there is no split."""
    chosen = [get_benchmark(benchmark)] if benchmark else every_benchmark()
    known = {name for one in chosen for name in one.splits}
    if split is not None and split not in known:
        raise UsageError(unknown("split", split, known))
    groups: dict[tuple[object, ...], tuple[list[Benchmark], str, SplitFiles]] = {}
    for one in chosen:
        for name in one.splits if split is None else {split} & set(one.splits):
            try:
                files = locate(one, name, data_root)
            except UsageError:
                if benchmark and split:
                    raise
                continue
            key = (files, name, one.reader, one.roles, one.languages)
            groups.setdefault(key, ([], name, files))[0].append(one)
    for sharing, name, files in groups.values():
        subject = f"{name} of {', '.join(one.name for one in sharing)}"
        for ok, item, detail in _check_split(sharing[0], name, files, data_root):
            yield Item(ok, subject, item, detail)


def _check_split(
    benchmark: Benchmark, split: str, files: SplitFiles, data_root: Path
) -> Iterator[tuple[bool, str, str]]:
    """(ok, item, detail) for each thing to look at; a broken episode file ends the list."""
    others = f"; not taken: {_listed(files.passed_over)}" if files.passed_over else ""
    yield True, "files", f"{_listed(files.paths)}{others}"
    try:
        digest = sha256(*files.paths, *files.gt_paths)
        yield True, "sha256", digest
        episodes = read_episodes(benchmark, files)
        version = version_of(files.paths[0], episodes)
    except UsageError as error:
        yield False, "episodes", str(error)
        return
    yield _check_version(benchmark, split, version, episodes)
    yield _check_count(expected_count(benchmark, split, version), len(episodes))
    yield _check_ground_truth(episodes, files)
    yield _check_scenes(episodes, data_root)
    if benchmark.generator is not None and files.gt_paths:
        yield _check_instructions(benchmark, split, episodes, files, data_root)


def _check_version(
    benchmark: Benchmark, split: str, version: str, episodes: Sequence[Episode]
) -> tuple[bool, str, str]:
    """v1-2 and v1-3 are easily mixed up: the name of the folder must agree with the start headings."""
    if benchmark.reader == "r2r" and version in ("v1-2", "v1-3") and split not in AUGMENTATIONS:
        told = r2r_version(episodes)
        if told != version:
            return False, "version", f"the folder says {version}, but the start headings are those of {told}"
    return True, "version", version


def _check_count(expected: int | None, count: int) -> tuple[bool, str, str]:
    if expected is None:
        return True, "episodes", f"{count} (how many were published is not known)"
    if count != expected:
        return False, "episodes", f"{count}, but {expected} were published; get the file again"
    return True, "episodes", f"{count}, as published"


def _check_ground_truth(episodes: Sequence[Episode], files: SplitFiles) -> tuple[bool, str, str]:
    item = "ground truth"
    if len(files.gt_paths) < len(files.paths):
        if not any(episode.goals for episode in episodes):
            return True, item, "none, as the goals of this split are not public"
        return False, item, "missing; nDTW and SDTW need it: put the *_gt.json.gz file beside the episode file"
    try:
        read_ground_truth(episodes, files)
    except UsageError as error:
        return False, item, str(error)
    return True, item, _listed(files.gt_paths)


def _check_scenes(episodes: Sequence[Episode], data_root: Path) -> tuple[bool, str, str]:
    scene_ids = sorted({episode.scene_id for episode in episodes})
    folder = find_scenes_dir(data_root, scene_ids)
    missing = [scene_id for scene_id in scene_ids if not (folder / scene_id).is_file()]
    if not missing:
        return True, "scenes", f"{len(scene_ids)} below {folder}"
    named = ", ".join(missing[:NAMED_SCENES]) + (", ..." if len(missing) > NAMED_SCENES else "")
    return False, "scenes", f"{len(missing)} of {len(scene_ids)} are missing below {folder}: {named}"


def _check_instructions(
    benchmark: Benchmark, split: str, episodes: Sequence[Episode], files: SplitFiles, data_root: Path
) -> tuple[bool, str, str]:
    """Are generated instructions true and unambiguous? Those of an augmentation set need not be."""
    item = "instructions"
    assert benchmark.generator is not None
    try:
        generator = get_generator(benchmark.generator)
        chosen = episodes[:AUGMENTED_CHECKED] if augmentation(split) else episodes
        found = generator.verify(data_root, read_ground_truth(chosen, files), split)
    except UsageError as error:
        return False, item, str(error)
    wrong = f"{found.wrong} of {found.checked} are untrue or ambiguous"
    if generator.errs(split):
        return True, item, f"{wrong}, the speaker's noise included"
    return not found.wrong, item, f"{wrong}{f', first: {found.first}' if found.first else ''}"


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
