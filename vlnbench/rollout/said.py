"""What agents, environments and servers say, as plain values that a row can hold, or one line on what cannot be.

Whatever implements a protocol may return anything: numbers of NumPy and PyTorch, None, NaN, what never ends. A run
that was written can always be read, added up and compared, so that this is looked at before anything is kept.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from itertools import islice
from typing import Any, SupportsFloat

import numpy as np

from vlnbench.interfaces import Action, Agent, Conventions, Embodiment, Env, Observation, Pose, Scalar
from vlnbench.util.visible import one_line, shown

LARGEST = 1e15
"""Of a number; sums of a million of them are finite, and whole."""
MOST_COUNTS, LONGEST_NAME = 100, 200
LONGEST_VALUE = 10_000
"""Characters of a value of an agent's identity, which may be a prompt."""
MOST_AHEAD, MOST_STEPS = 10_000, 10_000
"""Actions without looking, and steps to get ready."""
MOST_LINES, LONGEST_LINE = 40, 500
"""Of a description."""

_RGB, _DEPTH = np.dtype(np.uint8), np.dtype(np.float32)
_FLOATS = {float}


def number(value: Any, what: str) -> float:
    """A finite number, whole ones as int. what: who says it of what. Raises ValueError for anything else."""
    found: float | None = value if type(value) is float else None
    if found is None:
        with suppress(Exception):  # what converts itself may raise anything
            found = operator.index(value) + 0  # a truth value becomes 0 or 1
    if found is None and isinstance(value, SupportsFloat):
        with suppress(Exception):
            found = float(value)
    if found is None or not abs(found) <= LARGEST:
        raise ValueError(f"{what} {shown(value)}: expected a finite number of at most 1e15")
    return found


def truth(value: Any, what: str) -> bool:
    """A truth value. Raises ValueError for what is neither that nor 0 or 1."""
    found = value if type(value) is bool else number(value, what)
    if found not in (0, 1):
        raise ValueError(f"{what} {shown(value)}: expected a truth value")
    return bool(found)


def name(value: Any, what: str) -> str:
    """A name. what: who calls what by it. Raises ValueError for what no table could show."""
    found = str.__str__(value) if isinstance(value, str) else ""
    if not 0 < len(found) <= LONGEST_NAME or not found.isprintable():
        raise ValueError(f"{what} {shown(value)}: expected printable text of 1 to {LONGEST_NAME} characters")
    return found


def counts(given: Any) -> dict[str, float]:
    """An agent's report: finite numbers by name. Raises ValueError naming the entry that cannot be."""
    found = _entries(given, "the agent's report")
    return {key: number(value, f"the agent's report: {key}") for key, value in found.items()}


def scalars(given: Any, what: str) -> dict[str, Scalar]:
    """Values by name, as an agent's identity has them. Raises ValueError naming the entry that cannot be."""
    return {key: _scalar(value, f"{what}: {key}") for key, value in _entries(given, what).items()}


def _entries(given: Any, what: str) -> dict[str, Any]:
    """The entries of a mapping, whose names are names."""
    names = list(islice(given, MOST_COUNTS + 1)) if isinstance(given, Mapping) else [None] * (MOST_COUNTS + 1)
    if len(names) > MOST_COUNTS:
        raise ValueError(f"{what} {shown(given)}: expected a mapping of at most {MOST_COUNTS} names")
    return {name(each, f"{what} names"): given[each] for each in names}


def _scalar(value: Any, what: str) -> Scalar:
    if value is None or type(value) is bool:
        return value
    if isinstance(value, str):
        found = str.__str__(value)
        if len(found) <= LONGEST_VALUE and found == found.encode(errors="replace").decode():
            return found
        raise ValueError(f"{what} {shown(value)}: expected text of at most {LONGEST_VALUE} characters")
    return bool(value) if isinstance(value, np.bool_) else number(value, what)


def lines(given: Any, what: str) -> str:
    """What is to be shown of a text. what: whose. Raises ValueError for what is no text."""
    if not isinstance(given, str):
        raise ValueError(f"{what} {shown(given)}: expected text")
    found = str.__str__(given)[: MOST_LINES * LONGEST_LINE].splitlines()
    return "\n".join(one_line(line, LONGEST_LINE) for line in found[:MOST_LINES])


def conventions(given: Any, what: str) -> Conventions:
    """What an agent was trained for, in plain numbers. Raises ValueError naming the field that is none."""
    if not isinstance(given, Conventions):
        raise ValueError(f"{what} {shown(given)}: expected vlnbench.interfaces.Conventions")
    found = {field.name: getattr(given, field.name) for field in fields(Conventions)}
    plain: dict[str, Any] = {
        key: None if value is None else number(value, f"{what}.{key}") for key, value in found.items()
    }
    return Conventions(**plain)


def answers(agent: Agent, observations: Mapping[int, Observation]) -> Mapping[int, object]:
    """What an agent answers to observations, by slot. Raises ValueError where one is without an answer."""
    given: Any = agent.act(observations)
    if type(given) is not dict and not isinstance(given, Mapping):
        raise ValueError(f"the agent's act returned {shown(given)}: expected a dict of slot -> action")
    if not observations.keys() <= given.keys():
        missing = sorted(observations.keys() - given.keys())
        raise ValueError(f"the agent gave no action for slots {missing}")
    return given


