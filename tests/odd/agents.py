"""Agents that are not what they should be. `tests.odd.agents:NAME` makes the one of that name."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

from agents.scripted import RandomAgent
from tests.odd.trial import FINE, REFUSED, ROWS, Case
from vlnbench.errors import UsageError
from vlnbench.interfaces import Action, Conventions, Observation

ESCAPES = "\x1b]0;title\x07\x1b[31mred\r\n\x9b2J\x00\x7f\u202eback\u2066\udce9"
"""What moves a cursor, colors and renames, and half a character."""

LONG = "ha " * 3_000_000


class Hostile:
    """Fails whatever is asked of it."""

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError("asked")

    __index__ = __float__ = __eq__ = __repr__ = __str__ = __len__ = __iter__ = __bool__ = _fail  # type: ignore[assignment]
    __hash__ = object.__hash__


class Endless(Mapping[str, float]):
    """A report without an end that says it has one."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return map(str, itertools.count())

    def __getitem__(self, name: str) -> float:
        return 1.0


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class Text(str):
    """Text of a class of its own, which lies about its length."""

    def __len__(self) -> int:
        return 3


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def acts(answer: Callable[[int], Any]) -> dict[str, Any]:
    """An agent that answers this from the third step on, by its slot."""

    def act(self: Any, seen: Mapping[int, Observation]) -> Any:
        (slot,) = seen
        return answer(slot) if seen[slot].step >= 2 else {slot: Action.TURN_LEFT}

    return {"act": act}


def chooses(action: Any) -> dict[str, Any]:
    return acts(lambda slot: {slot: action})


def always(value: Any) -> Any:
    """A property."""
    return property(lambda self: value)


def later(name: str, value: Any, first: Any) -> dict[str, Any]:
    """A method that returns this from its second call on, as the first step is tried before the run."""

    def said(self: Any, slot: int) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return value if self.calls > 1 else first

    return {name: said}


def reports(value: Any) -> dict[str, Any]:
    return later("report", value, {})


def foresees(value: Any) -> dict[str, Any]:
    return later("ahead", value, ())


def says(name: str, value: Any) -> dict[str, Any]:
    return {name: always(value)}


