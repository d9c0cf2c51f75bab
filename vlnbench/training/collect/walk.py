"""Walks episodes and writes what was seen, in StreamVLN's trajectory layout.

One folder per trajectory, `images/<scan>_<set>_<episode>/rgb/NNN.jpg`, and one record with its instructions and
actions. Frame i was seen before action i + 1; the first action is the placeholder -1 and the final STOP is not
written, so that there are as many actions as frames. Not in StreamVLN's format are `strays`, the positions of
actions that are no example (they are read as what was done and not learned); `labels`, the expert's action at
every frame, where others were done; and, with depth, `images/<scan>_<set>_<episode>/depth/NNN.png` (16 bits,
millimeters), `distances`, meters to the goal at every frame, and `tokens` of instructions where there are any.
"""

from __future__ import annotations

import io
import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlnbench.interfaces import (
    Action,
    Agent,
    Conventions,
    Env,
    Episode,
    Observation,
    Pose,
    Scalar,
    Sensor,
    Trajectory,
    Vec3,
)
from vlnbench.rollout.episode import Rollout, Task
from vlnbench.training.collect.options import MAX_ACTIONS

WAYPOINT_RADIUS_M = 0.5
GOAL_RADIUS_M = 0.25
"""How close the follower comes to a waypoint and to the last one (StreamVLN's trajectory generator)."""

JPEG_QUALITY = 75
"""PIL's default, with which the published trajectories were written."""

PLACEHOLDER_ACTION = -1

LONGEST_BURST = {Action.MOVE_FORWARD: 5, Action.TURN_LEFT: 5, Action.TURN_RIGHT: 5}
"""Actions of one disturbance at most."""


@runtime_checkable
class GuidedEnv(Env, Protocol):
    """An environment that knows the way."""

    def shortest_path_action(self, target: Vec3, radius_m: float) -> Action:
        """Next action of a shortest-path follower towards a point (meters); STOP within `radius_m` of it."""
        ...


@dataclass(frozen=True, slots=True)
class SharedPath:
    """Episodes that start alike and follow the same path: walked once, told in several ways."""

    name: str
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True)
class Walked:
    """What became of a path: a record or none, and the reason, if there is one. `seconds` is wall-clock time."""

    name: str
    record: dict[str, Any] | None
    reason: str | None
    seconds: float


class Done(NamedTuple):
    """An action and what was seen after it; a walk begins with PLACEHOLDER_ACTION.

    stray: not to be learned. label: what is to be learned at the frame, where it is not what is done there.
    """

    action: int
    observation: Observation
    stray: bool = False
    label: Action | None = None


class Verdict(NamedTuple):
    """Whether a walk is kept, and why or why not."""

    kept: bool
    reason: str | None


class Route(Protocol):
    """Where a walk goes and whether it is kept."""

    def steps(self, env: GuidedEnv, episode: Episode) -> Iterator[Done]:
        """The walk, from the placeholder on."""
        ...

    def verdict(self, env: GuidedEnv, episode: Episode, positions: Sequence[Vec3]) -> Verdict:
        """Judge a walk by its positions, one per observation (meters)."""
        ...


class Guide(Protocol):
    """What chooses the route of a walk; it travels with the walk to the process of the environment."""

    def route(self, agent: Agent) -> Route:
        """The route of one walk, on which the agent may be asked."""
        ...


class Nobody:
    """The agent of walks that need none."""

    sensors: frozenset[Sensor] = frozenset()
    privileged = False
    expects = Conventions()
    identity: Mapping[str, Scalar] = {}

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        raise NotImplementedError("nobody drives")

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        raise NotImplementedError("nobody drives")

    def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True, slots=True)
class WalkTask:
    """The kind of task that walks a path and writes what was seen below `root`; its product is a `Walked`.

    depth: write depth, distances and tokens too.
    """

    shared: SharedPath
    root: Path
    guide: Guide
    depth: bool = False

    def run(self, env: Env, agent: Agent, task: Task) -> Rollout:
        """Raises TypeError for an environment that does not know the way."""
        if not isinstance(env, GuidedEnv):
            raise TypeError("the environment knows no way: it lacks shortest_path_action(target, radius_m)")
        return walk(env, self, self.guide.route(agent))


def shared_paths(episodes: Sequence[Episode], set_name: str) -> list[SharedPath]:
    """Group episodes by scene, start pose and path, in the order of their first episode."""
    groups: dict[tuple[Any, ...], list[Episode]] = {}
    for episode in episodes:
        start = (episode.scene_id, episode.start_position, episode.start_rotation)
        groups.setdefault((*start, waypoints(episode)), []).append(episode)
    return [SharedPath(shared_name(members[0], set_name), tuple(members)) for members in groups.values()]


def in_turn(planned: Sequence[SharedPath]) -> list[SharedPath]:
    """The first path of every scene, then the second of every scene, and so on; files may go scene by scene."""
    before: Counter[str] = Counter()
    rounds = []
    for shared in planned:
        scene = shared.episodes[0].scene_id
        rounds.append(before[scene])
        before[scene] += 1
    return [shared for _, shared in sorted(zip(rounds, planned, strict=True), key=lambda pair: pair[0])]


