"""Test doubles: an environment without a simulator and helpers to make episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vlnbench.data.episodes import EpisodeSet
from vlnbench.interfaces import (
    Action,
    Camera,
    Embodiment,
    Episode,
    GroundTruth,
    Observation,
    Pose,
    TopDownMap,
    Vec3,
)


class PlaneEnv:
    """An endless free plane at y = 0: geodesic distance is Euclidean distance."""

    simulator = "plane-1"

    def __init__(self) -> None:
        self.embodiment = Embodiment(camera=Camera(width=8, height=6, hfov=90.0, height_m=1.25))
        self.resets = 0
        self.closed = False

    def prepare(self) -> Iterator[str]:
        return iter(())

    def check(self, episodes: Sequence[Episode]) -> None:
        pass

    def reset(self, episode: Episode) -> Observation:
        self.resets += 1
        self.episode, self.count = episode, 0
        self.position = np.array(episode.start_position)
        self.yaw = Pose(episode.start_position, episode.start_rotation).yaw
        return self._observe()

    def step(self, action: Action) -> Observation:
        self.count += 1
        if action is Action.MOVE_FORWARD:
            self.position = self.position + 0.25 * np.array([-math.sin(self.yaw), 0.0, -math.cos(self.yaw)])
        elif action is not Action.STOP:
            self.yaw += math.radians(15.0 if action is Action.TURN_LEFT else -15.0)
        return self._observe()

    def geodesic_distance(self, position: Vec3, goals: Sequence[Vec3]) -> float:
        return min(math.dist(position, goal) for goal in goals)

    def render(self, pose: Pose) -> NDArray[np.uint8]:
        return np.zeros((6, 8, 3), dtype=np.uint8)

    def top_down_map(self, height: float, meters_per_pixel: float = 0.05) -> TopDownMap:
        return TopDownMap(np.ones((4, 4), dtype=bool), (0.0, 0.0), meters_per_pixel)

    def close(self) -> None:
        self.closed = True

    def _observe(self) -> Observation:
        x, y, z = (float(value) for value in self.position)
        rotation = (0.0, math.sin(self.yaw / 2), 0.0, math.cos(self.yaw / 2))
        return Observation(self.episode.instruction, self.count, pose=Pose((x, y, z), rotation))


def make_episode(index: int, *, scene: str = "a", distance: float = 5.0) -> Episode:
    """Start at the origin looking along -z, goal straight ahead; ground truth walks there."""
    steps = round(distance / 0.25)
    locations = tuple((0.0, 0.0, -0.25 * i) for i in range(steps + 1))
    return Episode(
        episode_id=str(index),
        trajectory_id=str(index // 3),
        scene_id=f"{scene}/{scene}.glb",
        start_position=(0.0, 0.0, 0.0),
        start_rotation=(0.0, 0.0, 0.0, 1.0),
        instruction=f"Walk {distance} meters ahead.",
        goals=((0.0, 0.0, -distance),),
        reference_path=(locations[0], locations[-1]),
        geodesic_distance=distance,
        ground_truth=GroundTruth(locations, (1,) * steps + (0,)),
    )


def make_set(path: object, count: int = 9, scenes: str = "abc") -> EpisodeSet:
    from pathlib import Path

    episodes = tuple(make_episode(i, scene=scenes[i % len(scenes)], distance=4.0 + i / 2) for i in range(count))
    return EpisodeSet("val_unseen", Path(str(path)), "0" * 64, episodes)