ACTION = "for an action"
REPORT = "the agent's report"
ODD: dict[str, tuple[Case, dict[str, Any]]] = {
    # What it does.
    "act_none": (Case(ROWS, "the agent's act returned None"), acts(lambda slot: None)),
    "act_number": (Case(ROWS, "the agent's act returned 1"), acts(lambda slot: 1)),
    "act_list": (Case(ROWS, "the agent's act returned [1]"), acts(lambda slot: [1])),
    "act_nothing": (Case(ROWS, "no action for slots [0]"), acts(lambda slot: {})),
    "act_hostile": (Case(ROWS, "the agent's act returned"), acts(lambda slot: Hostile())),
    "action_none": (Case(ROWS, ACTION), chooses(None)),
    "action_seven": (Case(ROWS, ACTION), chooses(7)),
    "action_text": (Case(ROWS, ACTION), chooses("MOVE_FORWARD")),
    "action_escapes": (Case(ROWS, ACTION), chooses(ESCAPES)),
    "action_long": (Case(ROWS, ACTION), chooses(LONG)),
    "action_nan": (Case(ROWS, ACTION), chooses(math.nan)),
    "action_half": (Case(ROWS, ACTION), chooses(0.5)),
    "action_vector": (Case(ROWS, ACTION), chooses(np.array([1, 2]))),
    "action_huge": (Case(ROWS, ACTION), chooses(10**5000)),
    "action_hostile": (Case(ROWS, ACTION), chooses(Hostile())),
    "action_numpy": (Case(FINE), chooses(np.int64(0))),
    "action_tensor": (Case(FINE), chooses(torch.tensor(0))),
    "action_false": (Case(FINE), chooses(False)),
    "ahead_none": (Case(ROWS, "ahead"), foresees(None)),
    "ahead_no_action": (Case(ROWS, ACTION), foresees([99])),
    "ahead_endless": (Case(ROWS, "ahead"), foresees(itertools.repeat(Action.TURN_LEFT))),
    "turns": (Case(FINE), {"act_one": lambda self, seen: Action.TURN_LEFT}),
    # What it raises.
    "fails": (Case(ROWS, "ValueError: no"), acts(raises(ValueError("no")))),
    "raises_long": (Case(ROWS, "ValueError: ha ha"), acts(raises(ValueError(LONG)))),
    "raises_escapes": (Case(ROWS, "ValueError"), acts(raises(ValueError(ESCAPES)))),
    "raises_lines": (Case(ROWS, "ValueError: a a a"), acts(raises(ValueError("a\n" * 10_000)))),
    "raises_nothing": (Case(ROWS, "UnsayableError"), acts(raises(UnsayableError()))),
    "raises_memory": (Case(ROWS, "MemoryError"), acts(raises(MemoryError()))),
    "raises_stop_iteration": (Case(ROWS, "StopIteration"), acts(raises(StopIteration()))),
    "exits": (Case(ROWS, "SystemExit: 0"), acts(raises(SystemExit(0)))),
    "exits_saying": (Case(ROWS, "SystemExit"), acts(raises(SystemExit(ESCAPES)))),
    "cancelled": (Case(ROWS, "CancelledError"), acts(raises(asyncio.CancelledError()))),
    "generator_exit": (Case(ROWS, "GeneratorExit"), acts(raises(GeneratorExit()))),
    "misused": (Case(REFUSED, "x.bin: gone"), acts(raises(UsageError("x.bin: gone")))),
    "begin_raises": (Case(REFUSED, "its first step failed: ValueError: no"), {"begin": raises(ValueError("no"))}),
    "begin_exits": (Case(REFUSED, "its first step failed: SystemExit: 1"), {"begin": raises(SystemExit(1))}),
    # What it counts.
    "report_none": (Case(ROWS, REPORT), reports(None)),
    "report_nan": (Case(ROWS, f"{REPORT}: n nan"), reports({"n": math.nan})),
    "report_infinite": (Case(ROWS, f"{REPORT}: n inf"), reports({"n": np.float32("inf")})),
    "report_large": (Case(ROWS, f"{REPORT}: n "), reports({"n": 10**30})),
    "report_huge": (Case(ROWS, f"{REPORT}: n "), reports({"n": 10**5000})),
    "report_text": (Case(ROWS, f"{REPORT}: n "), reports({"n": LONG})),
    "report_hostile": (Case(ROWS, f"{REPORT}: n "), reports({"n": Hostile()})),
    "report_list": (Case(ROWS, REPORT), reports([LONG])),
    "report_many": (Case(ROWS, REPORT), reports({str(i): i for i in range(20_000)})),
    "report_endless": (Case(ROWS, REPORT), reports(Endless())),
    "report_long_name": (Case(ROWS, f"{REPORT} names"), reports({LONG: 1})),
    "report_escapes": (Case(ROWS, f"{REPORT} names"), reports({ESCAPES: 1})),
    "report_lying_name": (Case(ROWS, f"{REPORT} names"), reports({Text(LONG): 1})),
    "report_raises": (Case(REFUSED, "KeyError"), {"report": raises(KeyError(ESCAPES))}),
    "report_numbers": (Case(FINE), reports({"a": np.float32(0.5), "b": np.bool_(True), "c": torch.tensor(3)})),
    "report_largest": (Case(FINE), reports({str(i): 1e15 for i in range(100)})),
    # What it says of itself.
    "identity_none": (Case(REFUSED, "identity"), says("identity", None)),
    "identity_list": (Case(REFUSED, "identity"), says("identity", [1])),
    "identity_nan": (Case(REFUSED, "identity"), says("identity", {"t": math.nan})),
    "identity_object": (Case(REFUSED, "identity"), says("identity", {"t": object()})),
    "identity_hostile": (Case(REFUSED, "identity"), says("identity", {"t": Hostile()})),
    "identity_nested": (Case(REFUSED, "identity"), says("identity", {"t": {"a": 1}})),
    "identity_huge": (Case(REFUSED, "identity"), says("identity", {"t": 10**5000})),
    "identity_long": (Case(REFUSED, "identity"), says("identity", {"t": LONG})),
    "identity_many": (Case(REFUSED, "identity"), says("identity", {str(i): i for i in range(10**5)})),
    "identity_long_name": (Case(REFUSED, "identity"), says("identity", {LONG: 1})),
    "identity_number_name": (Case(REFUSED, "identity"), says("identity", {3: 1})),
    "identity_escapes": (Case(REFUSED, "identity"), says("identity", {ESCAPES: 1})),
    "identity_half": (Case(REFUSED, "identity"), says("identity", {"t": "\udce9"})),
    "identity_raises": (Case(REFUSED, "ValueError: no"), {"identity": property(raises(ValueError("no")))}),
    "identity_numbers": (Case(FINE), says("identity", {"a": np.float32(0.5), "b": np.bool_(True)})),
    "sensors_list": (Case(REFUSED, "sensors"), says("sensors", ["rgb"])),
    "sensors_unknown": (Case(REFUSED, "sensors"), says("sensors", frozenset({ESCAPES, 3}))),
    "sensors_none": (Case(REFUSED, "sensors"), says("sensors", None)),
    "expects_none": (Case(REFUSED, "expects"), says("expects", None)),
    "expects_text": (Case(REFUSED, "expects.width"), says("expects", Conventions(width="640"))),  # type: ignore[arg-type]
    "expects_nan": (Case(REFUSED, "expects.hfov"), says("expects", Conventions(hfov=math.nan))),
    "expects_array": (Case(REFUSED, "expects.height"), says("expects", Conventions(height=np.zeros(2)))),  # type: ignore[arg-type]
    "expects_numpy": (Case(FINE), says("expects", Conventions(width=np.int64(640)))),  # type: ignore[arg-type]
    "privileged_array": (Case(REFUSED, "privileged"), says("privileged", np.zeros(2))),
    "privileged_text": (Case(REFUSED, "privileged"), says("privileged", "no")),
    "description_none": (Case(REFUSED, "description"), says("description", None)),
    "description_long": (Case(FINE), says("description", LONG)),
    "description_escapes": (Case(FINE), says("description", ESCAPES * 9)),
    "remarks_number": (Case(FINE, "remarks 3: expected text"), says("remarks", 3)),
    "remarks_long": (Case(FINE), says("remarks", LONG)),
    "remarks_escapes": (Case(FINE), says("remarks", ESCAPES)),
    "remarks_raise": (Case(FINE, "remarks cannot be read"), {"remarks": property(raises(ValueError("no")))}),
    "reads_number": (Case(REFUSED, "reads"), says("reads", 3)),
    "reads_absent": (Case(REFUSED, "/no/file"), says("reads", ["/no/file"])),
    "files_number": (Case(REFUSED, "files"), says("files", 3)),
    "batch_seconds_text": (Case(REFUSED, "batch_seconds"), says("batch_seconds", {"a": "b"})),
    "rgb_size_text": (Case(REFUSED, "rgb_size"), says("rgb_size", ("a", None))),
    "stands_for_none": (Case(REFUSED, "stands_for"), says("stands_for", None)),
    "answers_everything": (  # which protocols ask no longer
        Case(REFUSED, "agent") if sys.version_info < (3, 12) else Case(FINE),
        {"__getattr__": lambda self, name: None},
    ),
    # What becomes of it.
    "constructor_raises": (Case(REFUSED, "be made: ValueError: no"), {"__init__": raises(ValueError("no"))}),
    "constructor_long": (Case(REFUSED, "cannot be made"), {"__init__": raises(ValueError(LONG))}),
    "constructor_escapes": (Case(REFUSED, "cannot be made"), {"__init__": raises(ValueError(ESCAPES))}),
    "constructor_exits": (Case(REFUSED, "cannot be made: SystemExit: 0"), {"__init__": raises(SystemExit(0))}),
    "constructor_mock": (Case(REFUSED, "agent"), {"__new__": lambda cls: MagicMock()}),
    "constructor_none": (Case(REFUSED, "not an agent"), {"__new__": lambda cls: None}),
    "close_raises": (Case(FINE, "close_raises.close failed: ValueError"), {"close": raises(ValueError(ESCAPES))}),
    "close_exits": (Case(FINE, "close_exits.close failed: SystemExit: 3"), {"close": raises(SystemExit(3))}),
    "moves_away": (Case(FINE), acts(lambda slot: os.chdir("/") or {slot: Action.STOP})),
    "prints": (Case(FINE), acts(lambda slot: print(ESCAPES) or {slot: Action.STOP})),
}  # fmt: skip


def __getattr__(name: str) -> type:
    if name not in ODD:
        raise AttributeError(name)
    return type(name, (RandomAgent,), {**ODD[name][1], "__module__": __name__})
