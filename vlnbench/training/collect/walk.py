"""Walks episodes and writes what was seen, in StreamVLN's trajectory layout.

One folder per trajectory, `images/<scan>_<set>_<episode>/rgb/NNN.jpg`, and one record with its instructions and
actions. Frame i was seen before action i + 1; the first action is the placeholder -1 and the final STOP is not
written, so that there are as many actions as frames. `strays` (not in StreamVLN's format) lists the positions of
actions that are no example: they are read as what was done and not learned.
"""

from __future__ import annotations

import io
import math
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlnbench.interfaces import Action, Embodiment, Env, Episode, Observation, Scalar, Sensor, Vec3
from vlnbench.util.loading import import_string

WAYPOINT_RADIUS_M = 0.5
GOAL_RADIUS_M = 0.25
"""How close the follower comes to a waypoint and to the last one (StreamVLN's trajectory generator)."""

MAX_ACTIONS = 498
"""Longer walks are left out, as StreamVLN's generator does: they do not fit its 500 steps."""

JPEG_QUALITY = 75
"""PIL's default, with which the published trajectories were written."""

PLACEHOLDER_ACTION = -1

LONGEST_BURST = {Action.MOVE_FORWARD: 5, Action.TURN_LEFT: 5, Action.TURN_RIGHT: 5}
"""Actions of one disturbance at most."""


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
    """What became of a tour: a record or none, and the reason, if there is one. `seconds` is wall-clock time."""

    name: str
    record: dict[str, Any] | None
    reason: str | None
    seconds: float


class Done(NamedTuple):
    """An action and what was seen after it; a walk begins with PLACEHOLDER_ACTION. `stray`: not to be learned."""

    action: int
    observation: Observation
    stray: bool = False


class Verdict(NamedTuple):
    """Whether a walk is kept, and why or why not."""

    kept: bool
    reason: str | None


class Way(Protocol):
    """How episodes are walked and which walks are kept.

    `sensors` are what it looks at beside the frames that are written; `identity` holds what decides how it walks.
    """

    @property
    def sensors(self) -> frozenset[Sensor]: ...

    @property
    def identity(self) -> Mapping[str, Scalar]: ...

    def steps(self, env: GuidedEnv, episode: Episode) -> Iterator[Done]:
        """The walk, from the placeholder on."""
        ...

    def verdict(self, env: GuidedEnv, episode: Episode, positions: Sequence[Vec3]) -> Verdict:
        """Judge a walk by its positions, one per observation (metres)."""
        ...


class WaySettings(Protocol):
    """What makes a way in a walking process."""

    def make(self, body: Embodiment) -> Way:
        """Raises UsageError if it cannot be made for this body."""
        ...


@dataclass(frozen=True, slots=True)
class WalkSettings:
    """What a walking process needs."""

    root: Path
    body: Embodiment
    scenes_dir: Path
    simulator: str
    gpu: int | None
    way: WaySettings


def tours(episodes: Sequence[Episode], set_name: str) -> list[Tour]:
    """Group episodes by scene, start pose and path, in the order of their first episode."""
    groups: dict[tuple[Any, ...], list[Episode]] = {}
    for episode in episodes:
        start = (episode.scene_id, episode.start_position, episode.start_rotation)
        groups.setdefault((*start, waypoints(episode)), []).append(episode)
    return [Tour(tour_name(members[0], set_name), tuple(members)) for members in groups.values()]


def tour_name(episode: Episode, set_name: str) -> str:
    """`<scan>_<set>_<episode>`, which names the trajectory's folder."""
    number = episode.episode_id
    number = f"{int(number):06d}" if number.isdigit() else number
    return f"{Path(episode.scene_id).stem}_{set_name}_{number}"


def waypoints(episode: Episode) -> tuple[Vec3, ...]:
    """The reference path, or the goal where there is none (metres)."""
    return episode.reference_path or episode.goals[:1]


