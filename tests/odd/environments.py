"""Environments that are not what they should be. `tests.odd.environments:NAME` makes the one of that name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tests.fakes import PlaneEnv
from tests.odd.agents import ESCAPES, LONG, Hostile, Text, raises
from tests.odd.trial import FINE, REFUSED, ROWS, Case
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Observation, Pose

AT, TURNED = (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)


class Nowhere:
    """A body that stays None, whatever it is set to."""

    def __get__(self, env: Any, kind: Any) -> None:
        return None

    def __set__(self, env: Any, value: Any) -> None:
        pass


class _Plane(PlaneEnv):
    def __init__(self, *_: Any) -> None:
        super().__init__()


def steps(change: Callable[[Observation], Any]) -> dict[str, Any]:
    """An environment whose observations are changed from the first step on."""

    def step(self: PlaneEnv, action: Action) -> Any:
        return change(PlaneEnv.step(self, action))

    return {"step": step}


def sees(**changes: Any) -> dict[str, Any]:
    return steps(lambda seen: replace(seen, **changes))


def stands(position: Any = AT, rotation: Any = TURNED) -> dict[str, Any]:
    return sees(pose=Pose(position, rotation))


def far(value: Any) -> dict[str, Any]:
    return {"geodesic_distance": lambda self, position, goals: value}


def leaps() -> dict[str, Any]:
    """From one end of the world to the other at every step: each number is allowed, the path's length is not."""
    ends = itertools.cycle([(-1e15,) * 3, (1e15,) * 3])
    return steps(lambda seen: replace(seen, pose=Pose(next(ends), TURNED)))


def with_frames(self: PlaneEnv) -> Observation:
    return replace(PlaneEnv._observe(self), rgb=np.zeros((6, 8, 3), np.uint8))


