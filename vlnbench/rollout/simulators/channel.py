"""What the main process and its simulator processes send each other.

Messages travel through a pipe. Frames do not: each simulator process writes its own into memory that it shares
with the main process, which copies them out, because agents may keep what they were shown.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlnbench.interfaces import Action, Embodiment, Episode, Observation, Pose, Quaternion, Sensor, Vec3
from vlnbench.rollout.episode import Rollout

Shrink = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Setup:
    """To a simulator process: make an environment. factory: import string; sensors: what to send; rgb_size: as of
    `Resizes`, None for an agent that wants frames as they are."""

    factory: str
    arguments: tuple[Any, ...]
    sensors: frozenset[Sensor]
    rgb_size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Preparing:
    """Before `Ready`: the environment is being made ready for its first use, by this step."""

    step: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The answer to `Setup`."""

    simulator: str
    embodiment: Embodiment


@dataclass(frozen=True, slots=True)
class Check:
    """To a simulator process: check these episodes (`Env.check`)."""

    episodes: Sequence[Episode]


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer to `Check`."""


class Observed(NamedTuple):
    """An `Observation` without its frames, and which of them lie in shared memory; rgb: its (height, width).

    Answered by an action, or by None: the episode is given up, and no answer follows. A tuple, because one is sent
    with every step, and dataclasses with slots are slow to unpickle.
    """

    instruction: str
    step: int
    pose: tuple[Vec3, Quaternion] | None
    collided: bool
    oracle_action: Action | None
    rgb: tuple[int, int] | None
    depth: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """What the agent is only to see, for somebody else acts: answered by True, or by None as above."""

    observed: Any


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an episode."""

    rollout: Rollout


@dataclass(frozen=True, slots=True)
class Failed:
    """An exception ended what was asked for. usage: it was a UsageError."""

    reason: str
    detail: str
    usage: bool


def open_shared_memory() -> int:
    """Descriptor of memory that can be shared with a child process and vanishes with the last process using it.

    Not in /dev/shm: what is there outlives a killed process, and containers allow 64 MB of it.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("vlnbench-frames")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Frames:
    """RGB and depth of one simulator in shared memory: `put` on its side, `take` on the other."""

    def __init__(self, descriptor: int, body: Embodiment, sensors: frozenset[Sensor]) -> None:
        camera, depth_camera = body.camera, body.depth_camera or body.camera
        rgb_shape = (camera.height, camera.width, 3) if "rgb" in sensors else (0, 0, 3)
        depth_shape = (depth_camera.height, depth_camera.width) if "depth" in sensors else (0, 0)
        depth_size = 4 * depth_shape[0] * depth_shape[1]
        size = depth_size + math.prod(rgb_shape)
        os.ftruncate(descriptor, max(size, 1))
        memory = mmap.mmap(descriptor, max(size, 1))
        self._depth = np.frombuffer(memory, np.float32, depth_size // 4).reshape(depth_shape)
        self._rgb_shape = rgb_shape
        self._rgb = np.frombuffer(memory, np.uint8, size - depth_size, depth_size)

    def put(self, observation: Observation, shrink: Shrink | None = None) -> Observed:
        """Write the frames; shrink: makes RGB smaller before that.

        Raises ValueError if their shape or type is not the embodiment's.
        """
        rgb = observation.rgb
        if rgb is not None:
            _check("rgb", rgb, self._rgb.dtype, self._rgb_shape)
            rgb = shrink(rgb) if shrink else rgb
            self._rgb[: rgb.size].reshape(rgb.shape)[...] = rgb
        if observation.depth is not None:
            _check("depth", observation.depth, self._depth.dtype, self._depth.shape)
            self._depth[...] = observation.depth
        pose = observation.pose
        return Observed(
            observation.instruction,
            observation.step,
            None if pose is None else (pose.position, pose.rotation),
            observation.collided,
            observation.oracle_action,
            None if rgb is None else (rgb.shape[0], rgb.shape[1]),
            observation.depth is not None,
        )

    def take(self, message: Observed) -> Observation:
        """The observation with copies of its frames."""
        return Observation(
            message.instruction,
            message.step,
            self._rgb[: math.prod(message.rgb) * 3].reshape(*message.rgb, 3).copy() if message.rgb else None,
            self._depth.copy() if message.depth else None,
            None if message.pose is None else Pose(*message.pose),
            message.collided,
            message.oracle_action,
        )


def _check(name: str, frame: NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> None:
    if frame.dtype != dtype or frame.shape != shape:
        form, expected = f"{frame.dtype} {frame.shape}", f"{dtype} {shape}"
        raise ValueError(f"{name} is {form}; the embodiment of the environment says {expected}")
