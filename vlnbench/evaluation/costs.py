"""What a run took: hours with the hardware they were spent on, and the agent's time by step of the episode.

Pure functions of rows and attempts. What these do not say is None; rows of older versions lack some of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from vlnbench.evaluation.columns.table import Table, Values
from vlnbench.evaluation.records import PARTS
from vlnbench.rollout.episode import STEP_PARTS

_BAR = 24


def part_seconds(step_seconds: Sequence[float]) -> dict[str, float]:
    """Fields of `Row.seconds` that say what the steps of an episode took of the agent's time."""
    return {f"agent {part}": round(seconds, 6) for part, seconds in zip(PARTS, step_seconds, strict=False)}


@dataclass(frozen=True, slots=True)
class StepCost:
    """The agent's time per step in one part of the episodes, in milliseconds.

    episodes: how many have reached the part; steps: of all of them in it. ms: mean over the steps. low, high:
    between these lie the means of eight in ten episodes.
    """

    part: str
    episodes: int
    steps: int
    ms: float
    low: float
    high: float


def by_step(table: Table) -> list[StepCost]:
    """The agent's time per step by part of the episode; empty for rows that do not tell it, or are not scored."""
    bounds = (0, *STEP_PARTS, math.inf)
    steps, found = np.where(table.having("ok"), table.scores["steps"], np.nan).astype(np.float64), []
    for part, (first, last) in zip(PARTS, pairwise(bounds), strict=True):
        seconds = table.seconds[f"agent {part}"]
        reached = (steps > first) & ~np.isnan(seconds)
        if reached.any():
            found.append(_step_cost(part, np.minimum(steps[reached], last) - first, seconds[reached]))
    return found


def _step_cost(part: str, counts: Values, seconds: Values) -> StepCost:
    steps = int(counts.sum())
    low, high = np.quantile(1000 * seconds / counts, (0.1, 0.9)).tolist()
    return StepCost(part, len(counts), steps, 1000 * _sum(seconds) / steps, low, high)


def _sum(values: Values) -> float:
    """Correctly rounded; by parts, as a list of a million numbers takes four times their memory."""
    parts = np.array_split(values, len(values) // 10_000 + 1)
    return math.fsum(chain.from_iterable(part.tolist() for part in parts))


def bar(value: float, most: float) -> str:
    """A bar of text, full at `most`."""
    return "#" * max(1, round(_BAR * value / most)) if most > 0 else ""


@dataclass(frozen=True, slots=True)
class Hours:
    """Hours that a run took.

    wall: on the clock while episodes were run, over all attempts, up to the last row of each. agent, simulator:
    what they took, added up over their processes. device: of the GPUs that agents had (wall hours times GPUs), or
    where they had none of the processor's cores; unit says which. hardware: what that was, in words.
    """

    wall: float | None = None
    agent: float | None = None
    simulator: float | None = None
    device: float | None = None
    unit: str | None = None
    hardware: str | None = None


def hours(table: Table, attempts: Sequence[Mapping[str, Any]]) -> Hours:
    """What the rows of a run took. attempts: as in its folder (`records.ATTEMPTS`)."""
    wall = None if np.isnan(table.seconds["wall"]).any() else _total(table, "wall")
    used = {_hardware(attempt) for attempt in attempts}
    hardware, unit, devices = next(iter(used)) if len(used) == 1 else (None, None, None)
    if len(used) > 1 and all(text for text, _, _ in used):
        hardware = "; ".join(sorted(text for text, _, _ in used if text))
    device = None if wall is None or devices is None else wall * devices
    return Hours(wall, _total(table, "agent"), _total(table, "env"), device, unit, hardware)


def _total(table: Table, name: str) -> float | None:
    found = table.seconds[name]
    found = found[~np.isnan(found)]
    return _sum(found) / 3600 if len(found) else None


def _hardware(attempt: Mapping[str, Any]) -> tuple[str | None, str | None, int | None]:
    """What an attempt ran on: in words, as the unit of its hours, and how many of these devices."""
    found, agents = attempt.get("hardware") or {}, attempt.get("agents")
    cpu, cores, gpu = (found.get(name) for name in ("cpu", "cores", "gpu"))
    if not agents or not cores:
        return None, None, None
    processor = f"{cores * agents} cores{f' of {cpu}' if cpu else ''}"
    if gpu:
        return f"{agents} x {gpu}, {processor}", "GPU-h", agents
    return processor, "CPU-h", cores * agents


def format_hours(found: Hours) -> str:
    """Hours in one line; empty where nothing is known."""
    parts = ("wall", found.wall), ("agent", found.agent), ("simulators", found.simulator)
    shown = [f"{name} {shown_hours(value)}" for name, value in parts if value is not None]
    if found.device is not None:
        shown.insert(0, f"{shown_hours(found.device)} {found.unit}")
    return ", ".join(shown)


def shown_hours(value: float) -> str:
    """Hours with two digits or more."""
    if value < 0.001:
        return "under 0.001"
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"
