"""Write the generated benchmark: scenes, navmeshes, episode files and a manifest, in the layout of VLN-CE data."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render.scene import load_scene
from envs.houses.files.episode_files import Told, cut, write_r2r_split, write_rxr_split
from envs.houses.files.manifest import (
    ENVDROP_MANIFEST,
    GROUPS,
    MANIFEST,
    R2R_DIR,
    RXR_DIR,
    RXR_MANIFEST,
    SCENES_DIR,
    SPLITS,
    VERSION,
    HousesManifest,
    first_id,
    house_names,
    is_complete,
    written,
)
from envs.houses.files.statistics import summarize
from envs.houses.files.telling import tell
from envs.houses.model.model import house_primitives
from envs.houses.options import HousesConfig
from envs.houses.plan.house import House, make_house
from envs.houses.shapes.glb_writer import glb_bytes
from vlnbench.errors import UsageError
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.limits import regular
from vlnbench.util.durable.locks import locked
from vlnbench.util.machine import cores
from vlnbench.util.processes.pool import in_processes

_RXR_ENDS = ("guide", "guide_gt", "follower", "follower_gt")
_HOUSES_WORTH_A_PROCESS = 8
_LOOKS = ("seed", "rooms_min", "rooms_max", "storeys_share", "landmark_repetition", "distractors")

Progress = Callable[[str, int, int], None]
"""Called with a stage name, how many parts are done, and how many there are."""


def generate(
    root: Path, config: HousesConfig, progress: Progress | None = None, splits: Sequence[str] = ()
) -> HousesManifest:
    """Write splits of the benchmark (none: all) below a VLN-CE data root; the manifest of all that is there.

    Scenes go to `scene_datasets/houses/<house>/`, episodes to `datasets/houses_r2r/<split>/` and
    `datasets/houses_rxr/<split>/`; train and val_seen have the same houses and are made together. The manifest
    `datasets/houses_r2r/houses.json` is written last: what it names is there, and is not done again. After an
    interruption a further call keeps the scenes that were finished. The same configuration gives the same bytes,
    whichever split is asked for first.

    Raises UsageError if the configured houses have too few distinct trajectories, or the folder cannot be written.
    """
    report = progress or (lambda stage, done, total: None)
    splits = splits or SPLITS
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
    before = written(root, config)
    if before is None:  # another configuration, or none
        augmented = [ENVDROP_MANIFEST.with_name(f"envdrop{end}.json.gz") for end in ("", "_gt")]
        for stale in (MANIFEST, RXR_MANIFEST, ENVDROP_MANIFEST, *augmented):
            (root / stale).unlink(missing_ok=True)
        before = HousesManifest(VERSION, config, {}, {}, {})
    groups = [g for g in GROUPS if any(s in splits and s not in before.counts for s in GROUPS[g])]
    told, scenes = _tell_all(root, config, groups, report)
    counts, statistics, files = dict(before.counts), dict(before.statistics), dict(before.files)
    new = list(scenes)
    for split, groups_of_rows in told.items():
        rows = _chosen(groups_of_rows, split, config)
        first = first_id(SPLITS.index(split))
        trajectories = write_r2r_split(root / R2R_DIR / split, split, rows, (1, first))
        guides, followers = write_rxr_split(root / RXR_DIR / split, split, rows, (first, first))
        new += [R2R_DIR / split / f"{split}{end}.json.gz" for end in ("", "_gt")]
        new += [RXR_DIR / split / f"{split}_{end}.json.gz" for end in _RXR_ENDS]
        counts[split] = {
            "houses": len(groups_of_rows),
            "trajectories": trajectories,
            "episodes": getattr(config, f"{split}_episodes"),
            "rxr guide": guides,
            "rxr follower": followers,
        }
        statistics[split] = summarize(rows)
    files |= {path.as_posix(): fingerprint(root / path) for path in new}
    order = [split for split in SPLITS if split in counts]
    manifest = HousesManifest(
        VERSION,
        config,
        {split: counts[split] for split in order},
        {split: statistics[split] for split in order},
        dict(sorted(files.items())),
    )
    content = (json.dumps(asdict(manifest), indent=1) + "\n").encode()
    for path in (RXR_MANIFEST, MANIFEST):
        write_bytes(root / path, content)
    return manifest


def _tell_all(
    root: Path, config: HousesConfig, groups: Sequence[str], report: Progress
) -> tuple[dict[str, list[list[Told]]], list[Path]]:
    """Trajectories of every house for the splits of some groups, and the files of the houses, below the root."""
    houses = [(group, name) for group in groups for name in house_names(config)[group]]
    told: dict[str, list[list[Told]]] = {split: [] for group in groups for split in GROUPS[group]}
    files: list[Path] = []
    work = [(root, config, name, _shares(config, group)) for group, name in houses]
    report("houses", 0, len(houses))
    made = in_processes(_make_ready_and_tell, work, _at_once(len(work)))
    for done, (scene, rows) in enumerate(made, start=1):
        files += [scene, scene.with_suffix(".navmesh")]
        for split, taken in rows.items():
            told[split].append(taken)
        report("houses", done, len(houses))
    report("writing episodes", len(houses), len(houses))
    return told, files


def _at_once(houses: int) -> int:
    """Processes that are worth their start, a few seconds each."""
    return max(1, min(cores(), houses // _HOUSES_WORTH_A_PROCESS))


def _shares(config: HousesConfig, group: str) -> dict[str, int]:
    """Episodes of one house for each split of its group; the first splits get the first trajectories."""
    houses = len(house_names(config)[group])
    return {split: -(-getattr(config, f"{split}_episodes") // houses) for split in reversed(GROUPS[group])}


def _make_ready_and_tell(
    root: Path, config: HousesConfig, name: str, shares: dict[str, int]
) -> tuple[Path, dict[str, list[Told]]]:
    """Write a house and take as many trajectories of it for each split as have the split's share of episodes."""
    house = make_house(name, config)
    scene = _write_scene(root, house, config)
    rng = random.Random(f"vlnbench {VERSION} episodes {config.seed} {name}")
    stream = tell(house, PathFinder.load((root / scene).with_suffix(".navmesh")), config, rng)
    return scene, {split: _take(stream, episodes) for split, episodes in shares.items()}