ENV = "the environment"
ODD: dict[str, tuple[Case, dict[str, Any]]] = {
    # What it returns.
    "reset_none": (Case(ROWS, f"{ENV} returned None"), {"reset": lambda self, episode: None}),
    "reset_raises": (Case(ROWS, "ValueError: \\x1b"), {"reset": raises(ValueError(ESCAPES))}),
    "reset_raises_long": (Case(ROWS, "ValueError: ha ha"), {"reset": raises(ValueError(LONG))}),
    "reset_misused": (Case(REFUSED, "a.glb: gone"), {"reset": raises(UsageError("a.glb: gone"))}),
    "step_none": (Case(ROWS, f"{ENV} returned None"), steps(lambda seen: None)),
    "step_tuple": (Case(ROWS, f"{ENV} returned (Obs"), steps(lambda seen: (seen, 0.0, False, {}))),
    "step_hostile": (Case(ROWS, f"{ENV} returned"), steps(lambda seen: Hostile())),
    "step_half": (Case(ROWS, "OSError"), {"step": raises(OSError("\udce9"))}),
    "step_exits": (Case(ROWS, "3"), {"step": raises(SystemExit(3))}),
    "instruction_none": (Case(ROWS, f"{ENV}'s instruction None"), sees(instruction=None)),
    "instruction_own_class": (Case(FINE), sees(instruction=Text(ESCAPES))),
    "count_text": (Case(ROWS, f"{ENV}'s step 'a'"), sees(step="a")),
    "collided_two": (Case(ROWS, f"{ENV}'s collided"), sees(collided=np.zeros(2))),
    "collided_text": (Case(ROWS, f"{ENV}'s collided"), sees(collided=ESCAPES)),
    "collided_numpy": (Case(FINE), sees(collided=np.bool_(True))),
    "oracle_nine": (Case(ROWS, f"{ENV}'s oracle_action 9"), sees(oracle_action=9)),
    "rgb_list": (Case(ROWS, f"{ENV}'s rgb"), sees(rgb=[[1, 2, 3]])),
    "rgb_floats": (Case(ROWS, f"{ENV}'s rgb"), sees(rgb=np.zeros((6, 8, 3)))),
    "depth_flat": (Case(ROWS, f"{ENV}'s depth"), sees(depth=np.zeros(8, np.float32))),
    "pictures": (Case(FINE), {"_observe": with_frames}),
    # Where it stands.
    "pose_none": (Case(ROWS, "no pose"), sees(pose=None)),
    "pose_tuple": (Case(ROWS, f"{ENV}'s pose"), sees(pose=(AT, TURNED))),
    "position_nan": (Case(ROWS, f"{ENV}'s position nan"), stands((math.nan, 0.0, 0.0))),
    "position_large": (Case(ROWS, f"{ENV}'s position 1e+30"), stands((0.0, 1e30, 0.0))),
    "position_huge": (Case(ROWS, f"{ENV}'s position"), stands((0.0, 10**5000, 0.0))),
    "position_short": (Case(ROWS, f"{ENV}'s position"), stands((0.0, 0.0))),
    "position_endless": (Case(ROWS, f"{ENV}'s position"), stands(itertools.repeat(0.0))),
    "position_hostile": (Case(ROWS, f"{ENV}'s position"), stands((Hostile(), 0.0, 0.0))),
    "position_numpy": (Case(FINE), stands(np.zeros(3, np.float32))),
    "rotation_text": (Case(ROWS, f"{ENV}'s rotation"), stands(rotation="abcd")),
    "rotation_tensor": (Case(FINE), stands(rotation=torch.tensor(TURNED))),
    "path_too_long": (Case(ROWS, "scores.path_length", agent="tests.odd.agents:turns"), leaps() | far(2.0)),
    "distance_nan": (Case(ROWS, f"{ENV}'s distance"), far(math.nan)),
    "distance_less": (Case(ROWS, f"{ENV}'s distance"), far(-1.0)),
    "distance_text": (Case(ROWS, f"{ENV}'s distance"), far("inf")),
    "distance_none": (Case(ROWS, f"{ENV}'s distance"), far(None)),
    "distance_complex": (Case(ROWS, f"{ENV}'s distance"), far(1j)),
    "distance_infinite": (Case(FINE), far(np.float32("inf"))),
    # What it says of itself, and what becomes of it.
    "simulator_number": (Case(REFUSED, f"{ENV}'s simulator 3"), {"simulator": 3}),
    "simulator_long": (Case(REFUSED, f"{ENV}'s simulator"), {"simulator": LONG}),
    "simulator_escapes": (Case(REFUSED, f"{ENV}'s simulator"), {"simulator": ESCAPES}),
    "simulator_raises": (Case(REFUSED, "ValueError: no"), {"simulator": property(raises(ValueError("no")))}),
    "embodiment_none": (Case(REFUSED, f"{ENV}'s embodiment None"), {"embodiment": Nowhere()}),
    "prepare_none": (Case(REFUSED, f"{ENV}'s prepare returned None"), {"prepare": lambda self: None}),
    "prepare_endless": (Case(REFUSED, "prepare does not end"), {"prepare": lambda self: itertools.repeat("")}),
    "prepare_escapes": (Case(FINE), {"prepare": lambda self: iter([ESCAPES, 3, Hostile(), LONG])}),
    "prepare_raises": (Case(REFUSED, "ValueError: no"), {"prepare": raises(ValueError("no"))}),
    "check_raises": (Case(REFUSED, "ValueError: \\x1b"), {"check": raises(ValueError(ESCAPES))}),
    "check_exits": (Case(REFUSED, "cannot be used"), {"check": raises(SystemExit(3))}),
    "constructor_raises": (Case(REFUSED, "cannot be used"), {"__init__": raises(ValueError(LONG))}),
    "constructor_exits": (Case(REFUSED, "cannot be used"), {"__init__": raises(SystemExit(0))}),
    "constructor_other": (Case(REFUSED, "cannot be used"), {"__new__": lambda *_: Hostile()}),
    "close_raises": (Case(FINE), {"close": raises(ValueError(ESCAPES))}),
}  # fmt: skip


def __getattr__(name: str) -> type:  # what is imported from here
    if name not in ODD:
        raise AttributeError(name)
    return type(name, (_Plane,), {**ODD[name][1], "__module__": __name__})
