"""The embedded simulator as a backend of the habitat-lab environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envs.backends import ORACLE_GOAL_RADIUS_M, check_scene_files
from envs.embedded.assets import SceneAssets, check_container
from envs.embedded.follower import GreedyFollower
from envs.embedded.navmesh.settings import NavMeshSettings
from envs.embedded.simulator import SIMULATOR_TYPE, VERSION  # importing it registers it with habitat-lab
from vlnbench.errors import UsageError
from vlnbench.interfaces import Embodiment, Episode

MAX_START_OFFSET_M = 1.0
"""A start position farther than this from the navmesh is refused (recorded ones lie within centimetres)."""


class EmbeddedBackend:
    """Pip-only simulator; reads the same scenes and navmeshes as habitat-sim."""

    name = VERSION
    simulator_type = SIMULATOR_TYPE
    look_types = ("EmbeddedLookUpAction", "EmbeddedLookDownAction")

    def check(self, scenes_dir: Path, episodes: Sequence[Episode], body: Embodiment) -> None:
        settings = NavMeshSettings(agent_height=body.agent_height_m, agent_radius=body.agent_radius_m)
        for path, members in check_scene_files(scenes_dir, episodes).items():
            check_container(path)
            pathfinder = SceneAssets(path).pathfinder(settings)
            for episode in members:
                start = np.array(episode.start_position, dtype=np.float32)
                offset = pathfinder.snap_point(start) - start
                if not float(np.hypot(offset[0], offset[2])) <= MAX_START_OFFSET_M:  # NaN: nothing within reach
                    raise UsageError(
                        f"episode {episode.episode_id}: field 'start_position' {episode.start_position} is off "
                        f"the navigable area of {path}"
                    )

    def follower(self, sim: Any, body: Embodiment) -> GreedyFollower:
        return GreedyFollower(sim.pathfinder, body, ORACLE_GOAL_RADIUS_M)
