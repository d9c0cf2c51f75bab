"""The two simulators behind habitat-lab's interface, and how one is chosen."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from envs.habitat_lab import has_habitat_sim, import_habitat
from envs.scene_checks import check_positions, check_scene_files
from vlnbench.errors import UsageError, unknown
from vlnbench.interfaces import Action, Embodiment, Episode, Pose, Vec3
from vlnbench.util.loading import import_string
from vlnbench.util.plugins import plugins

SIMULATORS = {
    "embedded": "envs.embedded.backend:EmbeddedBackend",
    "habitat-sim": "envs.backends:HabitatSimBackend",
}
"""Import strings of backends by what `--sim` calls them: made with the number of a GPU, or None. Other
distributions add theirs by entry points of the group `vlnbench.simulators`."""

ORACLE_GOAL_RADIUS_M = 0.5
"""The oracle stops this close to a goal; VLN-CE's follower made the ground truth with the same radius."""


_QUIET = {"MAGNUM_LOG": "quiet", "HABITAT_SIM_LOG": "quiet", "GLOG_minloglevel": "2"}
"""habitat-sim reports every scene at length; errors are left. Whoever sets these variables is obeyed."""

_DEFAULT_EGL_DEVICE = -1


class Follower(Protocol):
    """Shortest-path follower of one episode."""

    def next_action(self, pose: Pose, goals: Sequence[Vec3]) -> Action: ...


class Backend(Protocol):
    """What differs between the simulators.

    `name` carries the version; `simulator_type` is habitat-lab's name of it, `look_types` those of its actions
    that tilt the cameras up and down. `gpu_device_id` is what habitat-lab's setting of that name should be.
    """

    name: str
    simulator_type: str
    look_types: tuple[str, str]
    gpu_device_id: int

    def load_ahead(self) -> None:
        """Load what the first use would load, before processes are forked that share it."""
        ...

    def prepare(self) -> Iterator[str]:
        """Do what is needed before the first use on this machine, yielding each step as it begins."""
        ...

    def check(self, scenes_dir: Path, episodes: Sequence[Episode], body: Embodiment) -> None:
        """Raise UsageError for the first scene or start position that cannot be used."""
        ...

    def follower(self, sim: Any, body: Embodiment, goal_radius_m: float) -> Follower:
        """A follower for one episode that stops within a geodesic distance of its goal."""
        ...

    def shrink(self, frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
        """As `vlnbench.interfaces.Shrinks.shrink`."""
        ...

    def without_frames(self, sim: Any) -> AbstractContextManager[None]:
        """Steps within need draw no frames; a simulator that cannot leave them out draws them all the same."""
        ...


def choose_backend(name: str, gpu: int | None = None) -> Backend:
    """habitat-sim where it is installed, the embedded simulator elsewhere, unless one is asked for by name.

    gpu: see `HabitatSimBackend`; the embedded simulator draws on the CPU. Raises UsageError for an unknown name,
    and where a simulator is not installed.
    """
    if name == "auto":
        name = "habitat-sim" if has_habitat_sim() else "embedded"
    added = {} if name in SIMULATORS else plugins("simulators", SIMULATORS)
    if name not in SIMULATORS and name not in added:
        raise UsageError("--sim: " + unknown("simulator", name, ["auto", *SIMULATORS, *added]))
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)  # before habitat-sim is imported, which reads them once
    import_habitat()
    backend: Backend = (added[name].load() if name in added else import_string(SIMULATORS[name]))(gpu)
    return backend


class HabitatSimBackend:
    """The real habitat-sim, through habitat-lab's wrapper.

    gpu: CUDA device to draw on, taken as it is; None: device 0 where a CUDA device is visible, otherwise -1, the
    default EGL device (a software renderer where there is no GPU). A device that does not exist makes habitat-sim
    end the process.
    """

    look_types = ("LookUpAction", "LookDownAction")

    def __init__(self, gpu: int | None = None) -> None:
        if not has_habitat_sim():
            raise UsageError(
                "--sim habitat-sim: habitat-sim is not installed; install it with conda or use --sim embedded"
            )
        self._habitat_sim = importlib.import_module("habitat_sim")
        self.simulator_type: str = importlib.import_module("envs.habitat_simulator").SIMULATOR_TYPE
        # Builds from source come without package metadata, so the module itself is asked.
        self.name = f"habitat-sim-{self._habitat_sim.__version__}"
        self.gpu_device_id = gpu if gpu is not None else 0 if cuda_is_visible() else _DEFAULT_EGL_DEVICE

    def load_ahead(self) -> None:
        """Nothing: a scene cannot be shared, and everything else is imported."""

    def prepare(self) -> Iterator[str]:
        """Nothing to do: it comes compiled."""
        return iter(())

    def check(self, scenes_dir: Path, episodes: Sequence[Episode], body: Embodiment) -> None:
        """As the embedded simulator's check, before native code sees a file.

        Start positions are compared with the shipped navmesh where it fits the body; habitat-sim builds another
        one when the scene is loaded, which a check before the run does not wait for.
        """
        check_container = importlib.import_module("envs.embedded.assets").check_container
        settings = importlib.import_module("envs.embedded.navmesh.tiles.settings").NavMeshSettings(
            agent_height=body.agent_height_m, agent_radius=body.agent_radius_m
        )
        read_navmesh = importlib.import_module("envs.embedded.navmesh.tiles.tile_file").read_navmesh
        for path, members in check_scene_files(scenes_dir, episodes).items():
            check_container(path)
            navmesh = path.with_suffix(".navmesh")
            if navmesh.is_file() and read_navmesh(navmesh)[1].matches(settings):
                pathfinder = self._habitat_sim.PathFinder()
                pathfinder.load_nav_mesh(str(navmesh))
                check_positions(path, members, pathfinder.snap_point)

    def follower(self, sim: Any, body: Embodiment, goal_radius_m: float) -> Follower:
        return _HabitatFollower(sim, goal_radius_m)

    def shrink(self, frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
        return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC))

    def without_frames(self, sim: Any) -> AbstractContextManager[None]:
        return nullcontext()


class _HabitatFollower:
    """habitat-lab's ShortestPathFollower, led to the nearest of several goals."""

    def __init__(self, sim: Any, goal_radius_m: float) -> None:
        follower = importlib.import_module("habitat.tasks.nav.shortest_path_follower").ShortestPathFollower
        self._sim = sim
        self._follower = follower(sim, goal_radius_m, return_one_hot=False)

    def next_action(self, pose: Pose, goals: Sequence[Vec3]) -> Action:
        nearest = min(goals, key=lambda goal: float(self._sim.geodesic_distance(pose.position, [goal])))
        return Action(int(self._follower.get_next_action(np.array(nearest))))


def cuda_is_visible(devices: Path = Path("/dev")) -> bool:
    """Whether this process may use a CUDA device, told from device files (`nvidia0` and so on in `devices`).

    torch would know too, but takes seconds and gigabytes to ask. `CUDA_VISIBLE_DEVICES` set to nothing or to -1
    hides all devices. `/proc/driver/nvidia` is not consulted: containers without a GPU show their host's.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return False
    return any(re.fullmatch(r"nvidia\d+", path.name) for path in devices.glob("nvidia*"))
