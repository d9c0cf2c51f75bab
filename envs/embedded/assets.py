"""What a scene file turns into: a renderer and a navmesh, each made on first use."""

from __future__ import annotations

import hashlib
import struct
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from envs.embedded.kernels.cache import cache_dirs, keep
from envs.embedded.kernels.jit import kernel_cache
from envs.embedded.navmesh import build
from envs.embedded.navmesh.build import build_polymesh
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render.renderer import Renderer
from envs.embedded.render.scene import FORMAT as SCENE_FORMAT
from envs.embedded.render.scene import Scene, load_scene
from vlnbench.errors import UsageError
from vlnbench.util.durable.limits import regular


def check_container(path: Path) -> None:
    """Cheap check of a `.glb` before a run: binary glTF 2, as long as its header says. Raises UsageError."""
    with regular(path).open("rb") as file:
        header = file.read(12)
    magic, version, length = struct.unpack("<4sII", header.ljust(12, b"\0"))
    if magic != b"glTF" or version != 2:
        raise UsageError(f"{path}: header: expected a binary glTF 2 file (.glb); replace the file")
    if length != path.stat().st_size:
        size = path.stat().st_size
        raise UsageError(f"{path}: header: length {length} but the file has {size} bytes; download it again")


class SceneAssets:
    """One scene file and what was made from it. Raises UsageError as soon as something is missing or broken.

    The navmesh follows habitat-sim's rule: `<scene>.navmesh` beside the scene is used if its settings fit the
    body, otherwise a navmesh is built from the scene's triangles (and kept in the cache directory).
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UsageError(
                f"{path}: scene file is missing; check --data-root and the scene_datasets folder in it"
            )
        self.path = path

    @cached_property
    def scene(self) -> Scene:
        return load_scene(self.path, *cache_dirs("scenes"))

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.scene)

    def pathfinder(self, settings: NavMeshSettings) -> PathFinder:
        """Navmesh for a body."""
        shipped = self.path.with_suffix(".navmesh")
        if shipped.is_file():
            pathfinder = PathFinder.load(shipped)
            if pathfinder.settings.matches(settings):
                return pathfinder
        return self._built(settings)

    def _built(self, settings: NavMeshSettings) -> PathFinder:
        stat = self.path.stat()
        builder = kernel_cache(Path(build.__file__).parent).name  # another one after any change to the builder
        identity = (str(self.path.resolve()), stat.st_size, stat.st_mtime_ns, sorted(asdict(settings).items()))
        key = repr((builder, SCENE_FORMAT, identity))
        folders, name = cache_dirs("navmeshes"), f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.navmesh"
        for folder in folders:
            with suppress(UsageError):  # a damaged one is ours to replace, not the user's problem
                return PathFinder.load(folder / name)
        scene = self.scene
        try:
            polymesh, detail = build_polymesh(scene.vertices, scene.triangles, settings)
            pathfinder = PathFinder.from_polymesh(polymesh, detail, settings)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from error
        keep(folders, name, pathfinder.save)
        return pathfinder
