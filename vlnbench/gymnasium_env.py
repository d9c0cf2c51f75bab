"""Our environments as Gymnasium environments, for trainers of others. Needs the extra `gym`.

from vlnbench.gymnasium_env import make
env = make("houses-r2r", "train", sensors={"rgb", "depth"})
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.data.generate import ensure_data
from vlnbench.defaults import BENCHMARK, ENV
from vlnbench.evaluation.metrics import score
from vlnbench.interfaces import Action, Env, Episode, Observation, Pose, Sensor, Trajectory
from vlnbench.rollout import said
from vlnbench.rollout.env_names import find_env
from vlnbench.rollout.executor import prepare
from vlnbench.util.loading import import_string

SUCCESS_REWARD = 2.5
"""Of STOP where it counts as success, as in habitat-lab's navigation tasks."""

RGB: tuple[Sensor, ...] = ("rgb",)

_MOVES, _ALL = 4, 6


class VLNEnv(gymnasium.Env):  # type: ignore[misc]
    """One environment with the episodes of a split.

    Observations are a dictionary: `instruction`, text; `rgb`, uint8 (height, width, 3); `depth`, float32 (height,
    width, 1) in meters; cameras as far as they are among `sensors`. Actions are those of
    `vlnbench.interfaces.Action`. The reward of an action is by how many meters the geodesic distance to the goal
    shrank, and `SUCCESS_REWARD` more for a STOP that is a success. An episode terminates with STOP and is
    truncated after `max_steps`; `info["scores"]` then holds its metrics. Where it begins, `info["episode_id"]`
    says which it is.

    env: made with these sensors; closed with this one. `reset(seed=...)` draws an episode; `reset(options=
    {"episode_id": ...})` takes that one.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium declares it

    def __init__(
        self,
        env: Env,
        episodes: Sequence[Episode],
        sensors: Collection[Sensor] = RGB,
        *,
        max_steps: int = 500,
        success_distance_m: float = 3.0,
        render_mode: str | None = None,
    ) -> None:
        if not episodes or not all(episode.goals for episode in episodes):
            raise ValueError("expected at least one episode, and goals for each: rewards depend on them")
        self.render_mode = render_mode
        self._env, self._sensors = env, frozenset(sensors)
        self._episodes = {episode.episode_id: episode for episode in episodes}
        self._max_steps, self._success_m = max_steps, success_distance_m
        body = env.embodiment
        self.action_space = spaces.Discrete(_MOVES if body.tilt_deg is None else _ALL)
        characters = frozenset().union(*(episode.instruction for episode in episodes))
        longest = max(len(episode.instruction) for episode in episodes)
        shown: dict[str, Any] = {"instruction": spaces.Text(longest, charset=characters)}
        if "rgb" in self._sensors:
            shown["rgb"] = spaces.Box(0, 255, (body.camera.height, body.camera.width, 3), np.uint8)
        if "depth" in self._sensors:
            camera = body.depth_camera or body.camera
            shown["depth"] = spaces.Box(*body.depth_range_m, (camera.height, camera.width, 1), np.float32)
        self.observation_space = spaces.Dict(shown)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode. Raises KeyError for an `episode_id` that is none."""
        super().reset(seed=seed)
        wanted = (options or {}).get("episode_id")
        if wanted is None:
            wanted = list(self._episodes)[int(self.np_random.integers(len(self._episodes)))]
        self._episode = self._episodes[wanted]
        seen = self._env.reset(self._episode)
        self._poses: list[Pose] = [said.pose(seen)]
        self._actions: list[Action] = []
        self._collided: list[bool] = []
        self._distances = [self._distance(seen)]
        return self._shown(seen), {"episode_id": wanted, "distance_to_goal": self._distances[-1]}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Do an action: observation, reward, terminated, truncated, info."""
        seen = self._env.step(Action(int(action)))
        self._poses.append(said.pose(seen))
        self._actions.append(Action(int(action)))
        self._collided.append(seen.collided)
        self._distances.append(self._distance(seen))
        before, after = self._distances[-2:]
        reward = before - after if math.isfinite(before) and math.isfinite(after) else 0.0
        terminated = action == Action.STOP
        truncated = not terminated and len(self._actions) >= self._max_steps
        info: dict[str, Any] = {"distance_to_goal": after, "collided": seen.collided}
        if terminated or truncated:
            scores = score(self.trajectory, self._episode, self._success_m)
            reward += SUCCESS_REWARD * scores.success
            info["scores"] = asdict(scores)
        return self._shown(seen), reward, terminated, truncated, info

    @property
    def trajectory(self) -> Trajectory:
        """What was done in this episode so far."""
        actions, collided = tuple(self._actions), tuple(self._collided)
        return Trajectory(tuple(self._poses), actions, collided, tuple(self._distances))

    def render(self) -> Any:
        """RGB of what is seen now, uint8 (height, width, 3); None unless made with `render_mode="rgb_array"`."""
        return self._env.render(self._poses[-1]) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _distance(self, seen: Observation) -> float:
        return self._env.geodesic_distance(said.pose(seen).position, self._episode.goals)

    def _shown(self, seen: Observation) -> dict[str, Any]:
        shown: dict[str, Any] = {"instruction": seen.instruction}
        if "rgb" in self._sensors:
            shown["rgb"] = seen.rgb
        if "depth" in self._sensors and seen.depth is not None:
            shown["depth"] = seen.depth[..., None]
        return shown


def make(
    benchmark: str = BENCHMARK,
    split: str = "train",
    *,
    sensors: Collection[Sensor] = RGB,
    data_root: Path = Path("data"),
    env: str = ENV,
    sim: str = "auto",
    allow_partial: bool = False,
    render_mode: str | None = None,
) -> VLNEnv:
    """The episodes of a split as one Gymnasium environment; options are named as those of `vlnbench eval`.

    Generated data are made if they are not there. Raises UsageError for names and files that cannot be used.
    """
    protocol = get_benchmark(benchmark)
    ensure_data(protocol, data_root, split)
    found = load_split(protocol, split, data_root, allow_partial=allow_partial)
    rendered = frozenset(sensors) | ({"rgb"} if render_mode else set())
    made: Env = import_string(find_env(env))(protocol.body, found.scenes_dir.absolute(), rendered, sim)
    prepare(made)
    made.check(found.episodes)
    return VLNEnv(
        made,
        found.episodes,
        sensors,
        max_steps=protocol.max_steps,
        success_distance_m=protocol.success_distance_m,
        render_mode=render_mode,
    )
