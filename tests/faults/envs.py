"""Environments that a fault befalls while they run."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import numpy as np

from envs.habitat_env import HabitatEnv
from tests.faulty import FaultyEnv
from vlnbench.interfaces import Camera, Embodiment, Episode, Observation


class Watched(HabitatEnv):
    """The real environment; when its first episode begins, FAULT_HOW happens to the scene FAULT_SCENE."""

    def reset(self, episode: Episode) -> Observation:
        how, scene = os.environ.pop("FAULT_HOW", ""), os.environ.get("FAULT_SCENE", "")
        if how and episode.scene_id in scene:
            os.environ["FAULT_HOW"] = how  # it comes when another scene is open
        elif how == "deleted":
            Path(scene).unlink()
        elif how == "cut":
            whole = Path(scene).read_bytes()
            Path(scene).write_bytes(whole[: len(whole) // 2])
        return super().reset(episode)


class Jumping(FaultyEnv):
    """A plane on a machine whose clock goes FAULT_JUMP seconds ahead every ten readings, or back."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        _jump(float(os.environ["FAULT_JUMP"]))


def _jump(seconds: float) -> None:
    """Replace the clock of this process: `time.time` and the `datetime` of every module of vlnbench."""
    readings, real = iter(range(10**9)), time.time

    def back() -> float:
        return -seconds * (next(readings) // 10)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.fromtimestamp(real(), tz) - timedelta(seconds=back())

    time.time = lambda: real() - back()
    for name, module in list(sys.modules.items()):
        if name.startswith("vlnbench") and getattr(module, "datetime", None) is datetime:
            module.datetime = Clock  # type: ignore[attr-defined]


class Pictured(FaultyEnv):
    """A plane with pictures, of the body that a benchmark's agents are shown."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.embodiment = Embodiment(camera=Camera(width=64, height=48, hfov=79.0, height_m=1.25))

    def _observe(self) -> Observation:
        return replace(super()._observe(), rgb=np.full((48, 64, 3), self.count % 256, dtype=np.uint8))


def slow(*_: Any) -> FaultyEnv:
    """A plane on which a step takes a while."""
    return FaultyEnv(delay_s=float(os.environ.get("FAULT_DELAY", "0")))
