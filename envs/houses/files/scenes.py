"""Scene and navmesh files of houses."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import asdict
from pathlib import Path

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render.scene import load_scene
from envs.houses.edition import SCENES_DIR
from envs.houses.model.model import house_primitives
from envs.houses.model.style import style_of
from envs.houses.options import HousesConfig
from envs.houses.plan.house import House
from envs.houses.shapes.glb_writer import glb_bytes
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.durable.limits import regular

_DECIDE_HOUSES = ("seed", "rooms_min", "rooms_max", "storeys_share", "landmark_repetition", "distractors")


def write_scene(root: Path, house: House, config: HousesConfig, look: str = "") -> Path:
    """Scene and navmesh of a house in a look ("": its own), unless an earlier call finished them; the path below
    `root`.

    Another look has the same geometry, so the navmesh is that of the house's own, which has to be there.
    """
    path = scene_file(house.scene_id, look)
    target = root / path
    tag = f"vlnbench {config.edition.version} {_decided(config)} {house.name}"
    mark = f"{tag} {look}".rstrip()
    if target.is_file() and target.with_suffix(".navmesh").is_file():
        with target.open("rb") as file:
            if f'"generator":"{mark}"'.encode() in file.read(512):
                return path
    target.with_suffix(".navmesh").unlink(missing_ok=True)  # its presence says that both are finished
    target.parent.mkdir(parents=True, exist_ok=True)
    primitives = house_primitives(house, random.Random(f"{tag} hangings"), style_of(house, config, look))
    write_bytes(target, glb_bytes(primitives, mark))
    if look:
        own = (root / scene_file(house.scene_id)).with_suffix(".navmesh")
        write_bytes(target.with_suffix(".navmesh"), regular(own).read_bytes())
        return path
    scene, settings = load_scene(target), NavMeshSettings()  # read back: built from what every reader will see
    polymesh, detail = build_polymesh(scene.vertices, scene.triangles, settings)
    PathFinder.from_polymesh(polymesh, detail, settings).save(target.with_suffix(".navmesh"))
    return path


def scene_file(scene_id: str, look: str = "") -> Path:
    """Below a data root, the scene file of a house in a look."""
    path = SCENES_DIR / scene_id
    return path.with_stem(f"{path.stem}_{look}") if look else path


def fingerprint(path: Path) -> dict[str, str | int]:
    """SHA-256 and size of a file, as manifests hold them."""
    data = regular(path).read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def _decided(config: HousesConfig) -> str:
    """What of a configuration decides how its houses are."""
    options = {name: value for name, value in asdict(config).items() if name in _DECIDE_HOUSES}
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]