@dataclass(frozen=True, slots=True)
class ReferenceWay:
    """The reference path itself, as a shortest-path follower walks it from waypoint to waypoint.

    `success_m`: a walk that ends this far from the goal (metres, geodesic) or farther is left out. `disturbance`:
    chance, before every action, of a short random burst instead, from which the follower finds back; the same for
    every walk of an episode. Walks without it never show what to do beside the path or against a wall. The bursts
    themselves are marked as strays.
    """

    success_m: float
    disturbance: float = 0.0
    sensors: ClassVar[frozenset[Sensor]] = frozenset()
    identity: ClassVar[Mapping[str, Scalar]] = {}

    def make(self, body: Embodiment) -> ReferenceWay:
        """Itself: it fits every body."""
        return self

    def steps(self, env: GuidedEnv, episode: Episode) -> Iterator[Done]:
        """The walk along the waypoints."""
        rng = random.Random(episode.episode_id)
        yield Done(PLACEHOLDER_ACTION, env.reset(episode))
        path = waypoints(episode)
        for i, waypoint in enumerate(path):
            radius = GOAL_RADIUS_M if i == len(path) - 1 else WAYPOINT_RADIUS_M
            while (action := env.shortest_path_action(waypoint, radius)) != Action.STOP:
                if stray := self.disturbance > 0 and rng.random() < self.disturbance:
                    action = rng.choice(tuple(LONGEST_BURST))
                for _ in range(rng.randint(1, LONGEST_BURST[action]) if stray else 1):
                    yield Done(int(action), env.step(action), stray)

    def verdict(self, env: GuidedEnv, episode: Episode, positions: Sequence[Vec3]) -> Verdict:
        """Keep what ends near the goal."""
        distance = env.geodesic_distance(positions[-1], episode.goals)
        if distance < self.success_m:
            return Verdict(True, None)
        reason = (
            "no path to the goal" if math.isinf(distance) else f"ended {self.success_m:g} m or more from the goal"
        )
        return Verdict(False, reason)


def walk(env: GuidedEnv, tour: Tour, root: Path, way: Way) -> Walked:
    """Walk a tour and write its frames below `root`; the folder appears only when it is complete."""
    start = time.perf_counter()
    episode = tour.episodes[0]
    actions: list[int] = []
    strays: list[int] = []
    frames: list[bytes] = []
    positions: list[Vec3] = []
    for action, observation, stray in way.steps(env, episode):
        if stray:
            strays.append(len(actions))
        actions.append(action)
        if len(actions) > MAX_ACTIONS:
            return Walked(tour.name, None, f"more than {MAX_ACTIONS} actions", time.perf_counter() - start)
        assert observation.rgb is not None
        assert observation.pose is not None
        frames.append(jpeg(observation.rgb))
        positions.append(observation.pose.position)
    verdict = way.verdict(env, episode, positions)
    if not verdict.kept:
        return Walked(tour.name, None, verdict.reason, time.perf_counter() - start)
    video = f"images/{tour.name}"
    _write_frames(root / video, frames)
    record = {
        "id": int(episode.episode_id) if episode.episode_id.isdigit() else episode.episode_id,
        "video": video,
        "instructions": [each.instruction for each in tour.episodes],
        "actions": actions,
        **({"strays": strays} if strays else {}),
    }
    return Walked(tour.name, record, verdict.reason, time.perf_counter() - start)


def jpeg(rgb: NDArray[np.uint8]) -> bytes:
    """A frame (height, width, 3) as the content of an image file."""
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


_settings: WalkSettings | None = None
"""Settings of a walking process."""


def start_process(settings: WalkSettings) -> None:
    """Prepare a walking process, which ends when its parent does."""
    global _settings
    end_with_parent()
    _settings = settings


def identify_in_process() -> dict[str, Scalar]:
    """What decides how a process that `start_process` prepared walks. Raises UsageError if it cannot walk."""
    return dict(_prepared()[1].identity)


def walk_in_process(tour: Tour) -> Walked:
    """Walk one tour in a process that `start_process` prepared."""
    assert _settings is not None
    env, way = _prepared()
    return walk(env, tour, _settings.root, way)


@cache
def _prepared() -> tuple[GuidedEnv, Way]:
    """One environment and one way for all tours of a process."""
    assert _settings is not None
    way = _settings.way.make(_settings.body)
    make_env = import_string("envs.habitat_env:HabitatEnv")
    env: GuidedEnv = make_env(
        _settings.body, _settings.scenes_dir, way.sensors | {"rgb"}, _settings.simulator, _settings.gpu
    )
    return env, way


def end_with_parent() -> None:
    """End this process when its parent has ended."""
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