def action(given: object) -> Action:
    """What an agent returned, as an action. Raises ValueError for what is none."""
    if type(given) is Action:
        return given
    found = given
    with suppress(Exception):
        found = operator.index(given)  # type: ignore[arg-type]  # numbers of NumPy and PyTorch have one
    try:
        return Action(found)  # type: ignore[arg-type]
    except Exception:
        names = ", ".join(f"{each.name} ({each.value})" for each in Action)
        raise ValueError(
            f"the agent returned {shown(given)} for an action; expected one of vlnbench.interfaces.Action: {names}"
        ) from None


def ahead(given: Any) -> list[Action]:
    """Actions that an agent does without looking. Raises ValueError for what are none, or never end."""
    found = list(islice(given, MOST_AHEAD + 1)) if isinstance(given, Iterable) else None
    if found is None or len(found) > MOST_AHEAD:
        raise ValueError(f"the agent's ahead returned {shown(given)}: expected at most {MOST_AHEAD} actions")
    return list(map(action, found))


def observation(given: Any) -> tuple[Observation, Pose]:
    """What an environment returned, in plain values, and its pose. Raises ValueError for what is none.

    The same object where all of it is plain.
    """
    if not isinstance(given, Observation):
        raise ValueError(f"the environment returned {shown(given)}: expected vlnbench.interfaces.Observation")
    changed: dict[str, Any] = {}
    if type(given.instruction) is not str:
        if not isinstance(given.instruction, str):
            raise ValueError(f"the environment's instruction {shown(given.instruction)}: expected text")
        changed["instruction"] = str.__str__(given.instruction)
    if type(given.step) is not int:
        changed["step"] = int(number(given.step, "the environment's step"))
    if type(given.collided) is not bool:
        changed["collided"] = truth(given.collided, "the environment's collided")
    if given.oracle_action is not None and type(given.oracle_action) is not Action:
        changed["oracle_action"] = _oracle(given.oracle_action)
    if given.rgb is not None:
        _check_frame("rgb", given.rgb, _RGB, 3)
    if given.depth is not None:
        _check_frame("depth", given.depth, _DEPTH, 2)
    found = pose(given)
    if found is not given.pose:
        changed["pose"] = found
    return replace(given, **changed) if changed else given, found


def _check_frame(name: str, given: Any, kind: np.dtype[Any], axes: int) -> None:
    if type(given) is not np.ndarray or given.dtype != kind or given.ndim != axes:
        raise ValueError(f"the environment's {name} {shown(given)}: expected an array of {kind}, {axes} axes")


def _oracle(given: Any) -> Action:
    try:
        return action(given)
    except ValueError:
        raise ValueError(f"the environment's oracle_action {shown(given)}: expected an Action") from None


def pose(observation: Observation) -> Pose:
    """The pose of an observation. Raises ValueError where the environment gave none, or what is none."""
    given = observation.pose
    if given is None:
        raise ValueError("the environment reported no pose; trajectories need one")
    if not isinstance(given, Pose):
        raise ValueError(f"the environment's pose {shown(given)}: expected vlnbench.interfaces.Pose")
    at, turned = given.position, given.rotation
    if type(at) is tuple and type(turned) is tuple and len(at) == 3 and len(turned) == 4:
        values = (*at, *turned)
        if {*map(type, values)} == _FLOATS and math.hypot(*values) <= LARGEST:  # not so with NaN
            return given
    x, y, z = _numbers(at, 3, "position")
    a, b, c, d = _numbers(turned, 4, "rotation")
    return Pose((x, y, z), (a, b, c, d))


def _numbers(given: Any, count: int, what: str) -> list[float]:
    found = list(islice(given, count + 1)) if isinstance(given, Iterable) else []
    if len(found) != count:
        raise ValueError(f"the environment's {what} {shown(given)}: expected {count} numbers")
    return [float(number(each, f"the environment's {what}")) for each in found]


def distance(value: Any) -> float:
    """A geodesic distance in meters, infinite where there is no way. Raises ValueError for what is none."""
    if type(value) is float and 0.0 <= value <= LARGEST:
        return value
    what = "the environment's distance to the goal"
    found = math.inf if type(value) is float and value == math.inf else _reached(value, what)
    if found < 0:
        raise ValueError(f"{what} {found}: expected 0 or more")
    return float(found)


def _reached(value: Any, what: str) -> float:
    if isinstance(value, SupportsFloat):
        with suppress(Exception):
            if float(value) == math.inf:
                return math.inf
    return number(value, what)


def simulator(env: Env, code: str) -> str:
    """The name of an environment's simulator, with its code (`loading.own_code`) if it is a user's own: one that
    derives from a shipped one has its simulator's name.

    Raises ValueError for what is no name, and for a body that is none.
    """
    if not isinstance(env.embodiment, Embodiment):
        raise ValueError(
            f"the environment's embodiment {shown(env.embodiment)}: expected vlnbench.interfaces.Embodiment"
        )
    told = name(env.simulator, "the environment's simulator")
    return f"{told}, {code}" if code else told


def steps(env: Env) -> Iterator[str]:
    """The steps by which an environment gets ready, as they begin. Raises ValueError for what are none."""
    given: Any = env.prepare()
    if not isinstance(given, Iterable):
        raise ValueError(f"the environment's prepare returned {shown(given)}: expected steps")
    for count, step in enumerate(given):
        if count == MOST_STEPS:
            raise ValueError(f"the environment's prepare does not end: more than {MOST_STEPS} steps")
        yield one_line(step)
