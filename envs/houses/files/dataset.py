"""Write the generated benchmark: scenes, navmeshes, episode files and a manifest, in the layout of VLN-CE data."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from envs.embedded.navmesh.pathfinder import PathFinder
from envs.houses.files.episode_files import Told, cut, write_r2r_split, write_rxr_split
from envs.houses.files.looks import write_look
from envs.houses.files.manifest import HousesManifest, house_names, is_complete, written
from envs.houses.files.scenes import fingerprint, write_scene
from envs.houses.files.statistics import summarize
from envs.houses.files.telling import tell
from envs.houses.options import HousesConfig
from envs.houses.plan.house import make_house
from vlnbench.errors import UsageError
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.locks import locked
from vlnbench.util.machine import cores
from vlnbench.util.processes.pool import in_processes

_RXR_ENDS = ("guide", "guide_gt", "follower", "follower_gt")
_HOUSES_WORTH_A_PROCESS = 8

Progress = Callable[[str, int, int], None]
"""Called with a stage name, how many parts are done, and how many there are."""


def generate(
    root: Path, config: HousesConfig, progress: Progress | None = None, splits: Sequence[str] = ()
) -> HousesManifest:
    """Write splits of the benchmark (none: all that are drawn) below a VLN-CE data root; the manifest of all that
    is there.

    Scenes go to `scene_datasets/houses/<house>/`, episodes to `datasets/houses_r2r/<split>/` and
    `datasets/houses_rxr/<split>/` (houses2 of the second edition); splits that have the same houses are made
    together. The manifest `datasets/houses_r2r/houses.json` is written last: what it names is there, and is not
    done again. After an
    interruption a further call keeps the scenes that were finished. The same configuration gives the same bytes,
    whichever split is asked for first.

    Raises UsageError if the configured houses have too few distinct trajectories, or the folder cannot be written.
    """
    report = progress or (lambda stage, done, total: None)
    splits = splits or config.edition.drawn
    try:
        if not is_complete(root, config, splits):
            root.mkdir(parents=True, exist_ok=True)
            with locked(root, wait=True):  # one writer; the others find its work done
                if not is_complete(root, config, splits):
                    return _generate(root, config, splits, report)
        found = written(root, config)
        assert found is not None
        return found
    except OSError as error:
        raise UsageError(
            f"{root}: cannot write the houses benchmark ({error.strerror}); choose a writable folder"
        ) from error


def _generate(root: Path, config: HousesConfig, splits: Sequence[str], report: Progress) -> HousesManifest:
    edition = config.edition
    before = written(root, config)
    if before is None:  # another configuration, or none
        _clear(root, config)
        before = HousesManifest(edition.version, config, {}, {}, {})
    wanted = {edition.group_of(edition.drawn_as(split)[0]) for split in splits}
    groups = [g for g in edition.groups if g in wanted and not set(edition.groups[g]) <= set(before.counts)]
    told, scenes = _tell_all(root, config, groups, report)
    counts, statistics, files = dict(before.counts), dict(before.statistics), dict(before.files)
    new = list(scenes)
    for split, by_house in told.items():
        rows = _chosen(by_house, split, config)
        first = edition.first_id(split)
        r2r, rxr = edition.r2r_dir / split, edition.rxr_dir / split
        trajectories = write_r2r_split(root / r2r, split, rows, (1, first), edition.voices)
        guides, followers = write_rxr_split(root / rxr, split, rows, (first, first))
        new += [r2r / f"{split}{end}.json.gz" for end in ("", "_gt")]
        new += [rxr / f"{split}_{end}.json.gz" for end in _RXR_ENDS]
        counts[split] = {
            "houses": len(by_house),
            "trajectories": trajectories,
            "episodes": getattr(config, f"{split}_episodes"),
            "rxr guide": guides,
            "rxr follower": followers,
        }
        statistics[split] = summarize(rows)
    for split in (split for split in splits if split not in counts):
        base, look = edition.drawn_as(split)
        new += write_look(root, config, base, look, report)
        counts[split] = {**counts[base], "rxr guide": 0, "rxr follower": 0}
        statistics[split] = statistics[base]
    files |= {path.as_posix(): fingerprint(root / path) for path in new}
    order = [split for split in edition.splits if split in counts]
    manifest = HousesManifest(
        edition.version,
        config,
        {split: counts[split] for split in order},
        {split: statistics[split] for split in order},
        dict(sorted(files.items())),
    )
    content = (json.dumps(asdict(manifest), indent=1) + "\n").encode()
    for path in (edition.rxr_manifest, edition.manifest):
        write_bytes(root / path, content)
    return manifest


def _clear(root: Path, config: HousesConfig) -> None:
    """Take away what says that another configuration is there, and the sets that were added to it."""
    edition = config.edition
    stale = [edition.manifest, edition.rxr_manifest]
    for added in edition.added:
        folder = edition.r2r_dir / added
        stale += [edition.addition_manifest(added), *(folder / f"{added}{end}.json.gz" for end in ("", "_gt"))]
    for path in stale:
        (root / path).unlink(missing_ok=True)


def _tell_all(
    root: Path, config: HousesConfig, groups: Sequence[str], report: Progress
) -> tuple[dict[str, list[list[Told]]], list[Path]]:
    """Trajectories of every house for the splits of some groups, and the files of the houses, below the root."""
    houses = [(group, name) for group in groups for name in house_names(config)[group]]
    told: dict[str, list[list[Told]]] = {split: [] for group in groups for split in config.edition.groups[group]}
    files: list[Path] = []
    work = [(root, config, name, _shares(config, group)) for group, name in houses]
    report("houses", 0, len(houses))
    made = in_processes(_make_ready_and_tell, work, at_once(len(work)))
    for done, (scene, rows) in enumerate(made, start=1):
        files += [scene, scene.with_suffix(".navmesh")]
        for split, taken in rows.items():
            told[split].append(taken)
        report("houses", done, len(houses))
    report("writing episodes", len(houses), len(houses))
    return told, files


def at_once(houses: int) -> int:
    """Processes that are worth their start, a few seconds each."""
    return max(1, min(cores(), houses // _HOUSES_WORTH_A_PROCESS))


def _shares(config: HousesConfig, group: str) -> dict[str, int]:
    """Episodes of one house for each split of its group; the first splits get the first trajectories, and those
    that take far ones alone what is left."""
    houses, edition = len(house_names(config)[group]), config.edition
    far = [split for split in edition.groups[group] if split in edition.far]
    splits = [*(split for split in reversed(edition.groups[group]) if split not in far), *far]
    return {split: -(-getattr(config, f"{split}_episodes") // houses) for split in splits}


def _make_ready_and_tell(
    root: Path, config: HousesConfig, name: str, shares: dict[str, int]
) -> tuple[Path, dict[str, list[Told]]]:
    """Write a house and take as many trajectories of it for each split as have the split's share of episodes."""
    house, edition = make_house(name, config), config.edition
    scene = write_scene(root, house, config)
    rng = random.Random(f"vlnbench {edition.version} episodes {config.seed} {name}")
    stream = tell(house, PathFinder.load((root / scene).with_suffix(".navmesh")), config, rng)
    told = {}
    for split, episodes in shares.items():
        far = split in edition.far
        told[split] = list(take((row for row in stream if row.trajectory.route.far or not far), episodes))
    return scene, told


def take(stream: Iterator[Told], episodes: int) -> Iterator[Told]:
    """As many trajectories as have this many episodes, and no look at the next."""
    while episodes > 0 and (row := next(stream, None)) is not None:
        episodes -= len(row.texts)
        yield row


def _chosen(groups: list[list[Told]], split: str, config: HousesConfig) -> list[Told]:
    """One trajectory of each house in turn, so that the head of a split shows all houses."""
    wanted = getattr(config, f"{split}_episodes")
    mixed = (group[i] for i in range(max(map(len, groups))) for group in groups if i < len(group))
    rows = list(cut(mixed, wanted))
    found = sum(len(row.texts) for row in rows)
    if found < wanted:
        name = config.edition.name
        raise UsageError(f"{name}: {split}_episodes = {wanted}: the houses only have {found}; ask for more houses")
    return rows
