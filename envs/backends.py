"""The two simulators behind habitat-lab's interface, and how one is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from envs.habitat_lab import has_habitat_sim, import_habitat
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Embodiment, Episode, Pose, Vec3

SimulatorName = Literal["auto", "embedded", "habitat-sim"]

ORACLE_GOAL_RADIUS_M = 0.5
"""The oracle stops this close to a goal; VLN-CE's follower made the ground truth with the same radius."""


class Follower(Protocol):
    """Shortest-path follower of one episode."""

    def next_action(self, pose: Pose, goals: Sequence[Vec3]) -> Action: ...


class Backend(Protocol):
    """What differs between the simulators.

    `name` carries the version; `simulator_type` is habitat-lab's name of it, `look_types` those of its actions
    that tilt the cameras up and down.
    """

    name: str
    simulator_type: str
    look_types: tuple[str, str]

    def check(self, scenes_dir: Path, episodes: Sequence[Episode], body: Embodiment) -> None:
        """Raise UsageError for the first scene or start position that cannot be used."""
        ...

    def follower(self, sim: Any, body: Embodiment) -> Follower: ...


def choose_backend(name: SimulatorName) -> Backend:
    """habitat-sim where it is installed, the embedded simulator elsewhere, unless one is asked for by name."""
    if name == "auto":
        name = "habitat-sim" if has_habitat_sim() else "embedded"
    if name == "habitat-sim":
        return HabitatSimBackend()
    import_habitat()
    backend: Backend = importlib.import_module("envs.embedded.backend").EmbeddedBackend()
    return backend


class HabitatSimBackend:
    """The real habitat-sim, through habitat-lab's own wrapper."""

    simulator_type = "Sim-v0"
    look_types = ("LookUpAction", "LookDownAction")

    def __init__(self) -> None:
        if not has_habitat_sim():
            raise UsageError(
                "--sim habitat-sim: habitat-sim is not installed; install it with conda or use --sim embedded"
            )
        self.name = f"habitat-sim-{metadata.version('habitat-sim')}"

    def check(self, scenes_dir: Path, episodes: Sequence[Episode], body: Embodiment) -> None:
        check_scene_files(scenes_dir, episodes)

    def follower(self, sim: Any, body: Embodiment) -> Follower:
        return _HabitatFollower(sim)


class _HabitatFollower:
    """habitat-lab's ShortestPathFollower, led to the nearest of several goals."""

    def __init__(self, sim: Any) -> None:
        follower = importlib.import_module("habitat.tasks.nav.shortest_path_follower").ShortestPathFollower
        self._sim = sim
        self._follower = follower(sim, ORACLE_GOAL_RADIUS_M, return_one_hot=False)

    def next_action(self, pose: Pose, goals: Sequence[Vec3]) -> Action:
        nearest = min(goals, key=lambda goal: float(self._sim.geodesic_distance(pose.position, [goal])))
        return Action(int(self._follower.get_next_action(np.array(nearest))))


def check_scene_files(scenes_dir: Path, episodes: Sequence[Episode]) -> dict[Path, list[Episode]]:
    """Episodes by scene file. Raises UsageError naming the first file that is missing and who needs it."""
    by_scene: dict[Path, list[Episode]] = {}
    for episode in episodes:
        by_scene.setdefault(scenes_dir / episode.scene_id, []).append(episode)
    for path, members in by_scene.items():
        if not path.is_file():
            raise UsageError(
                f"{path}: scene file is missing (field 'scene_id' of episode {members[0].episode_id}); "
                "check --data-root and its scene_datasets folder"
            )
    return by_scene
