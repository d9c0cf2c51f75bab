"""What a run took: hours with the hardware they were spent on, and the agent's time by step of the episode.

Pure functions of rows and attempts. What these do not say is None; rows of older versions lack some of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vlnbench.evaluation.records import Row
from vlnbench.rollout.episode import STEP_PARTS

PARTS = (*(f"{first + 1}-{last}" for first, last in pairwise((0, *STEP_PARTS))), f"over {STEP_PARTS[-1]}")
"""Names of the parts of an episode by which the agent's time is told, by number of the step."""

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


def by_step(rows: Iterable[Row]) -> list[StepCost]:
    """The agent's time per step by part of the episode; empty for rows that do not tell it, or are not scored."""
    found: list[list[tuple[int, float]]] = [[] for _ in PARTS]
    bounds = (0, *STEP_PARTS, math.inf)
    for row in rows:
        steps = row.scores.get("steps")
        if not isinstance(steps, int):
            continue
        for part, (first, last), members in zip(PARTS, pairwise(bounds), found, strict=True):
            seconds = row.seconds.get(f"agent {part}")
            if steps > first and seconds is not None:
                members.append((int(min(steps, last) - first), seconds))
    return [_step_cost(part, members) for part, members in zip(PARTS, found, strict=True) if members]


def _step_cost(part: str, members: Sequence[tuple[int, float]]) -> StepCost:
    steps = sum(count for count, _ in members)
    means = sorted(1000 * seconds / count for count, seconds in members)
    low, high = means[0], means[-1]
    if len(means) > 1:
        tenths = statistics.quantiles(means, n=10, method="inclusive")
        low, high = tenths[0], tenths[-1]
    return StepCost(part, len(members), steps, 1000 * math.fsum(s for _, s in members) / steps, low, high)


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


def hours(rows: Iterable[Row], attempts: Sequence[Mapping[str, Any]]) -> Hours:
    """What the rows of a run took. attempts: as in its folder (`records.ATTEMPTS`)."""
    parts = [row.seconds for row in rows]
    wall = _total(parts, "wall") if all("wall" in each for each in parts) else None
    used = {_hardware(attempt) for attempt in attempts}
    hardware, unit, devices = next(iter(used)) if len(used) == 1 else (None, None, None)
    if len(used) > 1 and all(text for text, _, _ in used):
        hardware = "; ".join(sorted(text for text, _, _ in used if text))
    device = None if wall is None or devices is None else wall * devices
    return Hours(wall, _total(parts, "agent"), _total(parts, "env"), device, unit, hardware)


def _total(parts: Sequence[Mapping[str, float]], name: str) -> float | None:
    found = [each[name] for each in parts if name in each]
    return math.fsum(found) / 3600 if found else None


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
