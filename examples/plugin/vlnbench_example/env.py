"""The environment at half the brightness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from envs.habitat_env import HabitatEnv
from vlnbench.interfaces import Action, Episode, Observation


class DimEnv(HabitatEnv):
    """The same scenes at half the brightness."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.simulator += "-dim"  # part of a run's identity: its rows are not those of the bright scenes

    def reset(self, episode: Episode) -> Observation:
        return _dim(super().reset(episode))

    def step(self, action: Action) -> Observation:
        return _dim(super().step(action))


def _dim(observation: Observation) -> Observation:
    return observation if observation.rgb is None else replace(observation, rgb=observation.rgb >> np.uint8(1))
