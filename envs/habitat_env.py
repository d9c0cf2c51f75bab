"""The environment: habitat-lab's `Env` with the VLN task, on the embedded simulator or on habitat-sim."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.backends import ORACLE_GOAL_RADIUS_M, Backend, Follower, choose_backend
from envs.habitat_lab import import_habitat
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Embodiment, Episode, Observation, Pose, Sensor, TopDownMap, Vec3

_MOVES = (Action.MOVE_FORWARD, Action.TURN_LEFT, Action.TURN_RIGHT)
_LOOKS = (Action.LOOK_UP, Action.LOOK_DOWN)


class HabitatEnv:
    """One habitat-lab environment.

    body: camera, steps and size of the agent. scenes_dir: folder that `Episode.scene_id` is relative to.
    sensors: what to observe; a camera that no one asked for is not rendered. gpu: CUDA device that habitat-sim
    draws on; None: the first one if there is one.

    Raises UsageError for a body that habitat-lab cannot have, scenes that are missing or broken, and for
    habitat-sim where it is not installed.
    """

    def __init__(
        self,
        body: Embodiment,
        scenes_dir: Path,
        sensors: frozenset[Sensor],
        simulator: str = "auto",
        gpu: int | None = None,
    ) -> None:
        _check_angles(body, sensors)
        self._backend: Backend = choose_backend(simulator, gpu)
        self._habitat = import_habitat()
        self.embodiment = body
        self.simulator = self._backend.name
        self._scenes_dir = scenes_dir
        self._sensors = sensors
        self._env: Any = None
        self._followers: dict[float, Follower] = {}
        self._episode: Episode | None = None
        self._steps = 0

    @staticmethod
    def load_ahead() -> None:
        """Do what takes seconds and is the same for every body, scene and sensor, with the simulator of `auto`."""
        choose_backend("auto").load_ahead()
        _vln_config()

    def prepare(self) -> Iterator[str]:
        return self._backend.prepare()

    def check(self, episodes: Sequence[Episode]) -> None:
        self._backend.check(self._scenes_dir, episodes, self.embodiment)

    def reset(self, episode: Episode) -> Observation:
        self._episode, self._steps = episode, 0
        if self._env is None:
            self._env = self._habitat.Env(self._config(episode))
        self._env.current_episode = _habitat_episode(episode, self._scenes_dir)
        frames = self._env.reset()
        self._followers.clear()
        return self._observation(frames, collided=False)

    def step_unseen(self, action: Action) -> Observation:
        """As `step`, without frames."""
        with self._backend.without_frames(self._env.sim):
            return replace(self.step(action), rgb=None, depth=None)

    def step(self, action: Action) -> Observation:
        if action in _LOOKS and self.embodiment.tilt_deg is None:
            raise ValueError(f"{action.name}: this body cannot tilt its cameras")
        frames = self._env.step(action.name.lower())
        self._steps += 1
        collided = action in _MOVES and bool(self._env.sim.previous_step_collided)
        return self._observation(frames, collided)

    def shrink(self, frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
        return self._backend.shrink(frame, height, width)

    def geodesic_distance(self, position: Vec3, goals: Sequence[Vec3]) -> float:
        return float(self._env.sim.geodesic_distance(position, goals))

    def shortest_path_action(self, target: Vec3, radius_m: float) -> Action:
        """Next action of the shortest-path follower towards a point (meters); STOP within `radius_m` of it."""
        return self._follow([target], radius_m)

    def render(self, pose: Pose) -> NDArray[np.uint8]:
        if "rgb" not in self._sensors:
            raise ValueError("this environment was made without the rgb sensor")
        frame: NDArray[np.uint8] = self._env.sim.get_observations_at(pose.position, pose.rotation)["rgb"]
        return frame

    def top_down_map(self, height: float, meters_per_pixel: float = 0.05) -> TopDownMap:
        pathfinder = self._env.sim.pathfinder
        low, _ = pathfinder.get_bounds()
        view = np.asarray(pathfinder.get_topdown_view(meters_per_pixel, height), dtype=bool)
        return TopDownMap(view, (float(low[0]), float(low[2])), meters_per_pixel)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _config(self, episode: Episode) -> Any:
        """habitat-lab's own VLN configuration with this body, this simulator and no measures."""
        body = self.embodiment
        root = copy.deepcopy(_vln_config())
        with self._habitat.config.read_write(root):
            config = root.habitat
            config.environment.max_episode_steps = 0  # the rollout owns the step budget
            config.task.measurements = {}  # metrics are computed from the trajectory, once
            config.dataset.type = ""  # episodes come from vlnbench's readers, one by one
            simulator = config.simulator
            simulator.type = self._backend.simulator_type
            simulator.scene = str(self._scenes_dir / episode.scene_id)
            simulator.forward_step_size = body.forward_m
            simulator.turn_angle = int(body.turn_deg)
            simulator.habitat_sim_v0.allow_sliding = body.allow_sliding
            simulator.habitat_sim_v0.gpu_device_id = self._backend.gpu_device_id
            if body.tilt_deg is not None:
                structured = importlib.import_module("habitat.config.default_structured_configs")
                tilt = int(body.tilt_deg)
                for name, kind in zip(("look_up", "look_down"), self._backend.look_types, strict=True):
                    config.task.actions[name] = structured.LookUpActionConfig(type=kind, tilt_angle=tilt)
            agent = simulator.agents.main_agent
            agent.height, agent.radius = body.agent_height_m, body.agent_radius_m
            depth = agent.sim_sensors.depth_sensor
            depth.min_depth, depth.max_depth = body.depth_range_m
            depth.normalize_depth = False
            cameras = {"rgb": body.camera, "depth": body.depth_camera or body.camera}
            for sensor, camera in cameras.items():
                if sensor not in self._sensors:
                    del agent.sim_sensors[f"{sensor}_sensor"]
                    continue
                node = agent.sim_sensors[f"{sensor}_sensor"]
                node.width, node.height = camera.width, camera.height
                node.hfov = int(camera.hfov)
                node.position = [0.0, camera.height_m, 0.0]
                node.orientation = [float(np.radians(camera.pitch_deg)), 0.0, 0.0]
        return root.habitat

    def _observation(self, frames: Any, collided: bool) -> Observation:
        assert self._episode is not None
        goals = self._episode.goals
        asked = "oracle_action" in self._sensors and goals
        oracle = self._follow(goals, ORACLE_GOAL_RADIUS_M) if asked else None
        return Observation(
            instruction=self._episode.instruction,
            step=self._steps,
            rgb=frames.get("rgb"),
            depth=frames["depth"][..., 0] if "depth" in frames else None,
            pose=_pose(self._env.sim.get_agent_state()),
            collided=collided,
            oracle_action=oracle,
        )

    def _follow(self, goals: Sequence[Vec3], radius_m: float) -> Action:
        if radius_m not in self._followers:
            self._followers[radius_m] = self._backend.follower(self._env.sim, self.embodiment, radius_m)
        return self._followers[radius_m].next_action(_pose(self._env.sim.get_agent_state()), goals)


