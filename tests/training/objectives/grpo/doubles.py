"""An environment whose frames a network can tell apart, and rewards that are easily told apart."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes import PlaneEnv
from vlnbench.data.benchmarks import VLM_BODY
from vlnbench.interfaces import Episode, Observation, Vec3
from vlnbench.training.objectives.grpo.rewards import Completion

ENDS_AT = "VLNBENCH_TEST_ENDS_AT"
"""Name of the variable with the folder that `ending` waits for."""
CUT_OFF = "8"
"""The episode whose goal cannot be reached."""


class ColorPlane(PlaneEnv):
    """A free plane whose frames change color with the heading and brightness with the place."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.embodiment = VLM_BODY

    def geodesic_distance(self, position: Vec3, goals: Sequence[Vec3]) -> float:
        return math.inf if self.episode.episode_id == CUT_OFF else super().geodesic_distance(position, goals)

    def reset(self, episode: Episode) -> Observation:
        self.episode = episode
        return super().reset(episode)

    def _observe(self) -> Observation:
        seen = super()._observe()
        color = (round(127 + 120 * math.sin(self.yaw)), round(127 + 120 * math.cos(self.yaw)), 40 + 4 * self.count)
        camera = self.embodiment.camera
        size = (camera.height, camera.width)
        return replace(seen, rgb=np.full((*size, 3), color, dtype=np.uint8), depth=np.full(size, 2.0, np.float32))


def actions(completion: Completion) -> float:
    """How many actions an answer or a walk has."""
    return float(len(completion.actions) if completion.walk is None else len(completion.walk.trajectory.actions))


def tokens(completion: Completion) -> float:
    """Something that differs between any two answers, drawn from what they are."""
    return float(hash((completion.actions, completion.expected)) % 97)


def ending(completion: Completion) -> float:
    """As `tokens` or `actions`; ends this process, as a kill does, once there is what the environment names."""
    if Path(os.environ.get(ENDS_AT) or os.devnull).is_dir():
        os.kill(os.getpid(), signal.SIGKILL)
    return tokens(completion) if completion.walk is None else actions(completion)


def constant(completion: Completion) -> float:
    return 0.5


def undefined(completion: Completion) -> float:
    return math.nan


def broken(completion: Completion) -> float:
    raise KeyError("speed")
