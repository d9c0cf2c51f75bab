"""Houses built once per test session, without the episodes of a benchmark."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render.renderer import Renderer
from envs.embedded.render.scene import load_scene
from envs.houses.model.model import house_primitives
from envs.houses.options import HousesConfig
from envs.houses.plan.house import House, make_house
from envs.houses.shapes.glb_writer import glb_bytes


@dataclass(frozen=True)
class Built:
    """A house, its scene file, the navmesh made from that and a renderer of it."""

    house: House
    path: Path
    pathfinder: PathFinder
    renderer: Renderer


def build(folder: Path, name: str, config: HousesConfig) -> Built:
    """Write the scene of a house into a folder and load it as every reader does."""
    house = make_house(name, config)
    path = folder / f"{name}.glb"
    path.write_bytes(glb_bytes(house_primitives(house, random.Random(name)), "test"))
    scene, settings = load_scene(path), NavMeshSettings()
    pathfinder = PathFinder.from_polymesh(*build_polymesh(scene.vertices, scene.triangles, settings), settings)
    return Built(house, path, pathfinder, Renderer(scene))