def _take(stream: Iterator[Told], episodes: int) -> list[Told]:
    """As many trajectories as have this many episodes."""
    rows: list[Told] = []
    while episodes > 0 and (row := next(stream, None)) is not None:
        rows.append(row)
        episodes -= len(row.texts)
    return rows


def _chosen(groups: list[list[Told]], split: str, config: HousesConfig) -> list[Told]:
    """One trajectory of each house in turn, so that the head of a split shows all houses."""
    wanted = getattr(config, f"{split}_episodes")
    mixed = (group[i] for i in range(max(map(len, groups))) for group in groups if i < len(group))
    rows = list(cut(mixed, wanted))
    found = sum(len(row.texts) for row in rows)
    if found < wanted:
        raise UsageError(f"houses: {split}_episodes = {wanted}: the houses only have {found}; ask for more houses")
    return rows


def _look(config: HousesConfig) -> str:
    """What of a configuration decides how its houses look."""
    options = {name: value for name, value in asdict(config).items() if name in _LOOKS}
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]


def _write_scene(root: Path, house: House, config: HousesConfig) -> Path:
    """Scene and navmesh of a house, unless an earlier call finished them; the path below `root`."""
    path = SCENES_DIR / house.scene_id
    target = root / path
    tag = f"vlnbench {VERSION} {_look(config)} {house.name}"
    if target.is_file() and target.with_suffix(".navmesh").is_file():
        with target.open("rb") as file:
            if f'"generator":"{tag}"'.encode() in file.read(512):
                return path
    target.with_suffix(".navmesh").unlink(missing_ok=True)  # its presence says that both are finished
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, glb_bytes(house_primitives(house, random.Random(f"{tag} hangings")), tag))
    scene, settings = load_scene(target), NavMeshSettings()  # read back: built from what every reader will see
    polymesh, detail = build_polymesh(scene.vertices, scene.triangles, settings)
    PathFinder.from_polymesh(polymesh, detail, settings).save(target.with_suffix(".navmesh"))
    return path


def fingerprint(path: Path) -> dict[str, str | int]:
    """SHA-256 and size of a file, as manifests hold them."""
    data = regular(path).read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
