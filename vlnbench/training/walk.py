"""Walks episodes' reference paths and writes what was seen, in StreamVLN's trajectory layout.

One folder per trajectory, `images/<scan>_<set>_<episode>/rgb/NNN.jpg`, and one record with its instructions and
actions. Frame i was seen before action i + 1; the first action is the placeholder -1 and the final STOP is not
written, so that there are as many actions as frames.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlnbench.interfaces import Action, Embodiment, Env, Episode, Observation, Vec3
from vlnbench.loading import import_string

WAYPOINT_RADIUS_M = 0.5
GOAL_RADIUS_M = 0.25
"""How close the follower comes to a waypoint and to the last one (StreamVLN's trajectory generator)."""

MAX_ACTIONS = 498
"""Longer walks are left out, as StreamVLN's generator does: they do not fit its 500 steps."""

JPEG_QUALITY = 75
"""PIL's default, with which the published trajectories were written."""

PLACEHOLDER_ACTION = -1


@runtime_checkable
class GuidedEnv(Env, Protocol):
    """An environment that knows the way."""

    def shortest_path_action(self, target: Vec3, radius_m: float) -> Action:
        """Next action of a shortest-path follower towards a point (metres); STOP within `radius_m` of it."""
        ...


@dataclass(frozen=True, slots=True)
class Tour:
    """Episodes that start alike and follow the same path: walked once, told in several ways."""

    name: str
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True)
class Walked:
    """What became of a tour: a record, or the reason why there is none. `seconds` is wall-clock time."""

    name: str
    record: dict[str, Any] | None
    reason: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class WalkSettings:
    """What a walking process needs. `success_m`: a walk that ends farther from the goal (geodesic) is left out."""

    root: Path
    body: Embodiment
    scenes_dir: Path
    simulator: str
    gpu: int | None
    success_m: float


def tours(episodes: Sequence[Episode], set_name: str) -> list[Tour]:
    """Group episodes by scene, start pose and path, in the order of their first episode."""
    groups: dict[tuple[Any, ...], list[Episode]] = {}
    for episode in episodes:
        start = (episode.scene_id, episode.start_position, episode.start_rotation)
        groups.setdefault((*start, _waypoints(episode)), []).append(episode)
    return [Tour(_name(members[0], set_name), tuple(members)) for members in groups.values()]


def _name(episode: Episode, set_name: str) -> str:
    number = episode.episode_id
    number = f"{int(number):06d}" if number.isdigit() else number
    return f"{Path(episode.scene_id).stem}_{set_name}_{number}"


def _waypoints(episode: Episode) -> tuple[Vec3, ...]:
    return episode.reference_path or episode.goals[:1]


def steps(env: GuidedEnv, episode: Episode) -> Iterator[tuple[int, Observation]]:
    """(action that led there, observation) along the waypoints; the first action is PLACEHOLDER_ACTION."""
    observation = env.reset(episode)
    yield PLACEHOLDER_ACTION, observation
    waypoints = _waypoints(episode)
    for i, waypoint in enumerate(waypoints):
        radius = GOAL_RADIUS_M if i == len(waypoints) - 1 else WAYPOINT_RADIUS_M
        while (action := env.shortest_path_action(waypoint, radius)) != Action.STOP:
            observation = env.step(action)
            yield int(action), observation


def walk(env: GuidedEnv, tour: Tour, root: Path, success_m: float) -> Walked:
    """Walk a tour and write its frames below `root`; the folder appears only when it is complete."""
    start = time.perf_counter()
    episode = tour.episodes[0]
    actions: list[int] = []
    frames: list[bytes] = []
    observation: Observation | None = None
    for action, observation in steps(env, episode):
        actions.append(action)
        if len(actions) > MAX_ACTIONS:
            return Walked(tour.name, None, f"more than {MAX_ACTIONS} actions", time.perf_counter() - start)
        assert observation.rgb is not None
        frames.append(_jpeg(observation.rgb))
    assert observation is not None
    assert observation.pose is not None
    distance = env.geodesic_distance(observation.pose.position, episode.goals)
    if not distance < success_m:
        where = "no path to the goal" if math.isinf(distance) else f"ended {success_m:g} m or more from the goal"
        return Walked(tour.name, None, where, time.perf_counter() - start)
    video = f"images/{tour.name}"
    _write_frames(root / video, frames)
    record = {
        "id": int(episode.episode_id) if episode.episode_id.isdigit() else episode.episode_id,
        "video": video,
        "instructions": [each.instruction for each in tour.episodes],
        "actions": actions,
    }
    return Walked(tour.name, record, None, time.perf_counter() - start)


def _jpeg(rgb: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def _write_frames(folder: Path, frames: Sequence[bytes]) -> None:
    part = folder.with_name(f".{folder.name}.part")
    for stale in (part, folder):  # left behind by a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    (part / "rgb").mkdir(parents=True)
    for i, frame in enumerate(frames):
        (part / "rgb" / f"{i:03d}.jpg").write_bytes(frame)
    part.rename(folder)


_process: tuple[WalkSettings, GuidedEnv] | None = None
"""Settings and environment of a walking process."""


def start_process(settings: WalkSettings) -> None:
    """Prepare a walking process: one environment for all its tours. The process ends when its parent does."""
    global _process
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    make_env = import_string("envs.habitat_env:HabitatEnv")
    env: GuidedEnv = make_env(
        settings.body, settings.scenes_dir, frozenset({"rgb"}), settings.simulator, settings.gpu
    )
    _process = settings, env


def walk_in_process(tour: Tour) -> Walked:
    """Walk one tour in a process that `start_process` prepared."""
    assert _process is not None
    settings, env = _process
    return walk(env, tour, settings.root, settings.success_m)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
