"""Write the generated benchmark: scenes, navmeshes, episode files and a manifest, in the layout of VLN-CE data."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render.scene import load_scene
from envs.houses.files.episode_files import Told, cut, write_r2r_split, write_rxr_split
from envs.houses.files.statistics import summarize
from envs.houses.files.telling import tell
from envs.houses.model.model import house_primitives
from envs.houses.plan.house import House, make_house
from envs.houses.shapes.glb_writer import glb_bytes
from vlnbench.data.houses_config import HousesConfig
from vlnbench.errors import UsageError
from vlnbench.util.durable.files import locked, write_bytes

VERSION = "houses-2"
"""Changes whenever the same configuration gives other bytes."""

DEFAULT = HousesConfig()
SPLITS = ("train", "val_seen", "val_unseen")
R2R_DIR = Path("datasets/houses_r2r")
RXR_DIR = Path("datasets/houses_rxr")
SCENES_DIR = Path("scene_datasets")
MANIFEST = R2R_DIR / "houses.json"
RXR_MANIFEST = RXR_DIR / "houses.json"
ENVDROP_MANIFEST = R2R_DIR / "envdrop" / "envdrop_houses.json"
_RXR_ENDS = ("guide", "guide_gt", "follower", "follower_gt")
_LOOKS = ("seed", "rooms_min", "rooms_max", "storeys_share", "landmark_repetition", "distractors")

Progress = Callable[[str, int, int], None]
"""Called with a stage name, how many parts are done, and how many there are."""


@dataclass(frozen=True)
class HousesManifest:
    """What a generation wrote.

    `statistics`: means over the R2R-like episodes of each split (`envs.houses.files.statistics`). `files` maps
    paths below the root to their SHA-256 and size in bytes.
    """

    version: str
    config: HousesConfig
    counts: dict[str, dict[str, int]]
    statistics: dict[str, dict[str, float]]
    files: dict[str, dict[str, str | int]]


def generate(root: Path, config: HousesConfig = DEFAULT, progress: Progress | None = None) -> HousesManifest:
    """Write the benchmark below a VLN-CE data root and return its manifest.

    Scenes go to `scene_datasets/houses/<house>/`, episodes to `datasets/houses_r2r/<split>/` and
    `datasets/houses_rxr/<split>/`. The manifest `datasets/houses_r2r/houses.json` is written last: its presence
    means that everything else is there, and nothing is done again. After an interruption a further call keeps the
    scenes that were finished. The same configuration gives the same bytes.

    Raises UsageError if the configured houses have too few distinct trajectories, or the folder cannot be written.
    """
    report = progress or (lambda stage, done, total: None)
    try:
        if not is_complete(root, config):
            root.mkdir(parents=True, exist_ok=True)
            with locked(root, wait=True):  # one writer; the others find its work done
                if not is_complete(root, config):
                    return _generate(root, config, report)
        return HousesManifest(**{**json.loads((root / MANIFEST).read_text()), "config": config})
    except OSError as error:
        raise UsageError(
            f"{root}: cannot write the houses benchmark ({error.strerror}); choose a writable folder"
        ) from error


def is_complete(root: Path, config: HousesConfig = DEFAULT) -> bool:
    """Whether the benchmark of exactly this configuration lies below `root`, every file with its recorded size."""
    try:
        manifest = json.loads((root / MANIFEST).read_text())
        same = manifest["version"] == VERSION and manifest["config"] == asdict(config)
        return same and all((root / name).stat().st_size == f["bytes"] for name, f in manifest["files"].items())
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return False


def generated_version(root: Path) -> str | None:
    """Version of the generator whose finished work lies below `root`, whatever its configuration; None if none."""
    try:
        return str(json.loads((root / MANIFEST).read_text())["version"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{root / MANIFEST}: field 'version' cannot be read; run `vlnbench data houses`"
        ) from error


def house_names(config: HousesConfig) -> dict[str, list[str]]:
    """Names of the train houses (also used by val_seen) and of the val_unseen houses."""
    groups = {"train": config.train_houses, "unseen": config.val_unseen_houses}
    return {group: [f"s{config.seed}_{group}_{i:03d}" for i in range(n)] for group, n in groups.items()}


def _generate(root: Path, config: HousesConfig, report: Progress) -> HousesManifest:
    envdrop = [ENVDROP_MANIFEST.with_name(f"envdrop{end}.json.gz") for end in ("", "_gt")]
    for stale in (MANIFEST, RXR_MANIFEST, ENVDROP_MANIFEST, *envdrop):
        (root / stale).unlink(missing_ok=True)
    names = house_names(config)
    total = config.train_houses + config.val_unseen_houses
    told: dict[str, list[list[Told]]] = {split: [] for split in SPLITS}
    files: list[Path] = []
    for done, name in enumerate((*names["train"], *names["unseen"])):
        report("houses", done, total)
        house = make_house(name, config)
        scene = _write_scene(root, house, config)
        files += [scene, scene.with_suffix(".navmesh")]
        rng = random.Random(f"vlnbench {VERSION} episodes {config.seed} {name}")
        stream = tell(house, PathFinder.load(root / scene.with_suffix(".navmesh")), config, rng)
        unseen = name in names["unseen"]
        for split in ("val_unseen",) if unseen else ("val_seen", "train"):
            group = names["unseen" if unseen else "train"]
            told[split].append(_take(stream, -(-getattr(config, f"{split}_episodes") // len(group))))
    report("writing episodes", total, total)
    counts: dict[str, dict[str, int]] = {}
    statistics: dict[str, dict[str, float]] = {}
    firsts = (1, 1)
    for split in SPLITS:
        rows = _chosen(told[split], split, config)
        trajectories = write_r2r_split(root / R2R_DIR / split, split, rows, (1, firsts[1]))
        guides, followers = write_rxr_split(root / RXR_DIR / split, split, rows, firsts)
        firsts = firsts[0] + guides, firsts[1] + trajectories
        files += [R2R_DIR / split / f"{split}{end}.json.gz" for end in ("", "_gt")]
        files += [RXR_DIR / split / f"{split}_{end}.json.gz" for end in _RXR_ENDS]
        counts[split] = {
            "houses": len(told[split]),
            "trajectories": trajectories,
            "episodes": getattr(config, f"{split}_episodes"),
            "rxr guide": guides,
            "rxr follower": followers,
        }
        statistics[split] = summarize(rows)
    hashes = {path.as_posix(): fingerprint(root / path) for path in sorted(files)}
    manifest = HousesManifest(VERSION, config, counts, statistics, hashes)
    content = (json.dumps(asdict(manifest), indent=1) + "\n").encode()
    for path in (RXR_MANIFEST, MANIFEST):
        write_bytes(root / path, content)
    return manifest


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
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
