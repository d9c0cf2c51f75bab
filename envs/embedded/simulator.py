"""The embedded simulator behind habitat-lab's `Simulator` interface, registered as `Embedded-v0`.

habitat-lab's own `Env`, tasks, measures and dataset classes drive it unchanged: select it with
`habitat.simulator.type=Embedded-v0`. Stock sensor types (`HabitatSimRGBSensor`, `HabitatSimDepthSensor`) are
accepted in the configuration, so habitat-lab's own yaml files work with that single override.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.embedded.assets import SceneAssets
from envs.embedded.navmesh.motion import advance
from envs.embedded.navmesh.pathfinder import PathFinder
from envs.embedded.navmesh.tiles.settings import NavMeshSettings
from envs.habitat_lab import import_habitat
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Quaternion, Vec3

import_habitat()

import quaternion  # noqa: E402
from gym import spaces  # noqa: E402
from habitat.config.default import get_agent_config  # noqa: E402
from habitat.core.embodied_task import SimulatorTaskAction  # noqa: E402
from habitat.core.registry import registry  # noqa: E402
from habitat.core.simulator import (  # noqa: E402
    AgentState,
    DepthSensor,
    Observations,
    RGBSensor,
    Sensor,
    SensorSuite,
    Simulator,
)

VERSION = "embedded-2"
"""Changes whenever frames, distances or steps can change; part of every result's identity."""

SIMULATOR_TYPE = "Embedded-v0"

RawFrames = Mapping[str, NDArray[Any]]
"""Sensor uuid -> what the renderer delivered for it."""


@registry.register_sensor(name="EmbeddedRGBSensor")
class EmbeddedRGBSensor(RGBSensor):  # type: ignore[misc]
    """uint8 (height, width, 3)."""

    def _get_observation_space(self, *args: Any, **kwargs: Any) -> Any:
        shape = (self.config.height, self.config.width, 3)
        return spaces.Box(low=0, high=255, shape=shape, dtype=np.uint8)

    def get_observation(self, frames: RawFrames) -> NDArray[np.uint8]:
        return frames[self.uuid]


@registry.register_sensor(name="EmbeddedDepthSensor")
class EmbeddedDepthSensor(DepthSensor):  # type: ignore[misc]
    """float32 (height, width, 1): planar meters clipped to [min_depth, max_depth], or [0, 1] if normalized."""

    def _get_observation_space(self, *args: Any, **kwargs: Any) -> Any:
        config = self.config
        low, high = (0.0, 1.0) if config.normalize_depth else (config.min_depth, config.max_depth)
        return spaces.Box(low=low, high=high, shape=(config.height, config.width, 1), dtype=np.float32)

    def get_observation(self, frames: RawFrames) -> NDArray[np.float32]:
        low, high = np.float32(self.config.min_depth), np.float32(self.config.max_depth)
        depth = np.clip(frames[self.uuid], low, high)[..., None]
        return (depth - low) / (high - low) if self.config.normalize_depth else depth


_SENSORS: dict[str, type[Sensor]] = {
    "EmbeddedRGBSensor": EmbeddedRGBSensor,
    "EmbeddedDepthSensor": EmbeddedDepthSensor,
    "HabitatSimRGBSensor": EmbeddedRGBSensor,
    "HabitatSimDepthSensor": EmbeddedDepthSensor,
}


class _LookAction(SimulatorTaskAction):  # type: ignore[misc]
    """Tilts the cameras by the configured angle; the body stays where it is."""

    sign: float

    def step(self, *args: Any, **kwargs: Any) -> None:
        self._sim.tilt(self.sign * self._config.tilt_angle)


@registry.register_task_action(name="EmbeddedLookUpAction")
class LookUpAction(_LookAction):
    """Tilts the cameras upwards."""

    sign = 1.0


@registry.register_task_action(name="EmbeddedLookDownAction")
class LookDownAction(_LookAction):
    """Tilts the cameras downwards."""

    sign = -1.0


class _Mount(NamedTuple):
    """A camera on the body: (height, width) in pixels, hfov in degrees, offset in meters, Euler angles in radians
    (turned about x first, then y, then z)."""

    size: tuple[int, int]
    hfov: float
    offset: tuple[float, ...]
    euler: tuple[float, ...]


