"""The contract between agents, environments and the benchmark core.

Conventions used everywhere in vlnbench: world frame y up, right-handed, meters; an agent with yaw 0 looks along
-z and positive yaw turns left; quaternions are (x, y, z, w), as in the VLN-CE episode files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Vec3 = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]
"""(x, y, z, w)."""

Scalar = str | int | float | bool | None
"""A value that JSON keeps as it is; numbers are finite."""

Sensor = Literal["rgb", "depth", "pose", "oracle_action"]
"""What an agent may ask for. `pose` is the simulator's true pose; `oracle_action` is the next action of a
shortest-path follower and makes an agent an oracle."""


class Action(IntEnum):
    """Discrete actions, numbered as in the VLN-CE ground-truth files. Looking exists only where a body tilts."""

    STOP = 0
    MOVE_FORWARD = 1
    TURN_LEFT = 2
    TURN_RIGHT = 3
    LOOK_UP = 4
    LOOK_DOWN = 5


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """One entry of a `*_gt.json.gz` file (VLN-CE).

    `locations` has one point more than there are forward actions and begins at the start position;
    `actions` ends with one STOP.
    """

    locations: tuple[Vec3, ...]
    actions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Episode:
    """One navigation task: where the agent starts, what it is told, where it should end.

    `scene_id` is relative to the scenes directory. `goals` holds goal positions in meters (world frame); it is
    empty for splits without public goals. `geodesic_distance` is the dataset's own value, never used by metrics.
    `instruction_id` is RxR's, by which its leaderboard names instructions.
    """

    episode_id: str
    trajectory_id: str
    scene_id: str
    start_position: Vec3
    start_rotation: Quaternion
    instruction: str
    instruction_tokens: tuple[int, ...] = ()
    language: str = "en"
    goals: tuple[Vec3, ...] = ()
    goal_radius: float = 3.0
    reference_path: tuple[Vec3, ...] = ()
    geodesic_distance: float | None = None
    ground_truth: GroundTruth | None = None
    instruction_id: str | None = None

    def for_agent(self) -> Episode:
        """The same episode without what an agent must not see: goals, paths, distances."""
        return replace(self, goals=(), reference_path=(), geodesic_distance=None, ground_truth=None)


@dataclass(frozen=True, slots=True)
class Pose:
    """Agent body in the world frame: `position` on the floor in meters, `rotation` as (x, y, z, w)."""

    position: Vec3
    rotation: Quaternion

    @property
    def yaw(self) -> float:
        """Heading about +y in radians, in (-pi, pi], positive to the left of -z."""
        yaw = 2.0 * math.atan2(self.rotation[1], self.rotation[3])
        return math.remainder(yaw, 2.0 * math.pi)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment reports after a reset or a step. Sensors that were not asked for are None.

    rgb: uint8, (height, width, 3). depth: float32, (height, width), meters along the optical axis, 0 where
    nothing is hit. `pose`, `collided` and `oracle_action` are simulator truth: see `for_agent`.
    """

    instruction: str
    step: int
    rgb: NDArray[np.uint8] | None = None
    depth: NDArray[np.float32] | None = None
    pose: Pose | None = None
    collided: bool = False
    oracle_action: Action | None = None

    def for_agent(self, sensors: frozenset[Sensor]) -> Observation:
        """The part of the observation that an agent which declared `sensors` may see."""
        return replace(
            self,
            rgb=self.rgb if "rgb" in sensors else None,
            depth=self.depth if "depth" in sensors else None,
            pose=self.pose if "pose" in sensors else None,
            collided=False,
            oracle_action=self.oracle_action if "oracle_action" in sensors else None,
        )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What an agent did in one episode.

    poses: T + 1 poses, the reset pose first. actions: T actions. collided: T flags, one per action.
    goal_distances: T + 1 geodesic distances to the nearest goal in meters, inf where there is no path; empty
    where the episode has no goals.
    """

    poses: tuple[Pose, ...]
    actions: tuple[Action, ...]
    collided: tuple[bool, ...]
    goal_distances: tuple[float, ...] = ()

    @property
    def positions(self) -> NDArray[np.float64]:
        """(T + 1, 3) positions in meters."""
        import numpy as np  # late, so that options can speak of what is here without it

        return np.array([pose.position for pose in self.poses], dtype=np.float64).reshape(-1, 3)

    @property
    def stopped(self) -> bool:
        """Whether the agent ended the episode itself."""
        return bool(self.actions) and self.actions[-1] == Action.STOP


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model was asked and answered; see `traits.TellsAnswers`. None where that is not known.

    text: as the model wrote it. actions: what was read from it; empty where the agent now does them.
    unparsable: nothing could be read from it, and the agent does something else. note: why not, or what else a
    reader should know. prompt_tokens: all that the model read, with the embeddings of images. images: frames among
    that. answer_tokens: how long the text is. log_probability: of the text by the model, natural logarithm.
    """

    text: str = ""
    actions: Sequence[Action] = ()
    unparsable: bool = False
    note: str = ""
    prompt_tokens: int | None = None
    images: int | None = None
    answer_tokens: int | None = None
    log_probability: float | None = None


