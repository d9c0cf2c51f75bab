from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.habitat_env import HabitatEnv
from tests.envs.simulators import SMALL
from vlnbench.conformance import EnvConformance
from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.interfaces import Action, Embodiment, Env, Episode, Observation


class Wrong:
    """A correct environment, of which one thing is changed by a class derived from it."""

    def __init__(self, env: Env) -> None:
        self.env, self.embodiment, self.simulator = env, env.embodiment, env.simulator
        self.last: Observation | None = None
        # From Python 3.12 on `isinstance` of a protocol asks no `__getattr__`.
        for name in ("geodesic_distance", "render", "top_down_map", "prepare", "check", "close"):
            if not hasattr(type(self), name):
                setattr(self, name, getattr(env, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, episode: Episode) -> Observation:
        self.last = None
        return self._shown(self.env.reset(episode))

    def step(self, action: Action) -> Observation:
        return self._shown(self.env.step(action))

    def _shown(self, observation: Observation) -> Observation:
        before, self.last = self.last, observation
        return self.change(observation, before or observation)

    def change(self, now: Observation, before: Observation) -> Observation:
        return now


class Decimeters(Wrong):
    def change(self, now: Observation, before: Observation) -> Observation:
        return replace(now, depth=now.depth / 10)  # type: ignore[operator]


class BlueFirst(Wrong):
    def change(self, now: Observation, before: Observation) -> Observation:
        return replace(now, rgb=now.rgb[..., ::-1])  # type: ignore[index]


class OneBuffer(Wrong):
    buffer: Any = None

    def change(self, now: Observation, before: Observation) -> Observation:
        self.buffer = now.rgb.copy() if self.buffer is None else self.buffer  # type: ignore[union-attr]
        self.buffer[:] = now.rgb
        return replace(now, rgb=self.buffer)


class Late(Wrong):
    def change(self, now: Observation, before: Observation) -> Observation:
        return replace(now, rgb=before.rgb, depth=before.depth)


class NeverCollides(Wrong):
    def change(self, now: Observation, before: Observation) -> Observation:
        return replace(now, collided=False)


class Speechless(Wrong):
    def change(self, now: Observation, before: Observation) -> Observation:
        return replace(now, instruction=now.instruction if now.step == 0 else "")


class Uncounted(Wrong):
    def change(self, now: Observation, before: Observation) -> Observation:
        return replace(now, step=0)


class Mirrored(Wrong):
    def step(self, action: Action) -> Observation:
        other = {Action.TURN_LEFT: Action.TURN_RIGHT, Action.TURN_RIGHT: Action.TURN_LEFT}
        return super().step(other.get(action, action))


class Unsure(Wrong):
    def change(self, now: Observation, before: Observation) -> Observation:
        noise = np.random.default_rng().integers(0, 2, now.rgb.shape, np.uint8)  # type: ignore[union-attr]
        return replace(now, rgb=now.rgb // 2 + noise)  # type: ignore[operator]


class Millimeters(Wrong):
    def change(self, now: Observation, before: Observation) -> Observation:
        return replace(now, depth=(now.depth * 1000).astype(np.uint16))  # type: ignore[operator]


WRONG = (
    Decimeters,
    OneBuffer,
    Late,
    NeverCollides,
    Speechless,
    Uncounted,
    Mirrored,
    Unsure,
    Millimeters,
    BlueFirst,
)


def failures(kind: type, root: Path, body: Embodiment = SMALL) -> Iterator[str]:
    """The conformance tests that an environment on generated houses fails."""
    episode = load_split(get_benchmark("houses-r2r"), "val_unseen", root).episodes[0]

    def make(_: object) -> Any:
        return kind(HabitatEnv(body, root / "scene_datasets", frozenset({"rgb", "depth"}), "embedded"))

    tests: Any = type("Tests", (EnvConformance,), {"make_env": make, "make_episode": lambda self: episode})()
    for name in dir(tests):
        if name.startswith("test_"):
            try:
                getattr(tests, name)()
            except AssertionError:
                yield name


def test_a_correct_environment_passes(houses: Path) -> None:
    assert list(failures(Wrong, houses)) == []


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_environment_is_found(houses: Path, kind: type) -> None:
    assert any(failures(kind, houses))