@registry.register_simulator(name=SIMULATOR_TYPE)
class EmbeddedSim(Simulator):  # type: ignore[misc]
    """CPU simulator for static scenes: pinhole RGB and depth, discrete steps on a navmesh.

    Positions are float32 meters in the world frame (y up); rotations are numpy quaternions at habitat-lab's
    interface and (x, y, z, w) inside.
    """

    def __init__(self, config: Any) -> None:
        self._sensor_suite = SensorSuite([_make_sensor(c) for c in get_agent_config(config).sim_sensors.values()])
        self._mounts: dict[_Mount, list[Sensor]] = {}
        for sensor in self._sensor_suite.sensors.values():
            self._mounts.setdefault(_mount(sensor.config), []).append(sensor)
        self._action_space = spaces.Discrete(4)  # STOP and the three moves; looking is the task's business
        self.draws = True
        """Whether steps and resets draw frames; without, observations hold none."""
        self._collided = False
        self._tilt_deg = 0.0
        self._position = np.zeros(3, dtype=np.float32)
        self._rotation = np.array([0, 0, 0, 1], dtype=np.float32)
        self._assets: SceneAssets | None = None
        self._pathfinder: PathFinder | None = None
        self.reconfigure(config)

    def reconfigure(self, config: Any, episode: Any = None) -> None:
        """Adopt a configuration; the scene is loaded anew only if it changed."""
        self.habitat_config = config
        # Looked up once: reading a configuration node costs more than the step itself.
        self._motion = (
            float(config.forward_step_size),
            float(config.turn_angle),
            bool(config.habitat_sim_v0.allow_sliding),
        )
        path = Path(config.scene)
        if self._assets is None or self._assets.path != path:
            self._assets = SceneAssets(path)
            self._pathfinder = self._assets.pathfinder(body_settings(get_agent_config(config)))
        self._place_at_start()

    @property
    def sensor_suite(self) -> SensorSuite:
        """habitat-lab's sensors of this agent."""
        return self._sensor_suite

    @property
    def action_space(self) -> Any:
        return self._action_space

    @property
    def pathfinder(self) -> PathFinder:
        """Queries on the navmesh of the present scene."""
        assert self._pathfinder is not None
        return self._pathfinder

    @property
    def previous_step_collided(self) -> bool:
        """Whether the last action was stopped short by an obstacle (a property: habitat-lab reads it so)."""
        return self._collided

    def reset(self) -> Observations:
        self._collided = False
        self._tilt_deg = 0.0
        self._place_at_start()
        return self._observe()

    def step(self, action: int | None) -> Observations:
        """Do an action (None or STOP: stay) and observe."""
        if action is not None and action != Action.STOP:
            self._position, self._rotation, self._collided = advance(
                self.pathfinder, self._position, self._rotation, int(action), *self._motion
            )
        return self._observe()

    def tilt(self, degrees: float) -> None:
        """Tilt all cameras about their own x axis, upwards if positive, until the next reset."""
        self._tilt_deg += degrees

    def step_physics(self, delta: float) -> None:
        """Static scenes have no physics to advance; habitat-lab's task calls this after every action."""

    def seed(self, seed: int) -> None:
        self.pathfinder.seed(seed)

    def close(self, destroy: bool = True) -> None:
        self._assets = None
        self._pathfinder = None

    def render(self, mode: str = "rgb") -> NDArray[Any]:
        """Observation of the sensor whose uuid is `mode`."""
        frame: NDArray[Any] = self._observe()[mode]
        return frame

    def get_agent(self, agent_id: int) -> Any:
        """The agent as habitat-lab's map measure wants it: an object with `state` and `get_state()`."""
        return SimpleNamespace(state=self.get_agent_state(agent_id), get_state=self.get_agent_state)

    def get_agent_state(self, agent_id: int = 0) -> AgentState:
        """Position (3,) in meters and rotation of the agent's body."""
        x, y, z, w = (float(value) for value in self._rotation)
        return AgentState(self._position.copy(), quaternion.quaternion(w, x, y, z))

    def set_agent_state(
        self, position: Sequence[float], rotation: Any, agent_id: int = 0, reset_sensors: bool = True
    ) -> bool:
        """Put the body at a pose, without snapping it to the navmesh. `rotation`: (x, y, z, w) or a quaternion."""
        if isinstance(rotation, quaternion.quaternion):
            rotation = [rotation.x, rotation.y, rotation.z, rotation.w]
        self._position = np.array(position, dtype=np.float32)
        self._rotation = np.array(rotation, dtype=np.float32)
        return True

    def get_observations_at(
        self,
        position: Sequence[float] | None = None,
        rotation: Any = None,
        keep_agent_at_new_pose: bool = False,
    ) -> Observations:
        """What the sensors see from another pose; None: from the present one."""
        before = (self._position, self._rotation)
        if position is not None and rotation is not None:
            self.set_agent_state(position, rotation)
        observations = self._observe()
        if not keep_agent_at_new_pose:
            self._position, self._rotation = before
        return observations

    def geodesic_distance(self, position_a: Any, position_b: Any, episode: Any = None) -> float:
        """Meters from a point to the nearest of one or several points; inf without a path."""
        return self.pathfinder.geodesic_distance(position_a, np.atleast_2d(np.asarray(position_b, np.float32)))

    def get_straight_shortest_path_points(self, position_a: Any, position_b: Any) -> list[NDArray[np.float32]]:
        return list(self.pathfinder.find_path(position_a, position_b).points)

    def sample_navigable_point(self) -> list[float]:
        return [float(value) for value in self.pathfinder.get_random_navigable_point()]

    def is_navigable(self, point: Any) -> bool:
        return self.pathfinder.is_navigable(point)

    def distance_to_closest_obstacle(self, position: Any, max_search_radius: float = 2.0) -> float:
        return self.pathfinder.distance_to_closest_obstacle(position, max_search_radius)

    @property
    def up_vector(self) -> NDArray[np.float64]:
        return np.array([0.0, 1.0, 0.0])

    @property
    def forward_vector(self) -> NDArray[np.float64]:
        return np.array([0.0, 0.0, -1.0])

    def _place_at_start(self) -> None:
        agent = get_agent_config(self.habitat_config)
        if agent.is_set_start_state:
            self.set_agent_state(agent.start_position, agent.start_rotation)

    def _observe(self) -> Observations:
        return self._sensor_suite.get_observations(self._render_frames()) if self.draws else Observations({})

    def _render_frames(self) -> dict[str, NDArray[Any]]:
        """Render every camera once, however many sensors share it."""
        frames: dict[str, NDArray[Any]] = {}
        for mount, sensors in self._mounts.items():
            assert self._assets is not None
            position, rotation = _camera_pose(self._position, self._rotation, mount, self._tilt_deg)
            wants_rgb = any(isinstance(sensor, RGBSensor) for sensor in sensors)
            wants_depth = any(isinstance(sensor, DepthSensor) for sensor in sensors)
            frame = self._assets.renderer.render_from(
                mount.size, mount.hfov, position, rotation, rgb=wants_rgb, depth=wants_depth
            )
            for sensor in sensors:
                image = frame.rgb if isinstance(sensor, RGBSensor) else frame.depth
                assert image is not None
                frames[sensor.uuid] = image
        return frames