@dataclass(frozen=True, slots=True)
class Camera:
    """A pinhole camera on the agent body.

    Size in pixels, `hfov` in degrees, `height_m` above the floor point, `pitch_deg` positive upwards.
    """

    width: int
    height: int
    hfov: float
    height_m: float
    pitch_deg: float = 0.0


@dataclass(frozen=True, slots=True)
class Embodiment:
    """The agent's body and sensors, as a benchmark prescribes them and an environment realizes them.

    Heights, radius and steps in meters, turns in degrees. `camera` sees RGB, and depth too unless `depth_camera`
    says otherwise. Depth is clipped to `depth_range_m`; pixels where nothing is hit are clipped with the rest, as
    habitat-lab does. `tilt_deg` is how far LOOK_UP and LOOK_DOWN tilt the cameras; None: the body cannot look.
    """

    camera: Camera
    depth_camera: Camera | None = None
    depth_range_m: tuple[float, float] = (0.0, 10.0)
    agent_height_m: float = 1.5
    agent_radius_m: float = 0.1
    forward_m: float = 0.25
    turn_deg: float = 15.0
    tilt_deg: float | None = None
    allow_sliding: bool = True


@dataclass(frozen=True, slots=True)
class Conventions:
    """What an agent was trained for and cannot do without. None means "any"."""

    width: int | None = None
    height: int | None = None
    hfov: float | None = None
    camera_height_m: float | None = None
    forward_m: float | None = None
    turn_deg: float | None = None

    def conflicts(self, body: Embodiment) -> dict[str, tuple[float, float]]:
        """Fields that `body` does not meet: name -> (expected by the agent, offered by the body)."""
        offered: dict[str, float] = {
            "width": body.camera.width,
            "height": body.camera.height,
            "hfov": body.camera.hfov,
            "camera_height_m": body.camera.height_m,
            "forward_m": body.forward_m,
            "turn_deg": body.turn_deg,
        }
        wanted = {name: getattr(self, name) for name in offered}
        return {
            name: (value, offered[name])
            for name, value in wanted.items()
            if value is not None and not math.isclose(value, offered[name])
        }


@dataclass(frozen=True, slots=True)
class TopDownMap:
    """Navigable area seen from above: `navigable[row, column]`, rows along +z, columns along +x.

    Cell (0, 0) lies at world (x, z) = `origin`; cells are `meters_per_pixel` wide.
    """

    navigable: NDArray[np.bool_]
    origin: tuple[float, float]
    meters_per_pixel: float


@dataclass(frozen=True, slots=True)
class StandsFor:
    """The agent behind one that only passes on: what a run of it is recorded as.

    name and code: as `--agent` and the digest of the code would be if it ran here. place: where it runs, for the
    record; it does not change results.
    """

    name: str
    code: str | None
    place: Mapping[str, str]


@runtime_checkable
class Agent(Protocol):
    """Drives many episodes at once, one per slot.

    `sensors` are what it looks at, nothing else is rendered for it. `privileged` agents (oracles, replays) see
    the whole episode; their results are labeled. `expects` is compared with the benchmark before a run.
    `identity` holds whatever beside the name decides how it acts (checkpoint hash, precision, temperature);
    numbers and booleans stay what they are. What an agent may have beyond this are the traits of
    `vlnbench.traits`.
    """

    sensors: frozenset[Sensor]
    privileged: bool
    expects: Conventions

    @property
    def identity(self) -> Mapping[str, Scalar]:
        """What decides how it acts, by name."""
        ...

    def reset(self, slot: int, episode: Episode, seed: int) -> None:
        """Begin an episode in a slot. `seed` depends on run seed and episode only."""
        ...

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """One action for every slot in `observations`."""
        ...

    def close(self) -> None:
        """Free devices and files. Safe to call twice."""
        ...


@runtime_checkable
class Env(Protocol):
    """One simulator holding one episode at a time.

    `simulator` names it with its version: results of different simulators are not the same thing.
    """

    embodiment: Embodiment
    simulator: str

    def reset(self, episode: Episode) -> Observation:
        """Put the agent at the start of an episode; `step` of the observation is 0."""
        ...

    def step(self, action: Action) -> Observation:
        """Do one action. STOP leaves the agent where it is and ends the episode."""
        ...

    def geodesic_distance(self, position: Vec3, goals: Sequence[Vec3]) -> float:
        """Shortest-path length in meters to the nearest of `goals` on the current scene; inf without a path."""
        ...

    def render(self, pose: Pose) -> NDArray[np.uint8]:
        """RGB of the current scene seen from a pose, uint8 (height, width, 3); the agent stays where it is."""
        ...

    def top_down_map(self, height: float, meters_per_pixel: float = 0.05) -> TopDownMap:
        """Navigable area of the current scene within half a meter of a floor height (world y, meters)."""
        ...

    def prepare(self) -> Iterator[str]:
        """Do what is needed before the first use on this machine (compiling, say); yields each step as it begins.

        Yields nothing where nothing is to be done.
        """
        ...

    def check(self, episodes: Sequence[Episode]) -> None:
        """Raise UsageError for the first scene or start position that cannot be used; costs no rendering."""
        ...

    def close(self) -> None:
        """Release the simulator. Safe to call twice."""
        ...
