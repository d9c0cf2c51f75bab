"""Write the generated benchmark: scenes, navmeshes, episode files and a manifest, in the layout of VLN-CE data."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.settings import NavMeshSettings
from envs.embedded.render.scene import load_scene
from vlnbench.errors import UsageError

from vlnbench.houses_config import HousesConfig
from .follow import rotation_of
from .glb_writer import glb_bytes
from .house import House, house_primitives, make_house
from .language import describe, encode, vocabulary
from .trajectories import Trajectory, trajectories

VERSION = "houses-1"
"""Changes whenever the same configuration gives other bytes."""

DEFAULT = HousesConfig()
SPLITS = ("train", "val_seen", "val_unseen")
GOAL_RADIUS_M = 3.0
PHRASINGS = 3
DATASET_DIR = Path("datasets/houses_r2r")
SCENES_DIR = Path("scene_datasets")
MANIFEST = DATASET_DIR / "houses.json"

Progress = Callable[[str, int, int], None]
"""Called with a stage name, how many parts are done, and how many there are."""


@dataclass(frozen=True)
class HousesManifest:
    """What a generation wrote. `files` maps paths below the root to their SHA-256 and size in bytes."""

    version: str
    config: HousesConfig
    counts: dict[str, dict[str, int]]
    files: dict[str, dict[str, str | int]]


@dataclass(frozen=True)
class _Told:
    """A trajectory and the instructions that lead along it."""

    scene_id: str
    trajectory: Trajectory
    texts: tuple[str, ...]


def generate(root: Path, config: HousesConfig = DEFAULT, progress: Progress | None = None) -> HousesManifest:
    """Write the benchmark below a VLN-CE data root and return its manifest.

    Scenes go to `scene_datasets/houses/<house>/`, episodes to `datasets/houses_r2r/<split>/`. The manifest
    `datasets/houses_r2r/houses.json` is written last: its presence means that everything else is there. After an
    interruption a further call keeps the scenes that were finished. The same configuration gives the same bytes.

    Raises UsageError if the configured houses have too few distinct trajectories, or the folder cannot be written.
    """
    report = progress or (lambda stage, done, total: None)
    try:
        return _generate(root, config, report)
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
    (root / MANIFEST).unlink(missing_ok=True)
    names = house_names(config)
    total = config.train_houses + config.val_unseen_houses
    episodes = {split: getattr(config, f"{split}_episodes") for split in SPLITS}
    told: dict[str, list[list[_Told]]] = {split: [] for split in SPLITS}
    files: list[Path] = []
    for done, name in enumerate((*names["train"], *names["unseen"])):
        report("houses", done, total)
        house = make_house(name, config.seed)
        scene = _write_scene(root, house, config.seed)
        files += [scene, scene.with_suffix(".navmesh")]
        found = _tell(house, PathFinder.load(root / scene.with_suffix(".navmesh")), config.seed)
        for split in ("val_unseen",) if name in names["unseen"] else ("val_seen", "train"):
            group = names["unseen" if split == "val_unseen" else "train"]
            told[split].append(list(islice(found, _share(episodes[split], group.index(name), len(group)))))
    report("houses", total, total)
    counts: dict[str, dict[str, int]] = {}
    first_trajectory = 1
    for split in SPLITS:
        rows = list(_interleave(told[split]))
        files += _write_split(root, split, rows, (episodes[split], first_trajectory))
        first_trajectory += len(rows)
        counts[split] = {"houses": len(told[split]), "trajectories": len(rows), "episodes": episodes[split]}
    hashes = {path.as_posix(): _fingerprint(root / path) for path in sorted(files)}
    manifest = HousesManifest(VERSION, config, counts, hashes)
    _write(root / MANIFEST, (json.dumps(asdict(manifest), indent=1) + "\n").encode())
    return manifest


def _share(episodes: int, index: int, houses: int) -> int:
    """Trajectories asked of one house, when all houses of a split serve in turn."""
    wanted = -(-episodes // PHRASINGS)
    return wanted // houses + (index < wanted % houses)


def _write_scene(root: Path, house: House, seed: int) -> Path:
    """Scene and navmesh of a house, unless an earlier call finished them; the path below `root`."""
    path = SCENES_DIR / house.scene_id
    target = root / path
    tag = f"vlnbench {VERSION} seed {seed} {house.name}"
    if target.is_file() and target.with_suffix(".navmesh").is_file():
        with target.open("rb") as file:
            if f'"generator":"{tag}"'.encode() in file.read(512):
                return path
    target.with_suffix(".navmesh").unlink(missing_ok=True)  # its presence says that both are finished
    target.parent.mkdir(parents=True, exist_ok=True)
    _write(target, glb_bytes(house_primitives(house, random.Random(f"{tag} hangings")), tag))
    scene, settings = load_scene(target), NavMeshSettings()  # read back: built from what every reader will see
    polymesh, detail = build_polymesh(scene.vertices, scene.triangles, settings)
    PathFinder.from_polymesh(polymesh, detail, settings).save(target.with_suffix(".navmesh"))
    return path


def _tell(house: House, pathfinder: PathFinder, seed: int) -> Iterator[_Told]:
    rng = random.Random(f"vlnbench {VERSION} episodes {seed} {house.name}")
    for trajectory in trajectories(house, pathfinder, rng):
        texts: list[str] = []
        while len(texts) < PHRASINGS:
            text = describe(house, trajectory.route, rng)
            if text not in texts:
                texts.append(text)
        yield _Told(house.scene_id, trajectory, tuple(texts))


def _interleave(groups: list[list[_Told]]) -> Iterator[_Told]:
    """One trajectory of each house in turn, so that the head of a split shows all houses."""
    for i in range(max(len(group) for group in groups)):
        yield from (group[i] for group in groups if i < len(group))


def _write_split(root: Path, split: str, rows: list[_Told], numbers: tuple[int, int]) -> list[Path]:
    wanted, first_trajectory = numbers
    words = vocabulary()
    index = {word: i for i, word in enumerate(words)}
    episodes: list[dict[str, Any]] = []
    truth: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows, start=first_trajectory):
        for text in row.texts[: wanted - len(episodes)]:
            episode_id = len(episodes) + 1
            episodes.append(_episode(row, (episode_id, number), text, index))
            walk = row.trajectory.walk
            truth[str(episode_id)] = {
                "locations": walk.locations,
                "actions": walk.actions,
                "forward_steps": len(walk.locations) - 1,
            }
    if len(episodes) < wanted:
        raise UsageError(
            f"houses: {split}_episodes = {wanted}: the houses only have {len(episodes)}; ask for more houses"
        )
    vocab = {
        "word_list": words,
        "word2idx_dict": index,
        "stoi": index,
        "itos": words,
        "num_vocab": len(words),
        "UNK_INDEX": 1,
        "PAD_INDEX": 0,
    }
    folder = DATASET_DIR / split
    (root / folder).mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{split}.json.gz", folder / f"{split}_gt.json.gz"]
    for path, content in zip(paths, ({"episodes": episodes, "instruction_vocab": vocab}, truth), strict=True):
        _write(root / path, _gzip(json.dumps(content).encode()))
    return paths


def _episode(row: _Told, ids: tuple[int, int], text: str, index: dict[str, int]) -> dict[str, Any]:
    trajectory = row.trajectory
    return {
        "episode_id": ids[0],
        "trajectory_id": ids[1],
        "scene_id": row.scene_id,
        "start_position": trajectory.start,
        "start_rotation": rotation_of(trajectory.yaw),
        "info": {"geodesic_distance": trajectory.geodesic},
        "goals": [{"position": trajectory.goal, "radius": GOAL_RADIUS_M}],
        "instruction": {"instruction_text": text, "instruction_tokens": encode(text, index)},
        "reference_path": trajectory.reference_path,
    }


def _gzip(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.write(data)
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _fingerprint(path: Path) -> dict[str, str | int]:
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