def body_settings(agent_config: Any) -> NavMeshSettings:
    """Navmesh settings for the body in a habitat-lab agent configuration."""
    return NavMeshSettings(
        agent_height=agent_config.height,
        agent_radius=agent_config.radius,
        agent_max_climb=agent_config.max_climb,
        agent_max_slope=agent_config.max_slope,
    )


def _make_sensor(config: Any) -> Sensor:
    if config.type not in _SENSORS:
        raise UsageError(
            f"sensor type {config.type!r}: the embedded simulator renders {', '.join(sorted(_SENSORS))}; "
            "other sensors need habitat-sim"
        )
    return _SENSORS[config.type](config=config)


def _mount(config: Any) -> _Mount:
    offset, euler = (tuple(float(value) for value in node) for node in (config.position, config.orientation))
    return _Mount((config.height, config.width), float(config.hfov), offset, euler)


def _camera_pose(
    position: NDArray[np.float32], rotation: NDArray[np.float32], mount: _Mount, tilt_deg: float
) -> tuple[Vec3, Quaternion]:
    """World pose of a mounted sensor that is tilted about its own x axis."""
    body = quaternion.quaternion(*(float(rotation[i]) for i in (3, 0, 1, 2)))
    world = body * _turned(mount.euler) * _turned((math.radians(tilt_deg), 0.0, 0.0))
    x, y, z = position.astype(np.float64) + quaternion.rotate_vectors(body, np.array(mount.offset))
    return (float(x), float(y), float(z)), (world.x, world.y, world.z, world.w)


@lru_cache(maxsize=64)
def _turned(euler: tuple[float, ...]) -> Any:
    """Quaternion of turns about x, then y, then z by these angles in radians."""
    turned = quaternion.one
    for axis, angle in zip(np.eye(3), euler, strict=True):
        turned = quaternion.from_rotation_vector(axis * angle) * turned
    return turned
