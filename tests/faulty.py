"""Environments and agents that break in chosen ways, made in worker processes by import string."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.base import EpisodeAgent
from tests.fakes import PlaneEnv
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Camera, Embodiment, Episode, Observation


def _raise(error: BaseException) -> None:
    raise error


FAULTS: dict[str, Callable[[], object]] = {
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "exit": lambda: (print("cannot create EGL context", file=sys.stderr, flush=True), os._exit(3)),
    "hang": lambda: time.sleep(1000),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": lambda: _raise(RuntimeError("the mesh has no faces")),
    "memory": lambda: _raise(MemoryError("4 GiB")),
    "usage": lambda: _raise(UsageError("scene.glb: gone")),
}


class FaultyEnv(PlaneEnv):
    """A free plane with a fault in the second step of chosen episodes; `delay_s` is how long a step takes.

    start: the fault of the constructor.
    """

    def __init__(self, faults: Mapping[str, str] | None = None, delay_s: float = 0.0, start: str = "") -> None:
        super().__init__()
        self._faults, self._delay_s = faults or {}, delay_s
        if start:
            FAULTS[start]()

    def step(self, action: Action) -> Observation:
        time.sleep(self._delay_s)
        if self.count == 1 and self.episode.episode_id in self._faults:
            FAULTS[self._faults[self.episode.episode_id]]()
        return super().step(action)


class PictureEnv(PlaneEnv):
    """A free plane whose frames hold the episode's number and the step in every pixel."""

    def __init__(self, width: int = 8, height: int = 6, wrong_from: int = 1000) -> None:
        super().__init__()
        depth = Camera(width=2 * width, height=height, hfov=90.0, height_m=1.25)
        self.embodiment = Embodiment(camera=replace(depth, width=width), depth_camera=depth)
        self._wrong_from = wrong_from

    def _observe(self) -> Observation:
        observation = super()._observe()
        camera, depth_camera = self.embodiment.camera, self.embodiment.depth_camera
        assert depth_camera is not None
        number = int(self.episode.episode_id)
        rgb = np.full((camera.height, camera.width, 3), (number, self.count, 7), dtype=np.uint8)
        depth = np.full((depth_camera.height, depth_camera.width), number + self.count / 100, dtype=np.float32)
        return replace(observation, rgb=rgb[:-1] if number >= self._wrong_from else rgb, depth=depth)


class ShrinkingEnv(PictureEnv):
    """One that resizes frames for agents."""

    def shrink(self, frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
        return np.zeros((height, width, 3), np.uint8)


class KeepsFrames(EpisodeAgent):
    """Walks ten steps and checks at the last one that every frame it was shown is still what it was."""

    sensors = frozenset({"rgb", "depth"})

    def begin(self, episode: Episode, seed: int) -> None:
        self._number, self._seen = int(episode.episode_id), []

    def act_one(self, observation: Observation) -> Action:
        self._seen.append((observation.rgb, observation.depth))
        if observation.step < 10:
            return Action.MOVE_FORWARD
        for step, (rgb, depth) in enumerate(self._seen):
            assert (rgb == (self._number, step, 7)).all()
            assert (depth == np.float32(self._number + step / 100)).all()
        return Action.STOP


class BreaksOnFive(EpisodeAgent):
    """Random steps until one of its episodes, number 5, breaks in the third."""

    def begin(self, episode: Episode, seed: int) -> None:
        self._number, self._random = episode.episode_id, np.random.default_rng(seed)

    def act_one(self, observation: Observation) -> Action:
        turn = Action(int(self._random.integers(1, 4)))
        if observation.step == 2 and self._number == "5":
            raise ArithmeticError("logits are NaN")
        return turn if observation.step < 20 else Action.STOP


def plane(*_: Any) -> FaultyEnv:
    """What the command line makes instead of a `HabitatEnv` in tests of whole runs."""
    faults = os.environ.get("FAULTS", "")
    return FaultyEnv(dict(pair.split("=") for pair in faults.split(",") if pair), 0.002)