@cache
def _vln_config() -> Any:
    """habitat-lab's own configuration of VLN, which takes half a second to compose; not to be changed."""
    return import_habitat().get_config("benchmark/nav/vln_r2r.yaml")


def _check_angles(body: Embodiment, sensors: frozenset[Sensor]) -> None:
    """habitat-lab's configuration types angles as integers; rounding one would silently change the protocol."""
    angles = {"body.turn_deg": body.turn_deg, "body.tilt_deg": body.tilt_deg or 0.0}
    own = body.depth_camera if "depth" in sensors else None
    if "rgb" in sensors or ("depth" in sensors and own is None):
        angles["body.camera.hfov"] = body.camera.hfov
    if own is not None:
        angles["body.depth_camera.hfov"] = own.hfov
    for field, value in angles.items():
        if value != int(value):
            raise UsageError(
                f"{field} {value}: habitat-lab takes whole degrees only; give another angle in the benchmark"
            )


def _pose(state: Any) -> Pose:
    x, y, z = (float(value) for value in state.position)
    rotation = state.rotation
    return Pose((x, y, z), (float(rotation.x), float(rotation.y), float(rotation.z), float(rotation.w)))


def _habitat_episode(episode: Episode, scenes_dir: Path) -> Any:
    from habitat.tasks.nav.nav import NavigationGoal
    from habitat.tasks.vln.vln import InstructionData, VLNEpisode

    return VLNEpisode(
        episode_id=episode.episode_id,
        scene_id=str(scenes_dir / episode.scene_id),
        start_position=list(episode.start_position),
        start_rotation=list(episode.start_rotation),
        goals=[NavigationGoal(position=list(goal), radius=episode.goal_radius) for goal in episode.goals],
        reference_path=[list(point) for point in episode.reference_path],
        instruction=InstructionData(episode.instruction, list(episode.instruction_tokens)),
        trajectory_id=episode.trajectory_id,
    )