def shared_name(episode: Episode, set_name: str) -> str:
    """`<scan>_<set>_<episode>`, which names the trajectory's folder."""
    number = _number(episode)
    return f"{Path(episode.scene_id).stem}_{set_name}_{number if isinstance(number, str) else f'{number:06d}'}"


def _number(episode: Episode) -> int | str:
    """The episode's id, as a number if it is one; "²" and "٧" are digits, too, and stay what they are."""
    name = episode.episode_id
    return int(name) if name.isascii() and name.isdigit() else name


def waypoints(episode: Episode) -> tuple[Vec3, ...]:
    """The reference path, or the goal where there is none (meters)."""
    return episode.reference_path or episode.goals[:1]


@dataclass(frozen=True, slots=True)
class ReferenceRoute:
    """The reference path itself, as a shortest-path follower walks it from waypoint to waypoint.

    `success_m`: a walk that ends this far from the goal (meters, geodesic) or farther is left out. `disturbance`:
    chance, before every action, of a short random burst instead, from which the follower finds back; the same for
    every walk of an episode. Walks without it never show what to do beside the path or against a wall. The bursts
    themselves are marked as strays.
    """

    success_m: float
    disturbance: float = 0.0

    def route(self, agent: Agent) -> ReferenceRoute:
        """Itself: nobody is asked."""
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


def walk(env: GuidedEnv, kind: WalkTask, route: Route) -> Rollout:
    """Walk a path and write its frames; their folder appears only when it is complete.

    The product is a `Walked`. All seconds count as the environment's.
    """
    start = time.perf_counter()
    shared, episode = kind.shared, kind.shared.episodes[0]
    done: list[Done] = []
    frames: dict[str, list[bytes]] = {"rgb": [], **({"depth": []} if kind.depth else {})}
    reason: str | None = None
    for each in route.steps(env, episode):
        if len(done) == MAX_ACTIONS:
            reason = f"more than {MAX_ACTIONS} actions"
            break
        seen = each.observation
        assert seen.rgb is not None
        frames["rgb"].append(jpeg(seen.rgb))
        if kind.depth:
            assert seen.depth is not None
            frames["depth"].append(depth_png(seen.depth))
        done.append(each._replace(observation=replace(seen, rgb=None, depth=None)))
    poses = tuple(each.observation.pose for each in done if each.observation.pose is not None)
    record = None
    if reason is None:
        verdict = route.verdict(env, episode, [pose.position for pose in poses])
        reason = verdict.reason
        if verdict.kept:
            record = _record(shared, done)
            if kind.depth:
                record |= _measured(env, shared, poses)
            _write_frames(kind.root / _video(shared), frames)
    collided = tuple(each.observation.collided for each in done[1:])
    trajectory = Trajectory(poses, tuple(Action(each.action) for each in done[1:]), collided)
    seconds = time.perf_counter() - start
    return Rollout(trajectory, seconds, 0.0, product=Walked(shared.name, record, reason, seconds))


def _video(shared: SharedPath) -> str:
    return f"images/{shared.name}"


def _record(shared: SharedPath, done: Sequence[Done]) -> dict[str, Any]:
    """The entry of the annotations."""
    strays = [i for i, each in enumerate(done) if each.stray]
    labels = [int(each.label) for each in done if each.label is not None]
    return {
        "id": _number(shared.episodes[0]),
        "video": _video(shared),
        "instructions": [each.instruction for each in shared.episodes],
        "actions": [each.action for each in done],
        **({"strays": strays} if strays else {}),
        **({"labels": labels} if labels else {}),
    }


def _measured(env: GuidedEnv, shared: SharedPath, poses: Sequence[Pose]) -> dict[str, Any]:
    """What goes with depth: distances, and the instructions' tokens without the zeros behind them."""
    goals = shared.episodes[0].goals
    distances = [round(env.geodesic_distance(pose.position, goals), 3) for pose in poses]
    tokens = [list(each.instruction_tokens) for each in shared.episodes]
    if not all(map(any, tokens)):
        return {"distances": distances}
    return {
        "distances": distances,
        "tokens": [each[: max(i for i, t in enumerate(each) if t) + 1] for each in tokens],
    }


def jpeg(rgb: NDArray[np.uint8]) -> bytes:
    """A frame (height, width, 3) as the content of an image file."""
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def depth_png(depth: NDArray[np.float32]) -> bytes:
    """A depth map (height, width) in meters as the content of an image file, 16 bits in millimeters."""
    return png(np.clip(np.rint(depth * 1000), 0, 65535).astype(np.uint16))


def png(image: NDArray[Any]) -> bytes:
    """An image as the content of a file that keeps every number."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _write_frames(folder: Path, frames: Mapping[str, Sequence[bytes]]) -> None:
    part = folder.with_name(f".{folder.name}.part")
    for stale in (part, folder):  # left behind by a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    for kind, suffix in (("rgb", "jpg"), ("depth", "png")):
        if kind in frames:
            (part / kind).mkdir(parents=True)
            for i, frame in enumerate(frames[kind]):
                (part / kind / f"{i:03d}.{suffix}").write_bytes(frame)
    part.rename(folder)
