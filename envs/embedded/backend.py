"""The embedded simulator as a backend of the habitat-lab environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envs.embedded.assets import SceneAssets, check_container
from envs.embedded.follower import GreedyFollower
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.embedded.render.shrink import shrink
from envs.embedded.simulator import (  # importing it registers it with habitat-lab
    SIMULATOR_TYPE,
    VERSION,
    EmbeddedSim,
)
from envs.embedded.warmup import WarmUp
from envs.scene_checks import check_positions, check_scene_files
from vlnbench.interfaces import Embodiment, Episode


class EmbeddedBackend:
    """Pip-only simulator; reads the same scenes and navmeshes as habitat-sim."""

    name = VERSION
    simulator_type = SIMULATOR_TYPE
    look_types = ("EmbeddedLookUpAction", "EmbeddedLookDownAction")
    gpu_device_id = -1  # draws on the CPU
    shrink = staticmethod(shrink)

    def __init__(self, gpu: int | None = None) -> None:
        pass

    def load_ahead(self) -> None:
        """Load the compiled kernels, if this machine has compiled them."""
        WarmUp().load()

    def prepare(self) -> Iterator[str]:
        """Compile the kernels, where this machine has not done it yet."""
        return WarmUp().steps()

    def check(self, scenes_dir: Path, episodes: Sequence[Episode], body: Embodiment) -> None:
        settings = NavMeshSettings(agent_height=body.agent_height_m, agent_radius=body.agent_radius_m)
        for path, members in check_scene_files(scenes_dir, episodes).items():
            check_container(path)
            check_positions(path, members, SceneAssets(path).pathfinder(settings).snap_point)

    @contextmanager
    def without_frames(self, sim: EmbeddedSim) -> Iterator[None]:
        sim.draws = False
        try:
            yield
        finally:
            sim.draws = True

    def follower(self, sim: Any, body: Embodiment, goal_radius_m: float) -> GreedyFollower:
        return GreedyFollower(sim.pathfinder, body, goal_radius_m)
